#include "model/tf_checkpoint.h"

#include "model/file_test_util.h"
#include "model/safetensors.h"
#include "model/sorted_table.h"
#include "model/tf_test_util.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using namespace tf;

const fs::path kGolden = fs::path(SNUG_SOURCE_DIR) / "tests/golden";

class TfCheckpointTest : public FileTest {
 protected:
  TfCheckpointTest() { put(".data-00000-of-00001", kData); }

  void put(const std::string& end, const std::string& bytes) const {
    FileTest::put("x.ckpt" + end, bytes);
  }
  TfCheckpoint open(const std::string& index) const {
    put(".index", index);
    return TfCheckpoint(folder_ / "x.ckpt");
  }
  std::string error_of(const std::string& index) const {
    return error_in([&] { contents(open(index)); });
  }
  void expect_error(const std::string& index, const std::string& expected) const {
    expect_part(error_of(index), expected);
  }

  inline static const std::string kData =
      fixed(1.0f) + fixed(2.0f) + fixed(3.0f) + fixed(4.0f) + fixed(5.0f) + fixed(6.0f);
};

TEST(TfNames, AreThoseOfTransformers) {
  const auto name = [](const char* key) { return model_name(key).value_or(TfName{"-"}).name; };
  EXPECT_EQ(model_name("bert/encoder/layer_11/attention/self/query/kernel"),
            (TfName{"bert.encoder.layer.11.attention.self.query.weight", true}));
  EXPECT_EQ(model_name("bert/embeddings/word_embeddings"),
            (TfName{"bert.embeddings.word_embeddings.weight", false}));
  EXPECT_EQ(name("bert/embeddings/token_type_embeddings"),
            "bert.embeddings.token_type_embeddings.weight");
  EXPECT_EQ(name("bert/embeddings/LayerNorm/gamma"), "bert.embeddings.LayerNorm.weight");
  EXPECT_EQ(name("bert/embeddings/LayerNorm/beta"), "bert.embeddings.LayerNorm.bias");
  EXPECT_EQ(name("bert/pooler/dense/bias"), "bert.pooler.dense.bias");
  EXPECT_EQ(name("cls/predictions/output_bias"), "cls.predictions.bias");
  EXPECT_EQ(name("cls/predictions/transform/dense/kernel"),
            "cls.predictions.transform.dense.weight");
  EXPECT_EQ(model_name("cls/seq_relationship/output_weights"),
            (TfName{"cls.seq_relationship.weight", false}));
  EXPECT_EQ(model_name("output_weights"), (TfName{"classifier.weight", false}));
  EXPECT_EQ(name("output_bias"), "classifier.bias");
  EXPECT_EQ(model_name("cls/squad/output_weights"), (TfName{"qa_outputs.weight", false}));
  EXPECT_EQ(name("cls/squad/output_bias"), "qa_outputs.bias");
  for (const char* key : {"bert/pooler/dense/kernel/adam_m", "bert/pooler/dense/kernel/adam_v",
                          "global_step", "x/kernel/Adam_1"}) {
    EXPECT_FALSE(model_name(key)) << key;
  }
}

TEST_F(TfCheckpointTest, ReadsWhatTensorFlowWrites) {
  const auto found = contents(TfCheckpoint(kGolden / "files/bert_model.ckpt"));
  const auto expected = contents(SafetensorsFile(kGolden / "bert-mlm-tiny/model.safetensors"));
  for (const auto& [name, values] : expected) {
    EXPECT_TRUE(found.contains(name) && found.at(name) == values) << name;
  }
  EXPECT_EQ(
      found.size(),
      expected.size() + 2);  // and the head over pairs of sentences, which is not turned round
  EXPECT_EQ(found.at("cls.seq_relationship.weight").substr(0, 12), "fp32 [2, 36]");
  EXPECT_EQ(found.at("cls.seq_relationship.weight").substr(13 + 4 * 37, 4), fixed(37.0f));
}

const BundleEntry kMatrix{.shape = {2, 3}, .bytes = 24, .crc = 0};
BundleEntry matrix() {
  BundleEntry entry = kMatrix;
  entry.crc =
      masked_crc(fixed(1.0f) + fixed(2.0f) + fixed(3.0f) + fixed(4.0f) + fixed(5.0f) + fixed(6.0f));
  return entry;
}

