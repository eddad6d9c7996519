// Pickles and zip archives for tests, piece by piece, so that each piece can be wrong.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug::pickle {

template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline const std::string kStart("\x80\x02", 2);
inline std::string text(std::string_view value) {
  return "X" + bytes_of(uint32_t(value.size())) + std::string(value);
}
inline std::string integer(int64_t value) { return "\x8a\x08" + bytes_of(value); }
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string result = "(";
  for (const std::string& item : items) result += item;
  return result + "t";
}
inline std::string numbers(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(integer(value));
  return tuple(items);
}
inline std::string call(const std::string& function, const std::vector<std::string>& arguments) {
  return function + tuple(arguments) + "R";
}
inline const std::string kFalse = "\x89", kNone = "N",
                         kOrderedDict = global("collections", "OrderedDict");
inline const std::string kHooks = kOrderedDict + ")R";
inline const std::string kRebuild = global("torch._utils", "_rebuild_tensor_v2");

inline std::string storage(const std::string& key, int64_t elements,
                           const std::string& type = "FloatStorage") {
  return tuple(
             {text("storage"), global("torch", type), text(key), text("cpu"), integer(elements)}) +
         "Q";
}
struct View {
  int64_t first = 0;
  std::vector<int64_t> shape, strides;
};
inline std::string tensor(const std::string& storage, const View& view) {
  return call(kRebuild, {storage, integer(view.first), numbers(view.shape), numbers(view.strides),
                         kFalse, kHooks});
}
// A dictionary with one entry.
inline std::string state_dict(const std::string& name, const std::string& value) {
  return kStart + "}" + text(name) + value + "s.";
}

// A zip archive of stored records, as torch.save's but for what makes it faster to write.
class Zip {
 public:
  Zip& add(const std::string& name, const std::string& data) {
    const std::string sizes =
        bytes_of(
            uint32_t(::crc32(0, reinterpret_cast<const Bytef*>(data.data()), uInt(data.size())))) +
        bytes_of(uint32_t(data.size())) + bytes_of(uint32_t(data.size())) +
        bytes_of(uint16_t(name.size())) + bytes_of(uint16_t(0));
    // version, flags, method, time, date
    const std::string common = std::string(10, '\0') + sizes;
    directory_ += "PK\x01\x02" + std::string(2, '\0') + common + std::string(10, '\0') +
                  bytes_of(uint32_t(records_.size())) + name;
    records_ += "PK\x03\x04" + common + name + data;
    ++count_;
    return *this;
  }
  std::string build() const {
    return records_ + directory_ + "PK\x05\x06" + std::string(4, '\0') + bytes_of(count_) +
           bytes_of(count_) + bytes_of(uint32_t(directory_.size())) +
           bytes_of(uint32_t(records_.size())) + std::string(2, '\0');
  }

 private:
  std::string records_, directory_;
  uint16_t count_ = 0;
};

}  // namespace snug::pickle
