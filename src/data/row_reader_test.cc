#include "data/row_reader.h"

#include <random>

#include "data/test_support.h"

namespace snug {
namespace {

using Rows = std::vector<OwnedRow>;

TEST(Csv, FollowsRfc4180) {
  EXPECT_EQ(parse_rows("text,label\n\"a, \"\"b\"\"\nc\",1\nplain \"q\",0", "x.csv"),
            (Rows{{"a, \"b\"\nc", {}, "1", 2}, {"plain \"q\"", {}, "0", 4}}));
  EXPECT_EQ(parse_rows("text,label\r\na,1\r\n\"\",\"\"\r\n", "x.csv"),
            (Rows{{"a", {}, "1", 2}, {"", {}, "", 3}}));
  EXPECT_EQ(parse_rows("text,label\ra,1\rb\n,0\r", "x.csv"),
            (Rows{{"a", {}, "1", 2}, {"b\n", {}, "0", 3}}));
  EXPECT_EQ(parse_rows("text,label\n\n\na,1\n\n", "x.csv"), (Rows{{"a", {}, "1", 4}}));
  EXPECT_EQ(parse_rows("text,label\na,", "x.csv"), (Rows{{"a", {}, "", 2}}));
  EXPECT_EQ(parse_rows("text,label\n\"\"\"\",\"x\"", "x.csv"), (Rows{{"\"", {}, "x", 2}}));
}

TEST(Csv, KeepsByteOrderMarkOutAndOddCharactersIn) {
  const std::string text = std::string("nul") + '\0' + "inside \xE2\x80\xA8 line separator";
  EXPECT_EQ(parse_rows("\xEF\xBB\xBFtext,label\n" + text + ",1\n", "x.csv"),
            (Rows{{text, {}, "1", 2}}));
}

TEST(Tsv, HasNoQuoting) {
  EXPECT_EQ(parse_rows("sentence\tlabel\n\"open\t1\nshut\"\t0\n", "x.tsv"),
            (Rows{{"\"open", {}, "1", 2}, {"shut\"", {}, "0", 3}}));
  EXPECT_EQ(parse_rows("text\tlabel\r\na\rb\t1\r\n\r\n", "x.tsv"), (Rows{{"a\rb", {}, "1", 2}}));
}

TEST(Tsv, ReadsColumnsByNumberWithoutAHeader) {
  const RowReaderOptions options{.columns = {.text = "#4", .label = "2"}, .has_header = false};
  EXPECT_EQ(parse_rows("s\t1\t\tfirst\ns\t0\t*\tsecond\n", "x.tsv", options),
            (Rows{{"first", {}, "1", 1}, {"second", {}, "0", 2}}));
}

TEST(Jsonl, TakesStringsIntegersAndBooleansAsLabels) {
  EXPECT_EQ(parse_rows("{\"text\": \"a\", \"label\": \"x\"}\n\n \t\n"
                       "{\"label\": -3, \"text\": \"b\\u0000c\", \"more\": {\"text\": 1}}\r\n"
                       "{\"text\": \"\\ud83d\\ude00\", \"label\": true}\n"
                       "{\"text\": \"d\", \"label\": 18446744073709551615}\n"
                       "{\"text\": \"e\", \"label\": 1.0}\n{\"text\": \"f\", \"label\": 2.5}\n"
                       "{\"text\": \"g\", \"label\": -0}",
                       "x.jsonl"),
            (Rows{{"a", {}, "x", 1},
                  {std::string("b\0c", 3), {}, "-3", 4},
                  {"\xF0\x9F\x98\x80", {}, "true", 5},
                  {"d", {}, "18446744073709551615", 6},
                  {"e", {}, "1.0", 7},
                  {"f", {}, "2.5", 8},
                  {"g", {}, "0", 9}}));
}

TEST(Jsonl, JoinsListsOfLabelsWhereARowMayHaveSeveral) {
  const RowReaderOptions several{.label_separator = '|'};
  EXPECT_EQ(
      parse_rows(
          "{\"text\": \"a\", \"labels\": [\"x\", \"y z\"]}\n{\"text\": \"b\", \"labels\": []}\n"
          "{\"text\": \"c\", \"labels\": [3]}\n{\"text\": \"d\", \"labels\": \"x|y\"}\n",
          "x.jsonl", several),
      (Rows{{"a", {}, "x|y z", 1}, {"b", {}, "", 2}, {"c", {}, "3", 3}, {"d", {}, "x|y", 4}}));
  const auto error_with = [&](const std::string& labels) {
    return error_of(
        [&] { parse_rows("{\"text\": \"a\", \"labels\": " + labels + "}", "x.jsonl", several); });
  };
  EXPECT_EQ(error_with("[1.5]"), "3: x.jsonl: line 1: \"labels\" holds a number, expected labels");
  EXPECT_EQ(error_with("[[\"x\"]]"),
            "3: x.jsonl: line 1: \"labels\" holds a list, expected labels");
  EXPECT_NE(error_with("[\"x|y\"]").find("holds the label \"x|y\""), std::string::npos);
  EXPECT_NE(error_with("[\"\"]").find("holds the label \"\""), std::string::npos);
  EXPECT_NE(error_with("{}").find("\"labels\" is an object, expected a label"), std::string::npos);
}

TEST(Text, IsOneRowALine) {
  const RowReaderOptions options{.labels = LabelNeed::kOptional};
  EXPECT_EQ(parse_rows("a\n\nb, \"c\"", "x.txt", options),
            (Rows{{"a", {}, {}, 1}, {"", {}, {}, 2}, {"b, \"c\"", {}, {}, 3}}));
  EXPECT_EQ(parse_rows("", "x.txt", options), Rows{});
}

struct BadInput {
  const char* name;
  std::string contents;
  const char* expected;
};

TEST(RowReader, RefusesBadInputWithTheLine) {
  const std::string deep(200, '[');
  const std::vector<BadInput> cases = {
      {"x.csv", "", "the file is empty"},
      {"x.csv", "text,label\na,1\n\"b,0\nc,1\n", "line 3: a quote opens that is never closed"},
      {"x.csv", "text,label\n\"a\nb\",1\n\"c", "line 4: a quote opens that is never closed"},
      {"x.csv", "text,label\na,1\nb\n", "line 3: 1 column, expected 2"},
      {"x.csv", "text,label\n\"x\ny\",1\nb,c,d\n", "line 4: 3 columns, expected 2"},
      {"x.csv", "text,label\n\"a\"b,1\n", "line 2: text after the closing quote of column 1"},
      {"x.csv", "text,label,text\na,1,b\n",
       "column name \"text\" appears twice, as column 1 and 3"},
      {"x.csv", "text;label\na;1\n",
       "only one column found, \"text;label\"; is the separator ';'?"},
      {"x.csv", "text\tlabel\na\t1\n", "is the separator a tab?"},
      {"x.tsv", "text,label\na,1\n", "is the separator ','?"},
      {"x.csv", "foo,bar\na,1\n", "no text column by a usual name"},
      {"x.csv", "text,bar\na,1\n",
       "no label column by a usual name (label, class, ...); the columns "
       "are \"text\", \"bar\""},
      {"x.csv",
       "text,label\nok,1\nab\xFF"
       "c,0\n",
       "line 3, byte 3: not UTF-8 (0xff)"},
      {"x.csv", "text,label\n\"ok\nab\xC0\x80\",0\n", "line 3, byte 3: not UTF-8 (0xc0)"},
      {"x.tsv", "text\tlabel\n\xED\xA0\x80\t1\n", "line 2, byte 1: not UTF-8"},
      {"x.tsv", "text\tlabel\na\t1\n\nb\t0\n", "line 3: 1 column, expected 2"},
      {"x.tsv", std::string("\xFF\xFEt\0e\0", 6), "looks like UTF-16"},
      {"x.tsv", std::string("t\0e\0x\0t\0\t\0l\0", 12), "looks like UTF-16"},
      {"x.csv", gzipped("text,label\na,1\n"), "looks compressed; its name should end in .gz"},
      {"x.csv", std::string(20'000, ','), "line 1: more than 10000 columns"},
      {"x.jsonl", "\n \n", "no rows"},
      {"x.jsonl", "[{\"text\": \"a\", \"label\": 1}]", "line 1: a JSON array"},
      {"x.jsonl", "\"text\"", "line 1: begins with '\"'; expected a JSON object"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1} {\"text\": \"b\", \"label\": 2}",
       "line 1: more after the object, at byte 27"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"la",
       "line 2: the object does not end on this line"},
      {"x.jsonl", "{\n  \"text\": \"a\"\n}\n", "line 1: the object does not end on this line"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1, \"text\": \"b\"}",
       "line 1: key \"text\" appears twice"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1, \"x\": " + deep, "line 1: "},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1, \"x\": " + deep + std::string(200, ']') + "}",
       "line 1: nested deeper than 64"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1e400}",
       "line 1: a number that is malformed or out of range"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 18446744073709551616}",
       "line 1: a number that is malformed"},
      {"x.jsonl", "{\"text\": \"a\\x\", \"label\": 1}", "line 1: a string with a bad escape"},
      {"x.jsonl", "{\"text\": \"\\ud800\", \"label\": 1}", "line 1: a string with a bad escape"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": tru}", "line 1: not valid JSON"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": null, \"label\": 1}",
       "line 2: \"text\" is null, expected a string"},
      {"x.jsonl", "{\"text\": 5, \"label\": 1}", "line 1: \"text\" is a number, expected a string"},
      {"x.jsonl", "{\"text\": true, \"label\": 1}",
       "line 1: \"text\" is a boolean, expected a string"},
      {"x.jsonl", "{\"text\": {\"a\": 1}, \"label\": 1}",
       "line 1: \"text\" is an object, expected a string"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": {}}",
       "line 1: \"label\" is an object, expected a label"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1}\n[]", "line 2: a JSON array"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1}x", "line 1: more after the object, at byte 26"},
      {"x.conll", "a O\n",
       "unknown format; expected a name in one of .csv, .tsv, .jsonl, .json, .txt"},
      {"x.jsonl", "{\"text\": [\"a\"], \"label\": 1}",
       "line 1: \"text\" is a list, expected a string"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"label\": 1}", "line 2: no \"text\""},
      {"x.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\"}",
       "line 2: \"label\" is missing"},
      {"x.jsonl", "{\"text\": \"a\", \"label\": [1]}",
       "line 1: \"label\" is a list, expected a label"},
      {"x.jsonl", "{\"text\": \"a\xFF\", \"label\": 1}", "line 1, byte 12: not UTF-8"},
      {"x.jsonl", "{\"a\": 1}", "no text column by a usual name (text, sentence, ...); name it"},
      {"x.txt", "a\n", "plain text has no labels"},
      {"x.parquet", "PAR1", "unknown format"},
      {"x.csv.gz", gzipped("text,label\na,1\n").substr(0, 20), "gzip data ends early at byte 20"},
      {"x.csv.gz", "", "gzip data ends early at byte 0"},
      {"x.csv.gz", "text,label\na,1\n", "damaged gzip data near byte"},
      {"x.csv.gz", gzipped("text,label\na,1\n") + "garbage", "damaged gzip data near byte"},
      {"x.csv.zst", zstd_compressed("text,label\na,1\n").substr(0, 15),
       "zstd data ends early at byte 15"},
      {"x.csv.zst", "text,label\na,1\n", "damaged zstd data near byte"},
  };
  for (const BadInput& bad : cases) {
    const std::string error = error_of([&] { parse_rows(bad.contents, bad.name); });
    EXPECT_TRUE(error.starts_with(std::string("3: ") + bad.name)) << error;
    EXPECT_NE(error.find(bad.expected), error.npos) << error << "\nexpected: " << bad.expected;
  }
}

