#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/error.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// A folder of the test's own, removed with it.
class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    std::string name = fs::temp_directory_path() / "snug-safetensors-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~SafetensorsTest() override { fs::remove_all(folder_); }

  fs::path put(std::string_view contents, const std::string& name = "x.safetensors") const {
    std::ofstream(folder_ / name, std::ios::binary) << contents;
    return folder_ / name;
  }

  fs::path folder_;
};

std::string with_length(std::string_view header, std::string_view data = {}, int64_t length = -1) {
  const uint64_t stated = length < 0 ? header.size() : uint64_t(length);
  std::string file(sizeof(stated), '\0');
  std::memcpy(file.data(), &stated, sizeof(stated));
  return file + std::string(header) + std::string(data);
}

// The error that reading `header` gives, "" where there is none; any other kind of failure fails
// the test.
std::string header_error(std::string_view header, uint64_t data_bytes) {
  try {
    parse_safetensors_header(header, data_bytes, "x.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "";
}

std::string file_error(const fs::path& path) {
  try {
    const SafetensorsFile file(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "";
}

std::string one(std::string_view fields) { return R"({"w":{)" + std::string(fields) + "}}"; }
std::string tensor(std::string_view name, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"U8","shape":[4],"data_offsets":{}}})", name, offsets);
}

std::string repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(SafetensorsHeader, RefusesWhatIsWrongAndSaysWhat) {
  struct Case {
    std::string header;
    uint64_t data_bytes;
    std::string message;
  };
  const std::string f32 = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const Case cases[] = {
      {"", 0, "empty header"},
      {"   ", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{' at byte 0"},
      {"\xef\xbb\xbf{}", 0, "does not begin with '{' at byte 0"},
      {"{", 0, "not valid JSON at byte 2"},
      {"{} x", 0, "not valid JSON at byte 4"},
      {"{\"\xff\":1}", 0, "not valid JSON at byte 3"},
      {std::string("{}\0{}", 5), 0, "NUL at byte 2"},
      {R"({"w":1})", 0, R"("w" is number 1, expected an object)"},
      {R"({"w":)" + std::string(100'000, '['), 0, R"("w" is an array, expected an object)"},
      {one(R"("dtype":)" + std::string(100'000, '[')), 0, "dtype has an array, expected a string"},
      {one(R"("shape":)" + std::string(100'000, '[')), 0, "shape has an array"},
      {R"({"w":)" + std::string(100'000, '{'), 0, "not valid JSON"},
      {one(f32 + "," + f32), 8, R"(tensor "w": duplicate field "dtype")"},
      {"{" + tensor("a", "[0,4]") + "," + tensor("a", "[4,8]") + "}", 8,
       R"(duplicate tensor name "a")"},
      {"{" + tensor("a", "[0,4]") + "," + tensor("b", "[2,6]") + "}", 6,
       R"(tensors "a" and "b" overlap at byte 2)"},
      {"{" + tensor("a", "[0,4]") + "," + tensor("b", "[6,10]") + "}", 10,
       R"(bytes 4 to 6 of the data, before tensor "b")"},
      {one(f32), 9, "1 bytes after the last tensor"},
      {"{}", 3, "3 bytes after the last tensor"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8,
       "data_offsets [8, 0], expected begin <= end <= 8"},
      {one(f32), 7, "data_offsets [0, 8], expected begin <= end <= 7"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), 8,
       "data_offsets has negative number -8, expected an array of two unsigned integers"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,1e3])"), 8,
       "data_offsets has number 1e3"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,1.5])"), 8,
       "data_offsets has number 1.5"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":["0",8])"), 8,
       R"(data_offsets has string "0")"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775808])"), 8,
       "data_offsets [0, 9223372036854775808], expected"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616])"), 8,
       "data_offsets has number 18446744073709551616"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[8])"), 8, "data_offsets has 1 numbers"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), 8,
       "data_offsets has a third number"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":8)"), 8, "data_offsets has number 8"},
      {one(R"("dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8])"), 8,
       "the size of shape [4294967296, 4294967296, 4] overflows"},
      {one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"), 8,
       "shape has dimension 9223372036854775808"},
      {one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,8])"), 8,
       "shape has negative number -1"},
      {one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,8])"), 8, "shape has number 1.0"},
      {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8,
       "F32 of shape [3] takes 12 bytes, but data_offsets [0, 8] hold 8"},
      {one(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"), 8,
       R"(unsupported dtype "F8_E4M3" for tensor "w")"},
      {one(R"("dtype":"I4","shape":[8],"data_offsets":[0,8])"), 8, R"(unsupported dtype "I4")"},
      {one(R"("dtype":null,"shape":[8],"data_offsets":[0,8])"), 8,
       "dtype has null, expected a string"},
      {one(R"("shape":[8],"data_offsets":[0,8])"), 8, R"(tensor "w": dtype is missing)"},
      {one(R"("dtype":"F32","data_offsets":[0,8])"), 8, "shape is missing"},
      {one(R"("dtype":"F32","shape":[2])"), 8, "data_offsets is missing"},
      {one(f32 + R"(,"stride":[1])"), 8, R"(unknown field "stride")"},
      {R"({"__metadata__":{"a":1}})", 0, R"(__metadata__ "a" is number 1, expected a string)"},
      {R"({"__metadata__":{"a":{}}})", 0, R"(__metadata__ "a" is an object, expected a string)"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, R"(duplicate key "a" in __metadata__)"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, R"(duplicate key "__metadata__")"},
      {R"({"__metadata__":"pt"})", 0, R"("__metadata__" is string "pt", expected an object)"},
      {one(R"("dtype":"U8","shape":[1)" + repeated(",1", 64) + R"(],"data_offsets":[0,1])"), 1,
       "more than 64 dimensions"},
  };
  for (const Case& c : cases) {
    const std::string message = header_error(c.header, c.data_bytes);
    EXPECT_TRUE(message.starts_with("x.safetensors: ")) << message;
    EXPECT_NE(message.find(c.message), std::string::npos)
        << c.header.substr(0, 200) << "\n  got:      " << message << "\n  expected: " << c.message;
    EXPECT_LT(message.size(), 600u);
  }
}

TEST(SafetensorsHeader, MessagesAreBoundedAndPrintable) {
  const std::string message =
      header_error(R"({"\u001b[2J)" + std::string(1'000'000, 'n') + R"(":1})", 0);
  EXPECT_LT(message.size(), 400u);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(header_error("{\"" + std::string(1'000'000, 'n'), 0).size(), 400u);
}

TEST(SafetensorsHeader, AcceptsWhatIsUnusualButLegal) {
  EXPECT_EQ(header_error("{}", 0), "");
  EXPECT_EQ(header_error("  \n{ }  ", 0), "");
  const SafetensorsHeader header = parse_safetensors_header(
      R"( {"scalar":{"data_offsets":[0,2],"dtype":"BF16","shape":[]},
          "empty":{"dtype":"F64","shape":[3,0],"data_offsets":[2,2]},
          "unaligned":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},
          "__metadata__":{"format":"pt"}}   )",
      6, "x");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.find("scalar")->elements(), 1u);
  EXPECT_EQ(header.find("empty")->elements(), 0u);
  EXPECT_EQ(header.find("unaligned")->bytes(), 4u);
  EXPECT_EQ(header.find("other"), nullptr);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, AMillionTensorsTakeSeconds) {
  constexpr int kTensors = 1'000'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header +=
        fmt::format(R"({}"layer.{}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                    i > 0 ? "," : "", i, i, i + 1);
  }
  header += "}";
  ASSERT_LT(header.size(), kMaxSafetensorsHeaderBytes);
  const auto start = std::chrono::steady_clock::now();
  const SafetensorsHeader parsed = parse_safetensors_header(header, kTensors, "x");
  // 2 s without sanitizers.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_EQ(parsed.find("layer.999999.weight")->begin, 8 + header.size() + 999'999);
}

