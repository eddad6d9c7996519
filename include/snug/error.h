// How snug fails: one exception type with a kind. The command line maps the kind to its exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace snug {

// The value is the exit code of the program.
enum class ErrorKind {
  kUsage = 2,        // wrong flags or values
  kInput = 3,        // a data or model file that cannot be used
  kBudget = 4,       // does not fit into the stated memory
  kStorage = 5,      // the disk: full, read-only, failing
  kPeer = 6,         // another rank
  kNumbers = 7,      // NaN, infinities, loss scale
  kDevice = 8,       // no such device, driver, CUDA error
  kInterrupted = 9,  // stopped by a signal after saving
};

// what() says what happened and where; hint(), when not empty, says what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string hint = {})
      : std::runtime_error(message), kind_(kind), hint_(std::move(hint)) {}
  ErrorKind kind() const { return kind_; }
  const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

}  // namespace snug
