#include "model/weight_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "model/config.h"

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
  EXPECT_NE(error().find("no model.safetensors"), std::string::npos) << error();
  put("pytorch_model.bin", "");
  put("tf_model.h5", "");
  EXPECT_NE(error().find("found pytorch_model.bin, tf_model.h5, which snug does not read"),
            std::string::npos)
      << error();
  EXPECT_NE(error().find("save_pretrained"), std::string::npos) << error();
  fs::remove_all(folder_);
  EXPECT_NE(error().find("no such model folder"), std::string::npos) << error();
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
