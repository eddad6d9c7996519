// What tests of weight files share: a folder that vanishes, all values of a file, refusals as text.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "core/error.h"
#include "model/tensor_file.h"

namespace snug {

// All values of a file, by name.
inline std::map<std::string, std::string> contents(const TensorFile& file) {
  std::map<std::string, std::string> result;
  for (const TensorEntry& tensor : file.tensors()) {
    std::string bytes(tensor.bytes(), '\0');
    file.read_bytes(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    result[tensor.name] =
        fmt::format("{} {} ", dtype_name(tensor.dtype), format_shape(tensor.shape)) + bytes;
  }
  return result;
}

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string name = std::filesystem::temp_directory_path() / "snug-files-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path put(const std::string& name, std::string_view bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }

  // What the error says that `read` throws, which must be one of input; "" where all goes well.
  static std::string error_in(const auto& read) {
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "";
  }
  static void expect_part(const std::string& error, const std::string& expected) {
    EXPECT_NE(error.find(expected), std::string::npos)
        << "expected: " << expected << "\nfound: " << error;
  }

  std::filesystem::path folder_;
};

}  // namespace snug