TEST_F(SafetensorsTest, RefusesBadLengths) {
  EXPECT_NE(file_error(put("")).find("0 bytes, too short for the header length"),
            std::string::npos);
  EXPECT_NE(file_error(put("1234567")).find("7 bytes, too short"), std::string::npos);
  EXPECT_NE(file_error(put(with_length("{}", "", 3))).find("header length 3 exceeds file size 10"),
            std::string::npos);
  EXPECT_NE(file_error(put(std::string(8, '\xff') + "{}"))
                .find("header length 18446744073709551615 exceeds"),
            std::string::npos);
  EXPECT_NE(file_error(put(with_length(""))).find("empty header"), std::string::npos);
  EXPECT_NE(file_error(folder_).find("is a directory"), std::string::npos);
  // A sparse file of one byte more than the cap.
  const fs::path path = put(with_length("", "", int64_t(kMaxSafetensorsHeaderBytes) + 1));
  fs::resize_file(path, 9 + kMaxSafetensorsHeaderBytes);
  EXPECT_NE(file_error(path).find("expected at most 100000000"), std::string::npos);
}

TEST_F(SafetensorsTest, RoundTripOfEveryType) {
  const DType dtypes[] = {DType::kF64,  DType::kI64, DType::kF32, DType::kI32, DType::kF16,
                          DType::kBF16, DType::kI16, DType::kI8,  DType::kU8,  DType::kBool};
  std::vector<TensorEntry> declared;
  for (const DType dtype : dtypes) {
    declared.push_back(
        {.name = fmt::format("t \"{}\"", dtype_name(dtype)), .dtype = dtype, .shape = {3, 5}});
    declared.push_back(
        {.name = fmt::format("empty.{}", dtype_name(dtype)), .dtype = dtype, .shape = {0}});
  }
  const auto contents = [](const TensorEntry& t) {
    std::vector<std::byte> bytes(t.shape[0] == 0 ? 0 : 15 * dtype_bytes(t.dtype));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 7 + size_t(t.dtype));
    return bytes;
  };
  const fs::path path = folder_ / "all.safetensors";
  SafetensorsWriter writer(path, declared);
  for (const TensorEntry& t : declared) writer.write_bytes(t.name, contents(t));
  EXPECT_FALSE(fs::exists(path));
  writer.commit();
  EXPECT_EQ(fs::file_size(path), writer.file_bytes());

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), declared.size());
  for (const TensorEntry& t : declared) {
    const TensorEntry* found = file.find(t.name);
    ASSERT_NE(found, nullptr) << t.name;
    EXPECT_EQ(found->dtype, t.dtype);
    EXPECT_EQ(found->shape, t.shape);
    std::vector<std::byte> bytes(found->bytes());
    file.read_bytes(*found, 0, bytes);
    EXPECT_EQ(bytes, contents(t));
  }
  EXPECT_EQ(file.tensors()[0].begin % 8, 0u);
}

