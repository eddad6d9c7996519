#include "model/weight_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "model/config.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/torch_test_util.h"
#include "model/weights.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

class WeightFolderTest : public ::testing::Test {
 protected:
  WeightFolderTest() {
    std::string name = fs::temp_directory_path() / "snug-weights-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~WeightFolderTest() override { fs::remove_all(folder_); }

  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

  void put_tensor(const std::string& file, const std::string& tensor,
                  std::vector<float> values) const {
    SafetensorsWriter writer(folder_ / file, {{tensor, DType::kF32, {int64_t(values.size())}}});
    writer.write(tensor, values);
    writer.commit();
  }

  void put_index(const std::string& weight_map, const std::string& total_size = "20") const {
    put("model.safetensors.index.json",
        fmt::format(R"({{"metadata": {{"total_size": {}}}, "weight_map": {}}})", total_size,
                    weight_map));
  }

  std::string error() const {
    try {
      const WeightFolder weights(folder_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return std::string(error.what()) + " / " + error.hint();
    }
    return "";
  }

  fs::path folder_;
};

constexpr const char* kTwoShards = R"({"a": "s1.safetensors", "b": "s2.safetensors"})";

TEST_F(WeightFolderTest, ReadsOneFile) {
  put_tensor("model.safetensors", "w", {1, 2, 3});
  put_index("{}");  // the single file wins
  const WeightFolder weights(folder_);
  ASSERT_EQ(weights.names(), std::vector<std::string_view>{"w"});
  std::vector<float> read(2);
  weights.read_as_f32("w", 1, read);
  EXPECT_EQ(read, (std::vector<float>{2, 3}));
  EXPECT_EQ(weights.find("v"), nullptr);
  EXPECT_THROW(weights.read_as_f32("v", 0, read), Error);
}

TEST_F(WeightFolderTest, ReadsShards) {
  put_tensor("s1.safetensors", "a", {1, 2});
  put_tensor("s2.safetensors", "b", {3, 4, 5});
  for (const char* total : {"20", "20.0"}) {
    put_index(kTwoShards, total);
    const WeightFolder weights(folder_);
    EXPECT_EQ(weights.names(), (std::vector<std::string_view>{"a", "b"}));
    EXPECT_EQ(weights.tensor_bytes(), 20u);
    std::vector<float> read(3);
    weights.read_as_f32("b", 0, read);
    EXPECT_EQ(read, (std::vector<float>{3, 4, 5}));
  }
}

TEST_F(WeightFolderTest, RefusesABadIndex) {
  put_tensor("s1.safetensors", "a", {1, 2});
  put_tensor("s2.safetensors", "b", {3, 4, 5});
  struct Case {
    const char* weight_map;
    const char* total_size;
    const char* message;
  };
  const Case cases[] = {
      {R"({"a": "s1.safetensors", "b": "s3.safetensors"})", "20",
       "shard s3.safetensors is missing"},
      {kTwoShards, "21", "total_size is 21, but the listed tensors take 20 bytes"},
      {kTwoShards, "\"20\"", "total_size is \"20\""},
      {kTwoShards, "-20", "total_size is -20"},
      {R"({"a": "../s1.safetensors"})", "8",
       "\"../s1.safetensors\", expected the name of a .safetensors file in the same folder"},
      {R"({"a": "/etc/s1.safetensors"})", "8", "expected the name of a .safetensors file"},
      {R"({"a": "x/s1.safetensors"})", "8", "expected the name of a .safetensors file"},
      {R"({"a": "s1.safetensors\u0000.safetensors"})", "8",
       "expected the name of a .safetensors file"},
      {R"({"a": "..", "b": "s2.safetensors"})", "8", "expected the name of a .safetensors file"},
      {R"({"a": ""})", "8", "expected the name of a .safetensors file"},
      {R"({"a": "config.json"})", "8", "expected the name of a .safetensors file"},
      {R"({"a": 1})", "8", "tensor \"a\" is in 1, expected a file name"},
      {R"({"b": "s1.safetensors"})", "8",
       "lists tensor \"b\" in s1.safetensors, which does not hold it"},
      {"[]", "8", "has no object \"weight_map\""},
  };
  for (const Case& c : cases) {
    put_index(c.weight_map, c.total_size);
    EXPECT_NE(error().find(c.message), std::string::npos) << c.weight_map << ": " << error();
  }
  put("model.safetensors.index.json", "{");
  EXPECT_NE(error().find("not valid JSON"), std::string::npos) << error();
}

TEST_F(WeightFolderTest, NamesTheFormatsItFoundInstead) {
  EXPECT_NE(error().find("no model.safetensors, pytorch_model.bin or bert_model.ckpt.index"),
            std::string::npos)
      << error();
  put("tf_model.h5", "");
  put("bert_model.ckpt", "");
  EXPECT_NE(error().find("found tf_model.h5, bert_model.ckpt (TensorFlow's format before 2016), "
                         "which snug does not read"),
            std::string::npos)
      << error();
  EXPECT_NE(error().find("save_pretrained"), std::string::npos) << error();
  fs::remove_all(folder_);
  EXPECT_NE(error().find("no such model folder"), std::string::npos) << error();
}

// A file of torch.save with one tensor of zeros, under one name or two.
std::string torch_file(const std::string& name, int64_t elements, const std::string& tied = "") {
  const std::string values = pickle::tensor(pickle::storage("0", elements), {0, {elements}, {1}});
  std::string entries = pickle::text(name) + values;
  if (!tied.empty()) entries += pickle::text(tied) + values;
  return pickle::Zip()
      .add("m/data.pkl", pickle::kStart + "}(" + entries + "u.")
      .add("m/data/0", std::string(size_t(elements) * sizeof(float), '\0'))
      .build();
}

TEST_F(WeightFolderTest, PrefersSafetensorsThenPyTorchThenTensorFlow) {
  const fs::path golden = fs::path(SNUG_SOURCE_DIR) / "tests/golden/files";
  const auto has = [&](const char* name) { return WeightFolder(folder_).find(name) != nullptr; };
  for (const char* name : {"bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"}) {
    fs::copy(golden / name, folder_ / name);
  }
  EXPECT_TRUE(has("bert.embeddings.word_embeddings.weight"));
  put("pytorch_model.bin.index.json", R"({"weight_map": {"shard": "s.bin"}})");
  put("s.bin", torch_file("shard", 2));
  EXPECT_TRUE(has("shard"));
  put("pytorch_model.bin", torch_file("whole", 2));
  EXPECT_TRUE(has("whole"));
  put_tensor("s1.safetensors", "a", {1, 2});
  put_index(R"({"a": "s1.safetensors"})", "8");
  EXPECT_TRUE(has("a"));
  put_tensor("model.safetensors", "w", {1, 2, 3});
  EXPECT_TRUE(has("w"));
}

TEST_F(WeightFolderTest, ReadsShardsOfPyTorch) {
  put("s1.bin", torch_file("a", 2, "tied"));
  put("s2.bin", torch_file("b", 3));
  const auto index = [&](int total) {
    put("pytorch_model.bin.index.json",
        fmt::format(
            R"({{"metadata": {{"total_size": {}}}, "weight_map": {{"a": "s1.bin", "tied": "s1.bin", "b": "s2.bin"}}}})",
            total));
  };
  for (const int total : {28, 20}) {  // tied tensors counted twice or once
    index(total);
    EXPECT_EQ(WeightFolder(folder_).names(), (std::vector<std::string_view>{"a", "b", "tied"}));
  }
  index(24);
  EXPECT_NE(error().find("total_size is 24, but the listed tensors take 28 bytes"),
            std::string::npos)
      << error();
  put("pytorch_model.bin.index.json", R"({"weight_map": {"a": "../s1.bin"}})");
  EXPECT_NE(error().find("expected the name of a .bin file in the same folder"), std::string::npos)
      << error();
  put("pytorch_model.bin.index.json", R"({"metadata": 7, "weight_map": {"a": "s1.bin"}})");
  EXPECT_NE(error().find("metadata is number, expected an object"), std::string::npos) << error();
}

TEST_F(WeightFolderTest, FindsCheckpointsOfTraining) {
  const fs::path golden = fs::path(SNUG_SOURCE_DIR) / "tests/golden/files";
  const auto copy = [&](const std::string& prefix) {
    fs::copy(golden / "bert_model.ckpt.index", folder_ / (prefix + ".index"));
    fs::copy(golden / "bert_model.ckpt.data-00000-of-00001",
             folder_ / (prefix + ".data-00000-of-00001"));
  };
  copy("model.ckpt-343");
  EXPECT_NE(WeightFolder(folder_).find("cls.predictions.bias"), nullptr);
  copy("model.ckpt-100");
  EXPECT_NE(error().find("holds several checkpoints: model.ckpt-100, model.ckpt-343"),
            std::string::npos)
      << error();
}

// Google's folder: bert_config.json and bert_model.ckpt.
TEST(WeightFolderOfTensorFlow, HoldsAModel) {
  const fs::path folder = fs::path(SNUG_SOURCE_DIR) / "tests/golden/files";
  const ModelConfig config = load_config(folder);
  EXPECT_EQ(config.family, Family::kBert);
  const LoadReport report =
      check_weights(WeightFolder(folder), *make_model(config, Head::kMaskedLm), {});
  EXPECT_TRUE(report.made_new.empty());
  EXPECT_EQ(report.unused,
            (std::vector<std::string>{"cls.seq_relationship.bias", "cls.seq_relationship.weight"}));
}

TEST(RealWeights, MiniLmLoads) {
  const char* shared = std::getenv("SNUG_SHARED");
  const fs::path root =
      shared != nullptr ? fs::path(shared) : fs::path(SNUG_SOURCE_DIR) / ".." / "shared";
  const fs::path folder = root / "data/weights/all-MiniLM-L6-v2-fp16";
  if (!fs::exists(folder)) GTEST_SKIP() << "no model at " << folder << "; set SNUG_SHARED";
  const ModelConfig config = parse_config(read_small_file(folder / "config.json"), "config.json");
  EXPECT_EQ(config.num_hidden_layers, 6);
  const WeightFolder weights(folder);
  const TensorEntry* words = weights.find("embeddings.word_embeddings.weight");
  ASSERT_NE(words, nullptr);
  EXPECT_EQ(words->shape, (std::vector<int64_t>{config.vocab_size, config.hidden_size}));
  EXPECT_EQ(words->dtype, DType::kF16);
  double sum = 0;
  for (const std::string_view name : weights.names()) {
    const TensorEntry& tensor = *weights.find(name);
    if (!is_float(tensor.dtype)) continue;
    std::vector<float> values(tensor.elements());
    weights.read_as_f32(name, 0, values);
    for (const float value : values) sum += std::abs(double(value));
  }
  EXPECT_NEAR(sum, 1003914.1462, 0.001);  // as PyTorch adds them up
}

}  // namespace
}  // namespace snug
