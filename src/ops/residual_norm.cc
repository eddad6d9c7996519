#include "ops/residual_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/residual_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/columns-inl.h"
#include "ops/dropout_mask-inl.h"
#include "ops/norm-inl.h"
#include "ops/simd-inl.h"

#ifndef SNUG_OPS_RESIDUAL_NORM_ARGUMENTS_
#define SNUG_OPS_RESIDUAL_NORM_ARGUMENTS_
namespace snug {

struct NormForwardArguments {
  size_t hidden;
  float eps;
  DropoutMask mask;
  const Batch* batch;     // read only where there is a mask
  Rows rows;              // the same
  const float* x;         // [rows, hidden]; null for layer_norm: then the input is `sum`
  const float* residual;  // [rows, hidden]
  const float *gamma, *beta;
  float* sum;                          // [rows, hidden]
  float* y;                            // [rows, hidden]; may be the same as sum
  float* stats;                        // [rows, 2] or null
  const float* known_stats = nullptr;  // [rows, 2] where they need not be computed
};

struct NormBackwardArguments {
  size_t hidden;
  DropoutMask mask;
  const Batch* batch;  // read only where there is a mask
  Rows rows;           // the same
  const float *dy, *dsum /* what flows into sum from elsewhere, or null */, *sum, *stats, *gamma;
  float *dresidual, *dx, *dgamma, *dbeta;  // each may be null; parameters' are added to
  bool add_residual, add_x;                // += instead of =
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

void NormForwardRows(const NormForwardArguments& a, int64_t begin, int64_t end) {
  const FloatTag d;
  for (int64_t t = begin; t < end; ++t) {
    const size_t at = size_t(t) * a.hidden;
    float *const sum = a.sum + at, *const y = a.y + at;
    if (a.x) {
      const MaskRow row = a.mask.on() ? mask_row(*a.batch, a.rows, t) : MaskRow();
      over_masked_row(
          a.mask, row, a.hidden, [&](size_t i, auto access, FloatVector factor) HWY_ATTR {
            const FloatVector x = access.load(d, a.x + at + i);
            access.store(hn::MulAdd(x, factor, access.load(d, a.residual + at + i)), d, sum + i);
          });
    }
    const auto source = [&](size_t i, auto access) HWY_ATTR { return access.load(d, sum + i); };
    const bool again = a.known_stats != nullptr;
    const NormStats stats = again ? NormStats{a.known_stats[2 * t], a.known_stats[2 * t + 1]}
                                  : norm_stats(a.hidden, a.eps, source);
    over_row(a.hidden, [&](size_t i, auto access) HWY_ATTR {
      const FloatVector xhat = normalized(source(i, access), stats);
      access.store(hn::MulAdd(xhat, access.load(d, a.gamma + i), access.load(d, a.beta + i)), d,
                   y + i);
    });
    if (a.stats) {
      a.stats[2 * t] = stats.mean;
      a.stats[2 * t + 1] = stats.rstd;
    }
  }
}

void NormBackwardRows(const NormBackwardArguments& a, int64_t begin, int64_t end) {
  const FloatTag d;
  for (int64_t t = begin; t < end; ++t) {
    const size_t at = size_t(t) * a.hidden;
    const auto source = [&](size_t i, auto access)
                            HWY_ATTR { return access.load(d, a.sum + at + i); };
    const NormStats stats = {a.stats[2 * t], a.stats[2 * t + 1]};
    const NormRowGradient gradient(a.hidden, stats, a.dy + at, a.gamma, source);
    const bool masked = a.mask.on() && a.dx;
    const MaskRow row = masked ? mask_row(*a.batch, a.rows, t) : MaskRow();
    over_masked_row(masked ? a.mask : DropoutMask(), row, a.hidden,
                    [&](size_t i, auto access, FloatVector factor) HWY_ATTR {
                      const FloatVector dy = access.load(d, a.dy + at + i),
                                        gamma = access.load(d, a.gamma + i);
                      FloatVector ds = gradient.at(dy, gamma, source(i, access));
                      if (a.dsum) ds = hn::Add(ds, access.load(d, a.dsum + at + i));
                      if (a.dresidual) {
                        float* const p = a.dresidual + at + i;
                        access.store(a.add_residual ? hn::Add(ds, access.load(d, p)) : ds, d, p);
                      }
                      if (a.dx) {
                        float* const p = a.dx + at + i;
                        const FloatVector dx = hn::Mul(ds, factor);
                        access.store(a.add_x ? hn::Add(dx, access.load(d, p)) : dx, d, p);
                      }
                    });
  }
}

void NormParameterGradient(const NormBackwardArguments& a, int64_t rows, size_t begin, size_t end) {
  const FloatTag d;
  add_column_sums(rows, begin, end, a.dbeta, a.dgamma,
                  [&](int64_t t, size_t i, auto access, FloatVector& dbeta, FloatVector& dgamma)
                      HWY_ATTR {
                        const size_t at = size_t(t) * a.hidden + i;
                        dbeta = access.load(d, a.dy + at);
                        const NormStats stats = {a.stats[2 * t], a.stats[2 * t + 1]};
                        dgamma = hn::Mul(dbeta, normalized(access.load(d, a.sum + at), stats));
                      });
}

void NormBiasGradient(const NormBackwardArguments& a, float* dbias, int64_t rows, size_t begin,
                      size_t end) {
  const FloatTag d;
  add_column_sums(rows, begin, end, dbias, nullptr,
                  [&](int64_t t, size_t i, auto access, FloatVector& sum, FloatVector&)
                      HWY_ATTR { sum = access.load(d, a.dx + size_t(t) * a.hidden + i); });
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/error.h"
#include "ops/cuda_workspace.h"
#include "ops/parallel.h"

namespace snug {
namespace {

HWY_EXPORT(NormForwardRows);
HWY_EXPORT(NormBackwardRows);
HWY_EXPORT(NormParameterGradient);
HWY_EXPORT(NormBiasGradient);

void norm_forward(const NormForwardArguments& arguments, int64_t rows) {
  over_ranges(rows, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormForwardRows)(arguments, begin, end);
  });
}

}  // namespace

size_t NormGradient::workspace_bytes(const Sizing& sizing) const {
  return sizing.device.kind == DeviceKind::kCuda ? column_sum_bytes(sizing.in[0].cols, 3) : 0;
}

void NormGradient::run(const Call& call) const {
  const Tensor& dy = call.in[0];
  const NormBackwardArguments arguments = {
      .hidden = size_t(dy.cols),
      .mask = call.out[1] ? dropout_mask(spec.dropout, spec.site, *call.step) : DropoutMask(),
      .batch = call.batch,
      .rows = spec.rows,
      .dy = dy.f32(),
      .dsum = call.in[1].f32(),
      .sum = call.in[2].f32(),
      .stats = call.in[3].f32(),
      .gamma = call.in[4].f32(),
      .dresidual = call.out[0].f32(),
      .dx = call.out[1].f32(),
      .dgamma = call.out[2].f32(),
      .dbeta = call.out[3].f32(),
      .add_residual = spec.add_residual,
      .add_x = spec.add_x,
  };
  if (call.out[2] || call.out[3]) {
    over_ranges(dy.cols, kColumnGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(NormParameterGradient)(arguments, dy.rows, size_t(begin), size_t(end));
    });
  }
  if (!call.out[0] && !call.out[1]) return;
  over_ranges(dy.rows, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormBackwardRows)(arguments, begin, end);
  });
  if (call.out.size() > 4 && call.out[4]) {
    over_ranges(dy.cols, kColumnGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(NormBiasGradient)
      (arguments, call.out[4].f32(), dy.rows, size_t(begin), size_t(end));
    });
  }
}