TEST_F(SafetensorsTest, FloatsAreConvertedBothWays) {
  std::vector<float> values(30'000);  // more than one buffer
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = float(int(i % 256) - 128) / 64;  // exact in all types
  }
  const fs::path path = folder_ / "floats.safetensors";
  const std::vector<int64_t> shape = {int64_t(values.size())};
  SafetensorsWriter writer(path, {{"d", DType::kF64, shape},
                                  {"f", DType::kF32, shape},
                                  {"h", DType::kF16, shape},
                                  {"b", DType::kBF16, shape}});
  const std::vector<double> wide(values.begin(), values.end());
  writer.write_bytes("d", std::as_bytes(std::span(wide)));
  for (const char* name : {"f", "h", "b"}) {
    writer.write(name, std::span(values).first(7));  // in pieces
    writer.write(name, std::span(values).subspan(7));
  }
  writer.commit();
  const SafetensorsFile file(path);
  for (const char* name : {"d", "f", "h", "b"}) {
    std::vector<float> read(values.size(), -1);
    file.read_as_f32(*file.find(name), 0, read);
    EXPECT_EQ(read, values) << name;
    std::vector<float> part(101);
    file.read_as_f32(*file.find(name), 4099, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 4099)) << name;
  }
}

TEST_F(SafetensorsTest, UnalignedDataIsRead) {
  const float values[] = {1.5f, -2.0f};
  const std::string data =
      "\x01" + std::string(reinterpret_cast<const char*>(values), sizeof(values));
  const SafetensorsFile file(put(with_length(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
      data)));
  float read[2];
  file.read_as_f32(*file.find("w"), 0, read);
  EXPECT_EQ(read[1], -2.0f);
}