TEST_F(TfCheckpointTest, ReadsShardsAndTurnsKernelsRound) {
  put(".data-00001-of-00002", fixed(7.0f));
  fs::rename(folder_ / "x.ckpt.data-00000-of-00001", folder_ / "x.ckpt.data-00000-of-00002");
  const BundleEntry other{.shape = {}, .shard = 1, .bytes = 4, .crc = masked_crc(fixed(7.0f))};
  const TfCheckpoint file =
      open(table({{"", header(2)}, {"a/kernel", matrix().encode()}, {"b", other.encode()}}));
  const TensorEntry& a = *file.find("a.weight");
  EXPECT_EQ(a.shape, (std::vector<int64_t>{3, 2}));
  std::vector<float> values(6), part(3), one(1);
  file.read_as_f32(a, 0, values);
  EXPECT_EQ(values, (std::vector<float>{1, 4, 2, 5, 3, 6}));
  file.read_as_f32(a, 1, part);
  EXPECT_EQ(part, (std::vector<float>{4, 2, 5}));
  file.read_as_f32(*file.find("b"), 0, one);
  EXPECT_EQ(one[0], 7.0f);
}

TEST_F(TfCheckpointTest, RefusesBrokenTables) {
  const std::string good = table({{"", header(1)}, {"a", matrix().encode()}});
  EXPECT_EQ(error_of(good), "");
  expect_error("", "too few for the end of a table");
  expect_error(good.substr(0, good.size() - 1), "does not end as a table does");
  expect_error(good + "x", "does not end as a table does");
  std::string changed = good;
  changed[5] ^= 1;
  expect_error(changed, "the block at byte 0 is damaged");
  const std::string entries = block({{"", header(1)}, {"a", matrix().encode()}});
  expect_error(table_of(sealed(entries, 1), entries.size()), "compressed with snappy");
  // A snappy block that claims 4 GB: refused before anything is made of it.
  const std::string bomb = varint(uint64_t{4} << 30) + "\xfe\xff\xff";
  expect_error(table_of(sealed(bomb, 1), bomb.size()), "compressed with snappy");
  expect_error(table_of(sealed(entries, 7), entries.size()), "of unknown type 7");
  expect_error(table_of(sealed(entries), entries.size() + 1000), "behind the end at");
  expect_error(table_of(sealed(entries), UINT64_MAX), "behind the end at");
  const auto of = [](const std::string& data) { return table_of(sealed(data), data.size()); };
  expect_error(of(""), "a block of 0 bytes");
  expect_error(of(fixed(uint32_t(1))), "claims 1 restarts in 4 bytes");
  expect_error(of(fixed(UINT32_MAX)), "claims 4294967295 restarts");
  expect_error(of(std::string("\0\1\0k", 4) + fixed(uint32_t(9)) + fixed(uint32_t(1))),
               "has a restart at 9 of 4");
  const std::string none = fixed(uint32_t(0));
  expect_error(of(std::string("\5\1\0k", 4) + none), "an entry that reaches behind its block");
  expect_error(of(std::string("\0\7\0k", 4) + none), "an entry that reaches behind its block");
  expect_error(of(std::string("\0\1\7k", 4) + none), "an entry that reaches behind its block");
  // Overlong.
  expect_error(of(std::string(11, '\xff') + none), "an entry that reaches behind its block");
  expect_error(of(std::string(9, '\xff') + "\x7f" + none),
               "an entry that reaches behind its block");  // more than 64 bits
  expect_error(of(block({{"", header(1)}, {"b", ""}, {"a", ""}})), "key \"a\" comes behind \"b\"");
  expect_error(of(block({{"", header(1)}, {"", ""}})), "comes behind");
  expect_error(footer(handle(0, 0), handle(uint64_t(1) << 40, 8)), "behind the end at");
  expect_error(footer(std::string(20, '\xff'), std::string(20, '\xff')), "no block is named here");
}

TEST_F(TfCheckpointTest, RefusesWhatItDoesNotSupport) {
  const std::string a = matrix().encode();
  expect_error(table({{"a", a}}), "the header is missing");
  expect_error(table({{"", "\x08"}}), "the header is broken");
  expect_error(table({{"", header(1, 1)}, {"a", a}}), "big-endian");
  expect_error(table({{"", header(INT32_MAX)}, {"a", a}}),
               "says that there are 2147483647 files of data");
  expect_error(table({{"", header(0)}, {"a", a}}), "says that there are 0 files");
  expect_error(table({{"", header(2)}, {"a", a}}),
               "x.ckpt.data-00000-of-00002: is missing, expected for variable \"a\"");
  BundleEntry sliced = matrix();
  sliced.extra = bytes_field(7, "");
  expect_error(table({{"", header(1)}, {"a", sliced.encode()}}),
               "variable \"a\": is stored in slices");
  expect_error(table({{"", header(1)}, {"_CHECKPOINTABLE_OBJECT_GRAPH", a}}),
               "a checkpoint of objects (TensorFlow 2)");
  expect_error(table({{"", header(1)}, {"m/.ATTRIBUTES/VARIABLE_VALUE", a}}),
               "a checkpoint of objects (TensorFlow 2)");
}