void ResidualNorm::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0], &sum = call.out[1];
  SNUG_CHECK(x.cols == spec.hidden && y.cols == spec.hidden && x.rows == y.rows);
  norm_forward({.hidden = size_t(spec.hidden),
                .eps = spec.eps,
                .mask = dropout_mask(spec.dropout, spec.site, *call.step),
                .batch = call.batch,
                .rows = spec.rows,
                .x = x.f32(),
                .residual = call.in[1].f32(),
                .gamma = call.in[2].f32(),
                .beta = call.in[3].f32(),
                .sum = sum ? sum.f32() : y.f32(),
                .y = y.f32(),
                .stats = call.out[2].f32(),
                .known_stats = nullptr},
               y.rows);
}

void NormAgain::run(const Call& call) const {
  const Tensor &sum = call.in[0], &y = call.out[0];
  SNUG_CHECK(sum.rows == y.rows && sum.cols == y.cols);
  norm_forward({.hidden = size_t(y.cols),
                .eps = 0.0f,
                .mask = {},
                .batch = nullptr,
                .rows = Rows::kTokens,
                .x = nullptr,
                .residual = nullptr,
                .gamma = call.in[2].f32(),
                .beta = call.in[3].f32(),
                .sum = sum.f32(),
                .y = y.f32(),
                .stats = nullptr,
                .known_stats = call.in[1].f32()},
               y.rows);
}