TEST_F(SafetensorsTest, NonFiniteValuesAreCountedUnlessAllowed) {
  const float inf = std::numeric_limits<float>::infinity();
  SafetensorsWriter writer(folder_ / "nan.safetensors",
                           {{"d", DType::kF64, {1}}, {"w", DType::kF32, {4}}});
  const double beyond = 1e300;  // infinite as fp32
  writer.write_bytes("d", std::as_bytes(std::span(&beyond, 1)));
  writer.write("w", std::vector<float>{NAN, 1, -inf, 2});
  writer.commit();
  const SafetensorsFile file(folder_ / "nan.safetensors");
  std::vector<float> read(4);
  try {
    file.read_as_f32(*file.find("w"), 0, read);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_NE(std::string(error.what()).find("tensor \"w\" has 2 NaN or infinite values"),
              std::string::npos)
        << error.what();
  }
  file.read_as_f32(*file.find("w"), 0, read, NonFinite::kAllow);
  EXPECT_EQ(read[3], 2);
  EXPECT_THROW(file.read_as_f32(*file.find("d"), 0, std::span(read).first(1)), Error);
}

TEST_F(SafetensorsTest, RefusesIntegersAsFloatsAndReadsPastTheEnd) {
  SafetensorsWriter writer(folder_ / "x.safetensors",
                           {{"i", DType::kI64, {1}}, {"w", DType::kF32, {4}}});
  writer.write_bytes("i", std::vector<std::byte>(8));
  writer.write("w", std::vector<float>(4));
  writer.commit();
  const SafetensorsFile file(folder_ / "x.safetensors");
  std::vector<float> read(4);
  EXPECT_THROW(file.read_as_f32(*file.find("i"), 0, std::span(read).first(1)), Error);
  EXPECT_THROW(file.read_as_f32(*file.find("w"), 1, read), Error);
  EXPECT_THROW(file.read_as_f32(*file.find("w"), UINT64_MAX, read), Error);
}

TEST_F(SafetensorsTest, TruncationWhileReadingIsAnError) {
  SafetensorsWriter writer(folder_ / "x.safetensors", {{"w", DType::kF32, {4}}});
  writer.write("w", std::vector<float>(4));
  writer.commit();
  const SafetensorsFile file(folder_ / "x.safetensors");
  fs::resize_file(folder_ / "x.safetensors", fs::file_size(folder_ / "x.safetensors") - 1);
  std::vector<float> read(4);
  EXPECT_THROW(file.read_as_f32(*file.find("w"), 0, read), Error);
}

TEST_F(SafetensorsTest, WritingOverTheFileBeingReadIsSafe) {
  const fs::path path = folder_ / "model.safetensors";
  const auto write = [&](const std::vector<float>& values) {
    SafetensorsWriter writer(path, {{"w", DType::kF32, {2}}});
    writer.write("w", values);
    writer.commit();
  };
  write({1, 2});
  const SafetensorsFile old(path);
  write({3, 4});
  std::vector<float> read(2);
  old.read_as_f32(*old.find("w"), 0, read);
  EXPECT_EQ(read, (std::vector<float>{1, 2}));
  const SafetensorsFile fresh(path);
  fresh.read_as_f32(*fresh.find("w"), 0, read);
  EXPECT_EQ(read, (std::vector<float>{3, 4}));
}

TEST_F(SafetensorsTest, AnUnfinishedFileLeavesNothing) {
  { SafetensorsWriter writer(folder_ / "x.safetensors", {{"w", DType::kF32, {2}}}); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

// Any damage either is an error or changes values only: the format has no checksum.
TEST_F(SafetensorsTest, EveryBitFlipAndTruncationIsCleanOrChangesDataOnly) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[3],"data_offsets":[8,14]}})";
  const std::string whole = with_length(header, std::string(14, '\x3c'));
  const auto load = [&](const std::string& bytes) {
    const SafetensorsFile file(put(bytes));
    for (const TensorEntry& t : file.tensors()) {
      if (!is_float(t.dtype)) continue;
      std::vector<float> values(t.elements());
      file.read_as_f32(t, 0, values, NonFinite::kAllow);
    }
  };
  load(whole);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = char(damaged[bit / 8] ^ 1 << bit % 8);
    try {
      load(damaged);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      EXPECT_LT(bit / 8, 8 + header.size())
          << "data has no structure to be wrong: " << error.what();
    }
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(load(whole.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(load(whole + "x"), Error);
}

}  // namespace
}  // namespace snug
