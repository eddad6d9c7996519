#include "model/torch_file.h"

#include <cstring>
#include <fstream>
#include <functional>

#include "model/file_test_util.h"
#include "model/safetensors.h"
#include "model/torch_test_util.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using namespace pickle;

const fs::path kGolden = fs::path(SNUG_SOURCE_DIR) / "tests/golden/files";

class TorchFileTest : public FileTest {
 protected:
  fs::path put(std::string_view bytes) const { return FileTest::put("x.bin", bytes); }

  // each(bit) with the file x.bin holding `good` but for that bit.
  void over_flipped_bits(const std::string& good,
                         const std::function<void(size_t bit)>& each) const {
    std::fstream file(put(good), std::ios::in | std::ios::out | std::ios::binary);
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      const auto place = std::streamoff(bit / 8);
      file.seekp(place).put(char(uint8_t(good[bit / 8]) ^ (1u << bit % 8))).flush();
      each(bit);
      file.seekp(place).put(good[bit / 8]).flush();
    }
  }

  // What opening the file and reading all of it gives, "" where all goes well.
  std::string error_of(std::string_view bytes) const {
    return error_in([&] { contents(TorchFile(put(bytes))); });
  }
  void expect_error(std::string_view bytes, const std::string& expected) const {
    expect_part(error_of(bytes), expected);
  }
};

std::string file_bytes(const fs::path& path) { return read_small_file(path); }

TEST_F(TorchFileTest, ReadsWhatPyTorchWrites) {
  const auto expected = contents(SafetensorsFile(kGolden / "tensors.safetensors"));
  ASSERT_EQ(expected.size(), 22u);
  for (const char* name : {"tensors.zip.bin", "tensors.legacy.bin"}) {
    const TorchFile file(kGolden / name);
    const auto found = contents(file);
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [tensor, values] : expected) {
      EXPECT_TRUE(found.contains(tensor) && found.at(tensor) == values) << name << " " << tensor;
    }
  }
}

TEST_F(TorchFileTest, ConvertsEveryFloatingPointType) {
  const SafetensorsFile expected(kGolden / "tensors.safetensors");
  const TorchFile file(kGolden / "tensors.zip.bin");
  for (const char* name : {"f32", "f16", "bf16", "f64", "transposed", "every_second", "permuted"}) {
    const TensorEntry& tensor = *file.find(name);
    std::vector<float> found(tensor.elements()), wanted(tensor.elements());
    file.read_as_f32(tensor, 0, found);
    expected.read_as_f32(*expected.find(name), 0, wanted);
    EXPECT_EQ(found, wanted) << name;
    if (found.size() > 2) {  // from inside
      std::vector<float> part(found.size() - 2);
      file.read_as_f32(tensor, 1, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), wanted.begin() + 1)) << name;
    }
  }
  std::vector<float> values(1);
  EXPECT_THROW(file.read_as_f32(*file.find("i64"), 0, values), Error);
}

// A file with one tensor of six values.
const std::string kSix(24, '\x3f');
std::string good_pickle() { return state_dict("w", tensor(storage("0", 6), {0, {2, 3}, {3, 1}})); }
Zip good_zip(const std::string& pickle = good_pickle(), const std::string& values = kSix) {
  return Zip()
      .add("m/data.pkl", pickle)
      .add("m/byteorder", "little")
      .add("m/data/0", values)
      .add("m/version", "3\n");
}

std::string replaced(std::string bytes, std::string_view from, std::string_view to,
                     bool last = false) {
  const size_t at = last ? bytes.rfind(from) : bytes.find(from);
  EXPECT_NE(at, std::string::npos);
  return bytes.replace(at, from.size(), to);
}

// `value` over the bytes at `place` of the directory's entry of a record.
template <class T>
std::string with_entry(std::string bytes, const std::string& record, size_t place, T value) {
  const size_t name = bytes.rfind(record);
  return bytes.replace(name - 46 + place, sizeof(T), bytes_of(value));
}
template <class T>
std::string with_header(std::string bytes, const std::string& record, size_t place, T value) {
  const size_t name = bytes.find(record);
  return bytes.replace(name - 30 + place, sizeof(T), bytes_of(value));
}
template <class T>
std::string with_end(std::string bytes, size_t place, T value) {
  return bytes.replace(bytes.size() - 22 + place, sizeof(T), bytes_of(value));
}

