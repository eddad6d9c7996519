// Weights on their way from floating point to int8 (ops/quantize.h), streamed through a bounded
// buffer. In memory and in files an int8 matrix is stored channel by channel, [channels, inputs],
// whatever way the original was; its scales are a tensor of their own, called as the matrix with
// "_scale" behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace snug {

inline std::string scale_name(const std::string& matrix) { return matrix + "_scale"; }

// A matrix as it is stored.
struct MatrixSource {
  int64_t channels = 0, inputs = 0;
  bool in_out = false;  // as [inputs, channels]
  std::function<void(uint64_t first, std::span<float> values)>
      read;  // its elements from `first` on
};

// Some channels, quantised.
struct QuantizedChannels {
  int64_t first = 0;
  std::span<const int8_t> values;  // [channels, inputs]
  std::span<const float> scales;   // [channels]
};

// Calls sink with all channels in order.
void quantize_matrix(const MatrixSource& source,
                     const std::function<void(const QuantizedChannels&)>& sink);

}  // namespace snug
