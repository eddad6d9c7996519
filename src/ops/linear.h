// y = activation(x · wᵀ + b), or x · w where the weight is stored so. The product is OpenBLAS's;
// bias and activation are one pass behind it. Backward works in the buffer of dy: the activation's
// gradient replaces it before the products read it.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/op.h"

namespace snug {

enum class Activation : uint8_t {
  kNone,
  kGelu,  // exact, by erf
  kGeluTanh,
  kTanh,
  kRelu,
  kKeptSlope,  // of gradients only: the layer has kept its activation's derivative, see LinearSpec
};
constexpr bool is_gelu(Activation activation) {
  return activation == Activation::kGelu || activation == Activation::kGeluTanh;
}

// Whether the op keeps x · wᵀ + b beside y; the others' gradients follow from y alone.
constexpr bool keeps_pre_activation(Activation activation) {
  return is_gelu(activation) || activation == Activation::kRelu;
}

// How a weight lies in memory, which is as in the files: PyTorch's Linear, or GPT-2's Conv1D.
enum class WeightLayout : uint8_t { kOutIn, kInOut };

// Low-rank additions to a product: columns [first, first + count) of it get scale * u · upᵀ added,
// where u[rows, rank] and up[count, rank] are further inputs of the operator, a pair for each entry
// of first_columns.
struct Adapters {
  std::vector<int64_t> first_columns;
  float scale = 1.0f;
};

struct LinearSpec {
  Activation activation = Activation::kNone;
  WeightLayout layout = WeightLayout::kOutIn;
  Adapters adapters = {};
  bool keeps_slope = false;  // GELU only: its derivative at `pre`, rounded as SlopeBytes or to the
                             // type, in place of `pre`; see keep_slopes()
};

// GELU's derivative as a layer in bf16 keeps it, DType::kSlope8: a byte, the number of steps from
// the least there is. It lies in [-0.13, 1.13]; 0 and 1 are exact, others are off by half a step at
// most, which is between what bf16 is just below 1 and just above.
// Groups of columns lie in the order in which threads have them behind a product of tensor cores:
// column 8b + 2t + e of a group is its byte 4t + 2b + e.
struct SlopeBytes {
  static constexpr float kStepsOfOne = 200.0f, kZero = 27.0f;
  static constexpr int64_t kGroup = 16;

  static constexpr int64_t column(int64_t byte) {
    return byte / kGroup * kGroup + byte % 4 / 2 * 8 + byte % kGroup / 4 * 2 + byte % 2;
  }
};
// In which a layer of this type keeps its slopes.
constexpr DType slope_type(DType dtype) { return dtype == DType::kBF16 ? DType::kSlope8 : dtype; }

// inputs {x[rows, in], w[out, in] or w[in, out], b[1, out] (optional), then u and up of each
// adapter} outputs {y[rows, out], pre[rows, out] if keeps_pre_activation()}; pre may be absent
// where no gradient is wanted
OpPtr linear(const LinearSpec& spec);

// How a layer's output is made again from its argument, which is the node's second output.
std::optional<Remake> remake_activation(Activation activation, const Node& node, size_t which);

// The operators by name, for their kernels on other devices.

// inputs {pre[rows, out]}; outputs {y[rows, out]}: a layer's output from what it keeps
class ActivationAgain final : public Op {
 public:
  explicit ActivationAgain(Activation activation) : activation(activation) {}
  std::string_view name() const override { return "activation_again"; }
  void run(const Call& call) const override;

  const Activation activation;
};

// inputs {dy, pre or y or the slope (absent for kNone)}; outputs {dy in place (absent for kNone),
// db (optional, +=)}
class LinearEpilogueGradient final : public Op {
 public:
  explicit LinearEpilogueGradient(Activation activation) : activation(activation) {}
  std::string_view name() const override { return "linear_epilogue_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const Activation activation;
};

// inputs {dy, x}; outputs {dw (+=)}
class LinearWeightGradient final : public Op {
 public:
  explicit LinearWeightGradient(WeightLayout layout = WeightLayout::kOutIn) : layout(layout) {}
  std::string_view name() const override { return "linear_weight_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const WeightLayout layout;
};

// inputs {dy, w}; outputs {dx (= or +=)}. With the activation of the layer that made x, dx goes on
// through that layer's epilogue: inputs {dy, w, what that layer keeps}, outputs {dx (=), that
// layer's db (optional, +=)}.
class LinearInputGradient final : public Op {
 public:
  explicit LinearInputGradient(bool accumulate, WeightLayout layout = WeightLayout::kOutIn,
                               Activation activation = Activation::kNone)
      : accumulate(accumulate), layout(layout), activation(activation) {}
  std::string_view name() const override { return "linear_input_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const bool accumulate;
  const WeightLayout layout;
  const Activation activation;
};

// inputs {dy, u, up}; outputs {du, dup (+=)}, both optional
class AdapterGradient final : public Op {
 public:
  AdapterGradient(int64_t first_column, float scale) : first_column(first_column), scale(scale) {}
  std::string_view name() const override { return "adapter_gradient"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;

  const int64_t first_column;
  const float scale;
};

// Adds the adapters' shares to y. `pairs` are the inputs u and up of each.
void add_adapters(const Adapters& adapters, std::span<const Tensor> pairs, const Tensor& y);
// Writes the gradients of the adapters of a node, whose pairs begin at `first_input`, into the
// graph.
void write_adapter_gradients(const Adapters& adapters, const Node& node, size_t first_input,
                             ValueId dy, GradientWriter& writer);

class Linear final : public Op {
 public:
  explicit Linear(const LinearSpec& spec) : spec(spec) {}
  std::string_view name() const override { return "linear"; }
  size_t workspace_bytes(const Sizing& sizing) const override;
  void run(const Call& call) const override;
  void backward(const Node& node, GradientWriter& writer) const override;
  std::optional<Remake> remake(const Node& node, size_t which) const override;

  const LinearSpec spec;
};

}  // namespace snug