TEST_F(TorchFileTest, AcceptsWhatIsUnusualButLegal) {
  EXPECT_EQ(error_of(good_zip().build()), "");
  // No folder, no byte order.
  EXPECT_EQ(error_of(Zip().add("data.pkl", good_pickle()).add("data/0", kSix).build()), "");
  const std::string commented = with_end(good_zip().build(), 20, uint16_t(5)) + "hello";
  EXPECT_EQ(error_of(commented), "");
  // All checksums zero: torch.serialization.set_crc32_options(False).
  std::string unchecked = good_zip().build();
  for (const char* name : {"m/data.pkl", "m/byteorder", "m/data/0", "m/version"}) {
    unchecked = with_header(with_entry(unchecked, name, 16, uint32_t(0)), name, 14, uint32_t(0));
  }
  EXPECT_EQ(error_of(unchecked), "");
}

TEST_F(TorchFileTest, RefusesBrokenArchives) {
  const std::string good = good_zip().build();
  expect_error("", "is neither a zip archive nor a legacy file of torch.save");
  expect_error("hello, world", "is neither a zip archive nor a legacy file");
  expect_error("version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
               "is a Git LFS pointer");
  expect_error("PK\x05\x06" + std::string(18, '\0'),
               "begins like a zip archive but not with a record");
  expect_error(good.substr(0, good.size() - 1), "the end of the zip archive is missing");
  expect_error(good.substr(0, 40), "the end of the zip archive is missing");
  expect_error(good + "x", "the end of the zip archive is missing");
  expect_error(with_end(good, 4, uint16_t(1)), "split zip archive");
  expect_error(with_end(good, 10, uint16_t(3)), "split zip archive");
  expect_error(with_end(with_end(good, 8, uint16_t(3)), 10, uint16_t(3)),
               "behind the last entry of its zip directory");
  expect_error(with_end(with_end(good, 8, uint16_t(5)), 10, uint16_t(5)),
               "5 zip records in a directory of");
  expect_error(with_end(with_end(good, 8, uint16_t(60'000)), 10, uint16_t(60'000)),
               "60000 zip records in a directory");
  expect_error(with_end(good, 12, uint32_t(1)), "zip directory at byte");
  expect_error(with_end(good, 16, uint32_t(UINT32_MAX)), "zip directory at byte");
  expect_error(with_entry(good, "m/data/0", 0, uint32_t(7)),
               "record 2 of its zip directory is broken");
  expect_error(with_entry(good, "m/version", 28, uint16_t(60'000)), "is cut off");
}

TEST_F(TorchFileTest, RefusesRecordsThatLie) {
  const std::string good = good_zip().build();
  const std::string compressed =
      with_header(with_entry(good, "m/data/0", 10, uint16_t(8)), "m/data/0", 8, uint16_t(8));
  expect_error(compressed, "record \"m/data/0\": is compressed");
  expect_error(with_entry(good, "m/data/0", 24, uint32_t(24'000'000)), "24000000 bytes take 24");
  expect_error(with_entry(good, "m/data/0", 8, uint16_t(1)), "is encrypted");
  expect_error(with_entry(good, "m/data/0", 42, uint32_t(1)), "and the zip directory disagree");
  expect_error(with_entry(good, "m/data/0", 42, uint32_t(UINT32_MAX - 1)),
               "behind the end of the file");
  expect_error(with_entry(good, "m/data/0", 42, uint32_t(UINT32_MAX)),
               "its zip64 field is missing");
  expect_error(with_header(good, "m/data/0", 8, uint16_t(8)), "and the zip directory disagree");
  expect_error(with_header(good, "m/data/0", 18, uint32_t(23)), "and the zip directory disagree");
  expect_error(with_header(good, "m/data/0", 28, uint16_t(60'000)),
               "reach behind the end of the file");
  expect_error(with_header(good, "m/data/0", 28, uint16_t(4)), "overlaps what follows it");
  expect_error(replaced(good, "m/data/0", "m/data/1"), "and the zip directory disagree");
  expect_error(replaced(good, "m/data/0", "m/data/1", /*last=*/true),
               "and the zip directory disagree");
  const auto renamed = [](const std::string& name) {
    return Zip().add("m/data.pkl", good_pickle()).add(name, kSix).build();
  };
  expect_error(renamed("m/../../data/0"), "expected a relative name without ..");
  expect_error(renamed(".."), "expected a relative name without ..");
  expect_error(renamed("/etc/passwd"), "expected a relative name without ..");
  expect_error(renamed("c:/x"), "expected a relative name without ..");
  expect_error(renamed("m\\data"), "expected a relative name without ..");
  expect_error(renamed(std::string("m/data/0\0x", 10)), "expected a relative name without ..");
  expect_error(renamed(""), "expected a relative name without ..");
  expect_error(good_zip().add("m/data/0", kSix).build(), "record \"m/data/0\" is there twice");
  // Values that changed behind the writer's back.
  std::string changed = good;
  changed[changed.find(kSix)] = '\x3e';
  expect_error(changed, "record \"m/data/0\" is damaged: its checksum is");
  changed = good;
  changed[changed.find("w") + 1] ^= 1;
  expect_error(changed, "record \"m/data.pkl\" is damaged");
}

TEST_F(TorchFileTest, ReadsZip64AndRefusesItsLies) {
  const std::string plain = good_zip().build(), end = plain.substr(plain.size() - 22);
  uint32_t bytes, offset;
  std::memcpy(&bytes, end.data() + 12, 4);
  std::memcpy(&offset, end.data() + 16, 4);
  const auto build = [&](uint64_t count, uint64_t stated_bytes, uint64_t stated_offset,
                         uint64_t place) {
    return plain.substr(0, plain.size() - 22) + "PK\x06\x06" + bytes_of(uint64_t(44)) +
           std::string(12, '\0') + bytes_of(count) + bytes_of(count) + bytes_of(stated_bytes) +
           bytes_of(stated_offset) + "PK\x06\x07" + std::string(4, '\0') + bytes_of(place) +
           bytes_of(uint32_t(1)) +
           with_end(with_end(end, 16, uint32_t(UINT32_MAX)), 12, uint32_t(UINT32_MAX));
  };
  const uint64_t place = plain.size() - 22;
  EXPECT_EQ(error_of(build(4, bytes, offset, place)), "");
  expect_error(build(5, bytes, offset, place), "zip and zip64 structures disagree");
  expect_error(build(4, bytes + 1, offset, place), "expected to end at byte");
  expect_error(build(4, UINT64_MAX, offset, place), "expected to end at byte");
  expect_error(build(4, bytes, UINT64_MAX, place), "expected to end at byte");
  expect_error(build(4, bytes, offset, place - 1), "is not at byte");
  expect_error(build(4, bytes, offset, UINT64_MAX), "is not at byte");
}

TEST_F(TorchFileTest, RefusesWhatIsNotAStateDict) {
  const auto of = [](const std::string& pickle) { return good_zip(pickle).build(); };
  expect_error(of(kStart + "]."), "holds a list, expected a state dict");
  // Which holds itself.
  expect_error(of(kStart + std::string("]q\x00h\x00", 5) + "a."), "holds a list");
  expect_error(of(state_dict("optimizer", "}")),
               "entry \"optimizer\" is a dict, expected a tensor");
  expect_error(of(state_dict("epoch", integer(3))), "entry \"epoch\" is an integer");
  expect_error(of(kStart + "}" + integer(7) + integer(3) + "s."), "entry 7 is an integer");
  const std::string w = tensor(storage("0", 6), {0, {2, 3}, {3, 1}});
  expect_error(of(kStart + "}(" + text("w") + w + text("w") + w + "u."),
               "duplicate tensor name \"w\"");
  expect_error(of(good_pickle() + "x"), "1 bytes behind the pickle");
  expect_error(Zip().add("m/byteorder", "little").build(), "expected one record data.pkl");
  expect_error(good_zip().add("n/data.pkl", good_pickle()).build(), "expected one record data.pkl");
  expect_error(good_zip().add("m/constants.pkl", "x").build(), "is a TorchScript program");
  expect_error(Zip()
                   .add("m/data.pkl", good_pickle())
                   .add("m/byteorder", "big")
                   .add("m/data/0", kSix)
                   .build(),
               "byteorder is \"big\"");
  expect_error(file_bytes(kGolden / "module.bin"),
               "names \"torch.nn.modules.linear.Linear\", which is code");
}

TEST_F(TorchFileTest, RefusesStoragesThatLie) {
  expect_error(good_zip(good_pickle(), kSix + "1234").build(),
               "its storage \"0\" has 6 elements of fp32, but 28 bytes are there");
  expect_error(good_zip(good_pickle(), kSix.substr(4)).build(), "but 20 bytes are there");
  const auto of = [](const std::string& value) { return good_zip(state_dict("w", value)).build(); };
  expect_error(of(tensor(storage("0", 6, "DoubleStorage"), {0, {2}, {1}})),
               "has 6 elements of fp64, but 24 bytes are there");
  expect_error(of(tensor(storage("0", 1000), {0, {1000}, {1}})), "has 1000 elements of fp32");
  expect_error(of(tensor(storage("1", 6), {0, {6}, {1}})), "record \"m/data/1\" is missing");
  expect_error(of(tensor(storage("../../../etc/passwd", 6), {0, {6}, {1}})), "is missing");
  expect_error(of(tensor(storage("0", 6), {3, {4}, {1}})), "reaches behind the 6 elements");
  EXPECT_EQ(error_of(of(tensor(storage("0", 6), {1, {2, 2}, {1, 3}}))), "");
}

TEST_F(TorchFileTest, RefusesBrokenLegacyFiles) {
  const std::string good = file_bytes(kGolden / "tensors.legacy.bin");
  EXPECT_EQ(error_of(good), "");
  expect_error(good.substr(0, good.size() - 1), "but the file ends at");
  expect_error(good + "x", "1 bytes behind the last storage");
  expect_error(good.substr(0, 20), "without STOP");
  std::string other = good;
  other[other.find(std::string("M\xe9\x03", 3)) + 1] = '\x01';
  expect_error(other, "a legacy file of torch.save, but not of version 1001");
  other = good;
  other[other.find("little_endian") + 15] = '\x89';  // behind the text: BINPUT, index, NEWTRUE
  expect_error(other, "written on a big-endian machine");
}

TEST_F(TorchFileTest, EveryFlippedBitOfAnArchiveIsFoundOrHarmless) {
  const std::string good = file_bytes(kGolden / "small.zip.bin");
  const auto expected = contents(TorchFile(put(good)));
  size_t refused = 0;
  over_flipped_bits(good, [&](size_t bit) {
    try {
      ASSERT_EQ(contents(TorchFile(folder_ / "x.bin")), expected)
          << "byte " << bit / 8 << ", bit " << bit % 8;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kInput);
      ++refused;
    }
  });
  EXPECT_GT(refused, 2 * good.size());
}

TEST_F(TorchFileTest, EveryLengthOfAFileIsRefused) {
  for (const char* name : {"small.zip.bin", "small.legacy.bin"}) {
    const std::string good = file_bytes(kGolden / name);
    for (size_t length = 0; length < good.size(); ++length) {
      ASSERT_NE(error_of(good.substr(0, length)), "") << name << " " << length;
    }
  }
}

// There is no checksum in it: values and names may change, and that is all that may happen.
TEST_F(TorchFileTest, FlippedBitsOfALegacyFileDoNoHarm) {
  over_flipped_bits(file_bytes(kGolden / "small.legacy.bin"), [&](size_t) {
    try {
      contents(TorchFile(folder_ / "x.bin"));
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kInput);
    }
  });
}

}  // namespace
}  // namespace snug
