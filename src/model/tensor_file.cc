#include "model/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/error.h"

namespace snug {
namespace {

static_assert(std::endian::native == std::endian::little, "the data in files is little-endian");

constexpr uint64_t kReadElements = 1 << 20;  // per read; the page cache is dropped behind each

void check_range(const TensorFile& file, const TensorEntry& tensor, uint64_t first, uint64_t count,
                 uint64_t available) {
  if (first > available || count > available - first) {
    fail(ErrorKind::kInput, "{}: tensor {} of shape {} ends at {}, asked for {} to {}",
         file.path().string(), in_quotes(tensor.name), format_shape(tensor.shape), available, first,
         first + count);
  }
}

// out.size() 16-bit values lie in the upper half of `out`; each is read before the writes reach it.
template <class Widen>
void widen_in_place(std::span<float> out, Widen widen) {
  const std::byte* narrow = reinterpret_cast<const std::byte*>(out.data()) + 2 * out.size();
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, narrow + 2 * i, sizeof(bits));
    out[i] = widen(bits);
  }
}

// read(first_byte, bytes) gives stored bytes.
template <class Read>
void read_half(const Read& read, uint64_t first, DType dtype, std::span<float> out) {
  read(first, std::as_writable_bytes(out).subspan(2 * out.size()));
  if (dtype == DType::kF16) {
    widen_in_place(out, half_to_float);
  } else {
    widen_in_place(out, bfloat16_to_float);
  }
}

template <class Read>
void read_double(const Read& read, uint64_t first, std::span<float> out) {
  std::array<double, kTensorBufferBytes / sizeof(double)> buffer;
  for (size_t done = 0; done < out.size();) {
    const auto piece = std::span(buffer).first(std::min(buffer.size(), out.size() - done));
    read(first + sizeof(double) * done, std::as_writable_bytes(piece));
    std::ranges::transform(piece, out.begin() + ptrdiff_t(done),
                           [](double value) { return float(value); });
    done += piece.size();
  }
}

size_t count_non_finite(std::span<const float> values) {
  return size_t(std::ranges::count_if(values, [](float value) { return !std::isfinite(value); }));
}

}  // namespace

std::string format_shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxShown = 120;
  std::string result = "\"" + std::string(text.substr(0, kMaxShown));
  for (char& c : result) {
    if (uint8_t(c) < 0x20 || c == 0x7f) c = '?';
  }
  return result + (text.size() > kMaxShown ? "...\"" : "\"");
}

void TensorList::sort_names(std::string_view origin) {
  by_name.resize(tensors.size());
  std::iota(by_name.begin(), by_name.end(), 0u);
  std::ranges::sort(by_name, {}, [&](uint32_t i) { return std::string_view(tensors[i].name); });
  for (size_t i = 1; i < by_name.size(); ++i) {
    const std::string& name = tensors[by_name[i]].name;
    if (name == tensors[by_name[i - 1]].name) {
      fail(ErrorKind::kInput, "{}: duplicate tensor name {}", origin, in_quotes(name));
    }
  }
}

const TensorEntry* TensorList::find(std::string_view name) const {
  const auto name_of = [&](uint32_t i) { return std::string_view(tensors[i].name); };
  const auto found = std::ranges::lower_bound(by_name, name, {}, name_of);
  return found != by_name.end() && name_of(*found) == name ? &tensors[*found] : nullptr;
}

void TensorFile::read_as_f32(const TensorEntry& tensor, uint64_t first_element,
                             std::span<float> out, NonFinite policy) const {
  if (!is_float(tensor.dtype)) {
    fail(ErrorKind::kInput, "{}: tensor {} is {}, expected a floating-point type", path().string(),
         in_quotes(tensor.name), dtype_name(tensor.dtype));
  }
  check_range(*this, tensor, first_element, out.size(), tensor.elements());
  const auto read = [&](uint64_t first, std::span<std::byte> bytes) {
    read_elements(tensor, first, bytes);
  };
  size_t non_finite = 0;
  for (uint64_t done = 0; done < out.size(); done += kReadElements) {
    const auto part = out.subspan(done, std::min(kReadElements, out.size() - done));
    const uint64_t first = (first_element + done) * dtype_bytes(tensor.dtype);
    if (tensor.dtype == DType::kF32) {
      read(first, std::as_writable_bytes(part));
    } else if (tensor.dtype == DType::kF64) {
      read_double(read, first, part);
    } else {
      read_half(read, first, tensor.dtype, part);
    }
    non_finite += count_non_finite(part);
  }
  if (non_finite > 0 && policy == NonFinite::kRefuse) {
    fail(ErrorKind::kInput,
         "{}: tensor {} has {} NaN or infinite values among the {} at element {}", path().string(),
         in_quotes(tensor.name), non_finite, out.size(), first_element);
  }
}

void TensorFile::read_bytes(const TensorEntry& tensor, uint64_t first_byte,
                            std::span<std::byte> out) const {
  check_range(*this, tensor, first_byte, out.size(), tensor.bytes());
  constexpr uint64_t kPart = 4 * kReadElements;
  for (uint64_t done = 0; done < out.size(); done += kPart) {
    read_elements(tensor, first_byte + done, out.subspan(done, std::min(kPart, out.size() - done)));
  }
}

}  // namespace snug