TEST_F(TfCheckpointTest, RefusesVariablesThatLie) {
  const auto with = [&](const auto& change) {
    BundleEntry entry = matrix();
    change(entry);
    return table({{"", header(1)}, {"bert/a", entry.encode()}});
  };
  expect_error(with([](auto& e) { e.shard = 1; }), "variable \"bert/a\" is in file 1 of 1");
  expect_error(with([](auto& e) { e.offset = 1; }), "24 bytes at byte 1 reach behind the end of");
  expect_error(with([](auto& e) { e.offset = UINT64_MAX; }), "reach behind the end of");
  expect_error(with([](auto& e) { e.bytes = 20; }), "fp32 of shape [2, 3] does not take 20 bytes");
  expect_error(with([](auto& e) { e.shape = {2, 4}; }), "does not take 24 bytes");
  expect_error(with([](auto& e) { e.shape = {uint64_t{1} << 62, 8}; }), "does not take 24 bytes");
  expect_error(with([](auto& e) { e.shape = {UINT64_MAX, 6}; }), "its entry is broken");
  expect_error(with([](auto& e) { e.shape = std::vector<uint64_t>(65, 1); }),
               "its entry is broken");
  expect_error(with([](auto& e) { e.dtype = 2; }), "fp64 of shape [2, 3] does not take 24 bytes");
  expect_error(with([](auto& e) { e.dtype = 8; }), "unsupported data type 8");
  expect_error(with([](auto& e) { e.crc ^= 1; }),
               "variable \"bert/a\" is damaged: its checksum is");
  expect_error(with([](auto& e) { e.extra = "\x0a\x7f"; }), "its entry is broken");
  expect_error(
      table({{"", header(1)}, {"a/gamma", matrix().encode()}, {"a/kernel", matrix().encode()}}),
      "duplicate tensor name \"a.weight\"");
  EXPECT_EQ(error_of(with([](auto& e) { e.dtype = 7; })), "");  // texts are not weights
  EXPECT_EQ(error_of(with([](auto& e) {
              e = {.shape = {0, uint64_t{1} << 40, uint64_t{1} << 40}, .crc = masked_crc("")};
            })),
            "");
}

TEST_F(TfCheckpointTest, EveryFlippedBitAndLengthOfAnIndexIsFoundOrHarmless) {
  const std::string good = read_small_file(kGolden / "files/bert_model.ckpt.index");
  fs::copy(kGolden / "files/bert_model.ckpt.data-00000-of-00001",
           folder_ / "x.ckpt.data-00000-of-00001", fs::copy_options::overwrite_existing);
  const auto expected = contents(open(good));
  size_t refused = 0;
  std::fstream index(folder_ / "x.ckpt.index", std::ios::in | std::ios::out | std::ios::binary);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    index.seekp(std::streamoff(bit / 8))
        .put(char(uint8_t(good[bit / 8]) ^ (1u << bit % 8)))
        .flush();
    try {
      const TfCheckpoint file(folder_ / "x.ckpt");
      ASSERT_EQ(contents(file), expected) << "byte " << bit / 8;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kInput);
      ++refused;
    }
    index.seekp(std::streamoff(bit / 8)).put(good[bit / 8]).flush();
  }
  EXPECT_GT(refused, 8 * good.size() * 9 / 10);
  for (size_t length = 0; length < good.size(); ++length) {
    ASSERT_NE(error_of(good.substr(0, length)), "") << length;
  }
}

TEST_F(TfCheckpointTest, FlippedBitsAndMissingEndsOfDataAreFound) {
  const std::string index = table({{"", header(1)}, {"a", matrix().encode()}});
  for (size_t bit = 0; bit < 8 * kData.size(); ++bit) {
    std::string bytes = kData;
    bytes[bit / 8] = char(uint8_t(bytes[bit / 8]) ^ (1u << bit % 8));
    put(".data-00000-of-00001", bytes);
    expect_error(index, "is damaged");
  }
  for (size_t length = 0; length < kData.size(); ++length) {
    put(".data-00000-of-00001", kData.substr(0, length));
    expect_error(index, "reach behind the end of");
  }
}

}  // namespace
}  // namespace snug
