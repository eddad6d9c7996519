// Refusals of files, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace snug {

// What the error says that `work` throws, which must be one of input; or "no error".
std::string error_of(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "no error";
}

// rows: pairs of what is read and exactly what is said about it.
void expect_errors(const auto& rows, const auto& read) {
  for (const auto& [text, message] : rows) {
    EXPECT_EQ(error_of([&, &input = text] { read(input); }), message);
  }
}

}  // namespace snug