std::optional<Remake> ResidualNorm::remake(const Node& node, size_t which) const {
  const ValueId sum = node.outputs[1], stats = node.outputs[2];
  if (which != 0 || sum == kNoValue || stats == kNoValue) return {};
  return Remake{
      std::make_shared<NormAgain>(), {sum, stats, node.inputs[2], node.inputs[3]}, Part::kNorms};
}

std::optional<Remake> LayerNorm::remake(const Node& node, size_t which) const {
  const ValueId stats = node.outputs[1];
  if (which != 0 || stats == kNoValue) return {};
  return Remake{std::make_shared<NormAgain>(),
                {node.inputs[0], stats, node.inputs[1], node.inputs[2]},
                Part::kNorms};
}

void ResidualNorm::backward(const Node& node, GradientWriter& writer) const {
  const ValueId y = node.outputs[0], sum = node.outputs[1], stats = node.outputs[2];
  const ValueId dy = writer.gradient_of(y), dsum = writer.gradient_of(sum);
  if (dy == kNoValue) {
    SNUG_CHECK(dsum == kNoValue);  // a sum that is carried on is normalised too
    return;
  }
  const auto dx = writer.gradient_for(node.inputs[0]),
             dresidual = writer.gradient_for(node.inputs[1]);
  const auto dgamma = writer.gradient_for(node.inputs[2]),
             dbeta = writer.gradient_for(node.inputs[3]);
  if (!dx && !dresidual && !dgamma && !dbeta) return;
  const NormGradient::Spec gradient = {spec.dropout, spec.site, dresidual.accumulate, dx.accumulate,
                                       spec.rows};
  writer.emit(std::make_shared<NormGradient>(gradient),
              {dy, dsum, writer.saved(sum), writer.saved(stats), writer.saved(node.inputs[2])},
              {dresidual.value, dx.value, dgamma.value, dbeta.value});
}

void LayerNorm::run(const Call& call) const {
  const Tensor &x = call.in[0], &y = call.out[0];
  SNUG_CHECK(x.cols == spec.hidden && y.cols == spec.hidden && x.rows == y.rows);
  norm_forward({.hidden = size_t(spec.hidden),
                .eps = spec.eps,
                .mask = {},
                .batch = nullptr,
                .rows = Rows::kTokens,
                .x = nullptr,
                .residual = nullptr,
                .gamma = call.in[1].f32(),
                .beta = call.in[2].f32(),
                .sum = x.f32(),
                .y = y.f32(),
                .stats = call.out[1].f32(),
                .known_stats = nullptr},
               y.rows);
}

void LayerNorm::backward(const Node& node, GradientWriter& writer) const {
  const ValueId x = node.inputs[0], gamma = node.inputs[1], beta = node.inputs[2];
  const ValueId dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  const auto dx = writer.gradient_for(x), dgamma = writer.gradient_for(gamma);
  const auto dbeta = writer.gradient_for(beta);
  if (!dx && !dgamma && !dbeta) return;
  // x plays the sum of residual_norm, and dx its residual's gradient.
  writer.emit(std::make_shared<NormGradient>(NormGradient::Spec{.add_residual = dx.accumulate}),
              {dy, kNoValue, writer.saved(x), writer.saved(node.outputs[1]), writer.saved(gamma)},
              {dx.value, kNoValue, dgamma.value, dbeta.value});
}

OpPtr residual_norm(const ResidualNormSpec& spec) { return std::make_shared<ResidualNorm>(spec); }
OpPtr layer_norm(const LayerNormSpec& spec) { return std::make_shared<LayerNorm>(spec); }

}  // namespace snug
#endif  // HWY_ONCE
