// What every reader must stand: other encodings and line ends, bits that flipped, files that were
// cut, and paths that are no files.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "data/test_support.h"

namespace snug {
namespace {

struct Sample {
  const char* name;
  RowKind kind;
  std::string text;  // two rows; '@' stands where a text may hold anything
  bool is_json() const { return std::string_view(name).find(".json") != std::string_view::npos; }
};

const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = {
      {"x.csv", RowKind::kTexts, "text,label\n\"a \"\"@\"\", c\",1\nd,0\n"},
      {"x.tsv", RowKind::kTexts, "text\tlabel\n\"a@\t1\nb\"\t0\n"},
      {"x.jsonl", RowKind::kTexts,
       "{\"text\": \"@\", \"label\": 1}\n{\"text\": \"b\\u00e9\", \"label\": \"x\"}\n"},
      {"x.txt", RowKind::kTexts, "a @\nc d\n"},
      {"x.conll", RowKind::kWords, "-DOCSTART- O\n\nEU@ B-ORG\nsays O\n\nParis B-LOC\n"},
      {"x.tsv", RowKind::kWords, "# id = 1\nEU@\tNNP\tB-ORG\n\nParis\tNNP\tB-LOC\n"},
      {"x.jsonl", RowKind::kWords,
       "{\"tokens\": [\"a\", \"@\"], \"tags\": [1, 2]}\n{\"tokens\": [\"c\"], \"tags\": "
       "[\"O\"]}\n"},
      {"x.json", RowKind::kQuestions,
       "{\"data\": [{\"paragraphs\": [\n{\"context\": \"A cat@\", \"qas\": [{\"id\": \"1\", "
       "\"question\": \"?\", \"answers\": "
       "[{\"text\": \"cat\", \"answer_start\": 2}]},\n{\"id\": \"2\", \"question\": \"!\", "
       "\"answers\": []}]}]}]}\n"},
      {"x.jsonl", RowKind::kQuestions,
       "{\"question\": \"?\", \"context\": \"A cat@\", \"answers\": {\"text\": [\"cat\"], "
       "\"answer_start\": [2]}}\n"
       "{\"question\": \"?\", \"context\": \"A cat\", \"answers\": []}\n"},
      {"x.csv", RowKind::kQuestions, "question,context\n?,A cat\n!,\"A, cat@\"\n"},
  };
  return all;
}

// All that the rows hold, as text, or the error.
std::string outcome(const std::string& bytes, const std::string& name, RowKind kind) {
  std::string out;
  const std::string error = error_of([&] {
    const auto reader =
        open_rows(memory_source(bytes), name, {.kind = kind, .labels = LabelNeed::kOptional});
    for (Row row; reader->next(row);) {
      out += fmt::format("row {}|{}|{}|{}|", row.text, row.text_pair.value_or(""),
                         row.label.value_or(""), row.id);
      for (const Word& word : row.words) {
        out += fmt::format("{}-{} {}|", word.begin, word.end, word.label);
      }
      for (const Answer& answer : row.answers) {
        out += fmt::format("{}@{}|", answer.text, answer.begin);
      }
      out += "\n";
    }
  });
  return error == "no error" ? out : error;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string utf16(const std::string& text, bool big_endian) {
  std::string out;
  for (const char c : text) out += big_endian ? std::string{'\0', c} : std::string{c, '\0'};
  return out;
}

TEST(HostileFiles, MarksLineEndsAndCompressionChangeNothing) {
  for (const Sample& sample : samples()) {
    const std::string name = sample.name;
    const std::string expected = outcome(sample.text, name, sample.kind);
    EXPECT_TRUE(expected.starts_with("row ")) << expected;
    EXPECT_EQ(std::ranges::count(expected, '\n'), 2) << expected;
    EXPECT_EQ(outcome("\xEF\xBB\xBF" + sample.text, name, sample.kind), expected);
    EXPECT_EQ(outcome(replaced(sample.text, "\n", "\r\n"), name, sample.kind), expected);
    EXPECT_EQ(outcome(replaced(sample.text, "\n", "\r"), name, sample.kind), expected);
    EXPECT_EQ(outcome(sample.text.substr(0, sample.text.size() - 1), name, sample.kind), expected);
    EXPECT_EQ(outcome(gzipped(sample.text), name + ".gz", sample.kind), expected);
    EXPECT_EQ(outcome(zstd_compressed(sample.text), name + ".ZST", sample.kind), expected);
    for (size_t chunk = 1; chunk < 5; ++chunk) {
      const auto reader = open_rows(std::make_unique<SlowSource>(sample.text, chunk), name,
                                    {.kind = sample.kind, .labels = LabelNeed::kOptional});
      EXPECT_EQ(all_rows(*reader).size(), 2u);
    }
  }
}

// NUL, U+2028 and what else looks like the end of a line or text is part of a word or text.
TEST(HostileFiles, OddCharactersAreKept) {
  const std::string odd = std::string("x\0y", 3) + "\xE2\x80\xA8z\xC2\x85\x1Cw";
  const std::string escaped = "x\\u0000y\xE2\x80\xA8z\xC2\x85\\u001cw";
  for (const Sample& sample : samples()) {
    const std::string result = outcome(replaced(sample.text, "@", sample.is_json() ? escaped : odd),
                                       sample.name, sample.kind);
    EXPECT_TRUE(result.starts_with("row ")) << sample.name << ": " << result;
    EXPECT_NE(result.find(odd), result.npos) << sample.name << ": " << result;
  }
}

TEST(HostileFiles, OtherEncodingsAreRefusedByName) {
  for (const Sample& sample : samples()) {
    const auto refused = [&](const std::string& bytes, const char* words) {
      const std::string error = outcome(bytes, sample.name, sample.kind);
      EXPECT_TRUE(error.starts_with(std::string("3: ") + sample.name)) << error;
      EXPECT_NE(error.find(words), error.npos) << error;
      EXPECT_EQ(outcome(bytes, sample.name, sample.kind), error);
    };
    refused(utf16(sample.text, false), "UTF-16");
    refused(utf16(sample.text, true), "UTF-16");
    refused("\xFF\xFE" + utf16(sample.text, false), "UTF-16");
    refused("\xFE\xFF" + utf16(sample.text, true), "UTF-16");
    refused(gzipped(sample.text), "looks compressed; its name should end in .gz");
    refused(zstd_compressed(sample.text), "looks compressed; its name should end in .zst");
    // Latin-1, an overlong form, a surrogate, beyond Unicode, cut off.
    for (const char* bytes : {"\xE9", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
      refused(replaced(sample.text, "@", bytes), "not UTF-8 (0x");
    }
  }
}

// Every bit of every sample flipped, and every length: rows or a refusal that names the file, the
// same every time.
TEST(HostileFiles, FlippedBitsAndCutsGiveRowsOrARefusal) {
  for (const Sample& sample : samples()) {
    for (const std::string suffix : {"", ".gz", ".zst"}) {
      const std::string name = sample.name + suffix;
      const std::string good = suffix.empty()    ? sample.text
                               : suffix == ".gz" ? gzipped(sample.text)
                                                 : zstd_compressed(sample.text);
      const auto check = [&](const std::string& bytes) {
        const std::string result = outcome(bytes, name, sample.kind);
        EXPECT_TRUE(result.empty() || result.starts_with("row ") ||
                    result.starts_with("3: " + name))
            << result;
        EXPECT_EQ(outcome(bytes, name, sample.kind), result);
      };
      for (size_t bit = 0; bit < good.size() * 8; ++bit) {
        std::string bytes = good;
        bytes[bit / 8] = char(bytes[bit / 8] ^ (1 << bit % 8));
        check(bytes);
      }
      for (size_t size = 0; size < good.size(); ++size) check(good.substr(0, size));
    }
  }
}

TEST(HostileFiles, FilesWithoutRowsSaySo) {
  for (const Sample& sample : samples()) {
    const std::string result = outcome("", sample.name, sample.kind);
    if (sample.name == std::string("x.txt")) {
      EXPECT_EQ(result, "");  // the data set refuses it
    } else {
      EXPECT_TRUE(result.starts_with("3: ")) << result;
    }
  }
}

TEST(HostileFiles, PathsThatAreNoFilesAreRefusedAtOnce) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "folder.csv");
  ASSERT_EQ(::mkfifo((folder.path() / "fifo.csv").c_str(), 0600), 0);
  std::filesystem::create_symlink(folder.path() / "loop.csv", folder.path() / "loop.csv");
  std::filesystem::create_symlink("/dev/zero", folder.path() / "zero.csv");
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string socket_path = folder.path() / "socket.csv";
  ASSERT_LT(socket_path.size(), sizeof address.sun_path);
  socket_path.copy(address.sun_path, socket_path.size());
  ASSERT_EQ(::bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  folder.write("secret.csv", "text,label\na,1\n");
  ASSERT_EQ(::chmod((folder.path() / "secret.csv").c_str(), 0), 0);
  struct Case {
    std::string name, expected;
  };
  std::vector<Case> cases = {{"folder.csv", "a directory"},
                             {"fifo.csv", "FIFO"},
                             {"loop.csv", "cannot open"},
                             {"zero.csv", "a device"},
                             {"socket.csv", "cannot open"},
                             {"missing.csv", "cannot open"},
                             {std::string(4096, 'x') + ".csv", "cannot open"}};
  if (::geteuid() != 0) cases.push_back({"secret.csv", "cannot open"});
  for (const Case& bad : cases) {
    const std::string error = error_of([&] { open_rows(folder.path() / bad.name, {}); });
    EXPECT_TRUE(error.starts_with("3: ")) << error;
    EXPECT_NE(error.find(bad.expected), error.npos) << error;
  }
  ::close(server);
  // A name that is not UTF-8 is a name.
  const auto odd = folder.write("caf\xE9.csv", "text,label\na,1\n");
  EXPECT_EQ(all_rows(*open_rows(odd, {})).size(), 1u);
}

}  // namespace
}  // namespace snug
