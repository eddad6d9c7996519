#include "model/tensor_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "model/tensor_file.h"

namespace snug {
namespace {

struct Dimension {
  uint64_t extent, stride;  // stride: in elements of the store
};

// The fewest dimensions that mean the same.
std::vector<Dimension> joined(const TensorView& view) {
  std::vector<Dimension> result;
  for (size_t d = 0; d < view.shape.size(); ++d) {
    const Dimension next{uint64_t(view.shape[d]), uint64_t(view.strides[d])};
    if (next.extent == 1) continue;
    if (!result.empty() && result.back().stride == next.extent * next.stride) {
      result.back() = {result.back().extent * next.extent, next.stride};
    } else {
      result.push_back(next);
    }
  }
  return result;
}

class Reader {
 public:
  Reader(const InputFile& file, const TensorView& view)
      : file_(file), view_(view), dims_(joined(view)) {
    inner_.assign(dims_.size() + 1, 1);
    for (size_t d = dims_.size(); d-- > 0;) inner_[d] = inner_[d + 1] * dims_[d].extent;
  }

  // Elements [first, first + count) of dimensions d and up, which begin at element `base` of the
  // store.
  void read(size_t d, uint64_t base, uint64_t first, uint64_t count, std::byte* out) {
    if (count == 0) return;
    if (d == dims_.size()) return read_run({1, 1}, base, out, 1);
    const uint64_t inner = inner_[d + 1];
    const auto at = [&](uint64_t i) { return base + i * dims_[d].stride; };
    if (const uint64_t skipped = first % inner; skipped != 0) {
      const uint64_t taken = std::min(count, inner - skipped);
      read(d + 1, at(first / inner), skipped, taken, out);
      first += taken;
      count -= taken;
      out += taken * view_.width;
    }
    if (const uint64_t whole = count / inner; whole > 0) {
      read_box(d, at(first / inner), whole, out);
      first += whole * inner;
      count -= whole * inner;
      out += whole * inner * view_.width;
    }
    if (count > 0) read(d + 1, at(first / inner), 0, count, out);
  }

 private:
  // `extent` whole parts of dimension d. The store is read along the dimension in which it is
  // densest, so that a transposed matrix costs a read for each of its columns and not for each
  // element.
  void read_box(size_t d, uint64_t base, uint64_t extent, std::byte* out) {
    std::vector<Dimension> box(dims_.begin() + ptrdiff_t(d), dims_.end());
    box[0].extent = extent;
    const auto density = [](const Dimension& x) {
      return x.stride == 0 || x.extent == 1 ? UINT64_MAX : x.stride;
    };
    const size_t run = size_t(std::ranges::min_element(box, {}, density) - box.begin());
    std::vector<uint64_t> index(box.size(), 0);
    for (;;) {
      uint64_t from = base, to = 0;
      for (size_t i = 0; i < box.size(); ++i) {
        from += index[i] * box[i].stride;
        to += index[i] * inner_[d + i + 1];
      }
      read_run(box[run], from, out + to * view_.width, inner_[d + run + 1]);
      size_t i = box.size();
      while (i-- > 0) {
        if (i == run) continue;
        if (++index[i] < box[i].extent) break;
        index[i] = 0;
      }
      if (i == size_t(-1)) return;
    }
  }

  // One dimension; `step`: elements from one to the next in `out`.
  void read_run(const Dimension& run, uint64_t from, std::byte* out, uint64_t step) {
    const uint64_t width = view_.width;
    if (run.stride == 1 && step == 1) return fetch(from, out, run.extent * width);
    if (run.stride == 0 || run.stride * width > buffer_.size()) {
      for (uint64_t i = 0; i < run.extent; ++i) {
        fetch(from + i * run.stride, out + i * step * width, width);
      }
      return;
    }
    const uint64_t most = (buffer_.size() / width - 1) / run.stride + 1;
    for (uint64_t done = 0; done < run.extent; done += most) {
      const uint64_t count = std::min(most, run.extent - done);
      fetch(from + done * run.stride, buffer_.data(), ((count - 1) * run.stride + 1) * width);
      for (uint64_t i = 0; i < count; ++i) {
        std::memcpy(out + (done + i) * step * width, buffer_.data() + i * run.stride * width,
                    width);
      }
    }
  }

  void fetch(uint64_t element, std::byte* out, uint64_t bytes) {
    file_.read_exactly(view_.offset + element * view_.width, out, bytes);
  }

  const InputFile& file_;
  const TensorView& view_;
  std::vector<Dimension> dims_;
  std::vector<uint64_t> inner_;  // elements of one step of the dimension before
  std::array<std::byte, kTensorBufferBytes> buffer_;
};

}  // namespace

uint64_t TensorView::elements() const {
  uint64_t count = 1;
  for (const int64_t extent : shape) count *= uint64_t(extent);
  return count;
}

bool TensorView::is_contiguous() const {
  const std::vector<Dimension> dims = joined(*this);
  return dims.empty() || (dims.size() == 1 && dims[0].stride == 1);
}

std::string view_mismatch(std::span<const int64_t> shape, std::span<const int64_t> strides,
                          uint64_t first, uint64_t stored) {
  if (shape.size() != strides.size()) {
    return fmt::format("{} sizes but {} strides", shape.size(), strides.size());
  }
  if (shape.size() > kMaxRank) {
    return fmt::format("{} dimensions, expected at most {}", shape.size(), kMaxRank);
  }
  uint64_t elements = 1, last = first;
  bool fits = first <= stored;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0 || strides[d] < 0) {
      return fmt::format("a negative size or stride in dimension {}", d);
    }
    uint64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(elements, uint64_t(shape[d]), &elements);
    if (shape[d] > 0) {
      fits = fits &&
             !__builtin_mul_overflow(uint64_t(shape[d] - 1), uint64_t(strides[d]), &reach) &&
             !__builtin_add_overflow(last, reach, &last);
    }
  }
  if (std::ranges::count(shape, 0) > 0) {
    return first <= stored ? "" : "it begins behind the end of its storage";
  }
  if (!fits || last >= stored) {
    return fmt::format("it reaches behind the {} elements of its storage", stored);
  }
  if (elements > stored) {
    return fmt::format("it shows {} elements of a storage of {}; expanded tensors are not read",
                       elements, stored);
  }
  return "";
}

void read_view(const InputFile& file, const TensorView& view, uint64_t first_element,
               std::span<std::byte> out) {
  SNUG_CHECK(out.size() % view.width == 0);
  Reader(file, view).read(0, 0, first_element, out.size() / view.width, out.data());
}

}  // namespace snug
