#include "runtime/split_weights.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/dtype.h"

namespace snug {
namespace {

constexpr size_t kBytes = sizeof(float);

}  // namespace

void SplitWeights::read(size_t offset, std::span<std::byte> to) const {
  std::vector<uint16_t> upper(to.size() / kBytes), lower(upper.size());
  upper_.read(offset / 2, std::as_writable_bytes(std::span(upper)));
  lower_.read(offset / 2, std::as_writable_bytes(std::span(lower)));
  for (size_t i = 0; i < upper.size(); ++i) {
    const uint32_t bits = join_float({upper[i], lower[i]});
    std::memcpy(to.data() + i * kBytes, &bits, kBytes);
  }
}

void SplitWeights::write(size_t offset, std::span<const std::byte> from) {
  std::vector<uint16_t> upper(from.size() / kBytes), lower(upper.size());
  for (size_t i = 0; i < upper.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from.data() + i * kBytes, kBytes);
    const FloatHalves halves = split_float(bits);
    upper[i] = halves.upper, lower[i] = halves.lower;
  }
  upper_.write(offset / 2, std::as_bytes(std::span(upper)));
  lower_.write(offset / 2, std::as_bytes(std::span(lower)));
}

}  // namespace snug