TEST(RowReader, RefusesOverlongRecordsAndTakesLongOnes) {
  const RowReaderOptions small{.max_record_bytes = 1000};
  const std::string long_text(400'000, 'a');
  EXPECT_EQ(error_of([&] {
              parse_rows("text,label\n\"" + long_text.substr(0, 5000) + "\",1\n", "x.csv", small);
            }),
            "3: x.csv: line 2: record not finished after 1000 bytes, the most it may have");
  EXPECT_EQ(error_of([&] { parse_rows("text,label\n\"" + long_text, "x.csv", small); }),
            "3: x.csv: line 2: a quote opens that is never closed (no end after 1000 bytes)");
  EXPECT_EQ(error_of([&] { parse_rows("text\tlabel\n" + long_text, "x.tsv", small); }),
            "3: x.tsv: line 2: not finished after 1000 bytes, the most a line may have");
  const RowReaderOptions crowded{.record_room = 300'000};
  for (const auto& [name, head] : {std::pair("x.csv", "text,label\n"),
                                   {"x.tsv", "text\tlabel\n"},
                                   {"x.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \""}}) {
    EXPECT_EQ(error_of([&] { parse_rows(head + long_text, name, crowded); }),
              fmt::format("4: {}: line 2: has more than 300000 bytes, for which there is no room "
                          "in what is left of the memory",
                          name));
  }
  const std::string ten_megabytes(10'000'000, 'b');
  EXPECT_EQ(parse_rows("text,label\n" + ten_megabytes + ",1\nc,2\n", "x.csv"),
            (Rows{{ten_megabytes, {}, "1", 2}, {"c", {}, "2", 3}}));
  EXPECT_EQ(parse_rows("{\"text\":\"" + ten_megabytes + "\",\"label\":\"1\"}\n", "x.jsonl"),
            (Rows{{ten_megabytes, {}, "1", 1}}));
}

TEST(Columns, AreFoundByUsualNamesByCaseAndByNumber) {
  const auto columns_of = [](const char* header, const RowReaderOptions& options = {}) {
    const Columns columns = open_rows(memory_source(header), "x.csv", options)->columns();
    return columns.text + "|" + columns.text_pair + "|" + columns.label;
  };
  EXPECT_EQ(columns_of("label,text"), "text||label");
  EXPECT_EQ(columns_of("Label,TEXT"), "TEXT||Label");
  EXPECT_EQ(columns_of("index,question,sentence,label"), "question|sentence|label");
  EXPECT_EQ(columns_of("Quality,#1 ID,#2 ID,#1 String,#2 String"), "#1 String|#2 String|Quality");
  EXPECT_EQ(columns_of("sentence1,sentence2,score"), "sentence1|sentence2|score");
  EXPECT_EQ(columns_of("sentence1,sentence2,score", {.columns = {.text_pair = "-"}}),
            "sentence1||score");
  EXPECT_EQ(columns_of("a,b,c", {.columns = {.text = "#2", .text_pair = "C", .label = "a"}}),
            "b|c|a");
  EXPECT_EQ(columns_of("premise,hypothesis,x", {.columns = {.text = "premise", .label = "x"}}),
            "premise|hypothesis|x");
  EXPECT_EQ(columns_of("text,label", {.labels = LabelNeed::kIgnored}), "text||");
  EXPECT_EQ(error_of([&] { columns_of("a,b", {.columns = {.text = "c"}}); }),
            "3: x.csv: no column \"c\" for the text; the columns are \"a\", \"b\"");
  EXPECT_NE(
      error_of([&] { columns_of("a,b", {.columns = {.text = "a", .label = "a"}}); }).find("twice"),
      std::string::npos);
}

std::string csv_field(const std::string& text, bool quote) {
  if (!quote && text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

TEST(Csv, RoundTripsRandomFieldsThroughAnyBuffering) {
  std::mt19937 random(7);
  const std::string alphabet[] = {"a", ",",  "\"", "\n",       "\r", "\r\n",
                                  ";", "\t", " ",  "\xC3\xA9", "x"};
  const auto field = [&] {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += alphabet[random() % std::size(alphabet)];
    return text;
  };
  for (int round = 0; round < 200; ++round) {
    Rows rows;
    const std::string line_end = round % 2 ? "\r\n" : "\n";
    std::string csv = "text,label,text_pair" + line_end;
    uint64_t line = 2;
    for (size_t n = 1 + random() % 20; n > 0; --n) {
      rows.push_back({field(), field(), field(), line});
      const std::string record = csv_field(rows.back().text, random() % 2) + "," +
                                 csv_field(*rows.back().label, random() % 2) + "," +
                                 csv_field(*rows.back().text_pair, random() % 2) + line_end;
      line += uint64_t(std::ranges::count(record, '\n'));
      csv += record;
    }
    if (round % 3 == 0) csv.resize(csv.size() - line_end.size());
    EXPECT_EQ(parse_rows(csv, "x.csv"), rows) << csv;
    for (size_t chunk = 1; chunk <= 7; ++chunk) {
      const auto reader = open_rows(std::make_unique<SlowSource>(csv, chunk), "x.csv", {});
      EXPECT_EQ(all_rows(*reader), rows) << chunk << "\n" << csv;
    }
  }
}

TEST(RowReader, DoesNotDependOnHowBytesArrive) {
  std::string tsv = "\xEF\xBB\xBFtext\tlabel\r\n", jsonl, text;
  for (int i = 0; i < 50; ++i) {
    tsv += "caf\xC3\xA9 " + std::to_string(i) + "\t" + std::to_string(i % 3) + "\r\n";
    jsonl += "{\"text\": \"x \\u00e9 " + std::string(size_t(i), 'y') + "\", \"label\": 1}\n";
    text += std::string(size_t(i % 5), 'z') + "\n";
  }
  const RowReaderOptions options{.labels = LabelNeed::kOptional};
  for (const auto& [name, bytes] : {std::pair{"x.tsv", tsv},
                                    {"x.jsonl", jsonl},
                                    {"x.txt", text},
                                    {"x.tsv.gz", gzipped(tsv)},
                                    {"x.jsonl.zst", zstd_compressed(jsonl)}}) {
    const Rows expected = parse_rows(bytes, name, options);
    EXPECT_EQ(expected.size(), 50u);
    for (size_t chunk = 1; chunk <= 7; ++chunk) {
      const auto reader = open_rows(std::make_unique<SlowSource>(bytes, chunk), name, options);
      EXPECT_EQ(all_rows(*reader), expected) << name << " " << chunk;
    }
  }
}

TEST(RowReader, ReadsRecordsAcrossWindowsAndShrinksAfterLongOnes) {
  std::string csv = "text,label\n";
  Rows expected;
  for (size_t i = 0; i < 300; ++i) {
    const std::string text(i % 50 == 0 ? 700'000 : 3'000 + i, char('a' + i % 26));
    csv += (i % 2 ? "\"" + text + "\"" : text) + ",1\n";
    expected.push_back({text, {}, "1", i + 2});
  }
  EXPECT_EQ(parse_rows(csv, "x.csv"), expected);
}

TEST(Compressed, TakesConcatenatedMembersAndLargeOutputs) {
  const std::string first = "text,label\na,1\n", second = "b,2\n";
  const Rows expected{{"a", {}, "1", 2}, {"b", {}, "2", 3}};
  EXPECT_EQ(parse_rows(gzipped(first) + gzipped(second), "x.csv.gz"), expected);
  EXPECT_EQ(parse_rows(zstd_compressed(first) + zstd_compressed(second), "X.CSV.ZST"), expected);
  std::string big = "text,label\n";
  for (int i = 0; i < 200'000; ++i) big += "the same words again,1\n";
  EXPECT_EQ(parse_rows(gzipped(big), "x.csv.gz").size(), 200'000u);
  EXPECT_EQ(parse_rows(zstd_compressed(big), "x.csv.zst").size(), 200'000u);
}

}  // namespace
}  // namespace snug
