// Pickles as torch.save writes them, read as data. A pickle is a program for a stack machine that
// can import and call anything; this machine imports and calls nothing. It knows the few opcodes
// that a dictionary of tensors needs, a fixed list of names, and for each of those what it takes;
// everything else is an error (kInput) with opcode and place.
//
// Values lie in one table and refer to each other by index, so that nothing recurses and a list
// that holds itself is harmless. Time and memory follow the bytes read, and both are bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"

namespace snug {

inline constexpr uint64_t kMaxPickleBytes = 16 << 20;
inline constexpr size_t kMaxPickleValues = 1'000'000;

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInteger,
  kBigInteger,
  kReal,
  kText,
  kTuple,
  kList,
  kDict,
  kOrderedDict,
  kFunction,
  kStorageType,
  kDType,
  kStorage,
  kTensor
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  // A number or truth value; of names what they mean; of storages and tensors their index.
  int64_t number = 0;
  std::string text{};             // of big integers their bytes
  std::vector<uint32_t> items{};  // indices of values; of dictionaries keys and values in turn
};

// Elements of one type under a key; where they lie is the container's business. A storage can be a
// window on a larger one.
struct PickleStorage {
  std::string key;
  DType dtype = DType::kF32;
  uint64_t whole = 0;                // elements under the key
  uint64_t first = 0, elements = 0;  // of the window
};

struct PickleTensor {
  size_t storage = 0;
  uint64_t first = 0;  // element of the storage
  std::vector<int64_t> shape, strides;
};

class Unpickler {
 public:
  // Reads up to out.size() bytes at an offset, fewer only at the end.
  using Read = std::function<size_t(uint64_t offset, std::span<std::byte> out)>;

  // `origin` names the file, or file and record, in messages.
  Unpickler(Read read, std::string origin, uint64_t begin = 0);

  // One pickle, from the current place to its end. What it gives, and all values, live until the
  // next call.
  const PickleValue& load();
  const PickleValue& result() const { return values_[result_]; }
  const PickleValue& at(uint32_t index) const { return values_[index]; }
  uint64_t position() const { return position_; }  // behind the last pickle

  // Of the last pickle.
  const std::vector<PickleStorage>& storages() const { return storages_; }
  const std::vector<PickleTensor>& tensors() const { return tensors_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void refuse_name(const std::string& name) const;

  uint8_t next();
  template <class T>
  T number();
  std::string text(uint64_t bytes);
  std::string line();
  PickleValue long_integer();

  uint32_t add(PickleValue value);
  void push(PickleValue value) { stack_.push_back(add(std::move(value))); }
  uint32_t pop();
  uint32_t top() const;
  std::vector<uint32_t> pop_marked();

  bool step(uint8_t opcode);  // whether the machine knows the opcode
  bool step_constant(uint8_t opcode);
  bool step_memo(uint8_t opcode);
  void tuple(size_t count);
  void append(std::span<const uint32_t> items);
  void set(std::span<const uint32_t> keys_and_values);
  void global();
  void persistent();
  void reduce();
  void build();
  uint32_t rebuild_tensor(const PickleValue& arguments);

  // An item of a tuple, which must be of that kind.
  const PickleValue& item(const PickleValue& tuple, size_t index, PickleKind kind,
                          const char* what) const;
  uint64_t count_of(const PickleValue& value, const char* what) const;
  std::vector<int64_t> counts(const PickleValue& tuple, const char* what) const;
  void check_hooks(const PickleValue& value) const;

  Read read_;
  std::string origin_;
  uint64_t begin_ = 0, position_ = 0, opcode_at_ = 0;
  uint8_t opcode_ = 0;
  std::vector<std::byte> buffer_;
  uint64_t buffer_begin_ = 0;
  size_t buffered_ = 0;

  std::vector<PickleValue> values_;
  uint32_t result_ = 0;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::unordered_map<uint32_t, uint32_t> memo_;
  std::vector<PickleStorage> storages_;
  std::vector<PickleTensor> tensors_;
};

std::string_view pickle_kind_name(PickleKind kind);  // "a list", ...

}  // namespace snug
