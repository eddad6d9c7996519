#include "ops/embedding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/embedding.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/columns-inl.h"
#include "ops/dropout_mask-inl.h"
#include "ops/norm-inl.h"
#include "ops/quantize-inl.h"
#include "ops/simd-inl.h"

#ifndef SNUG_OPS_EMBEDDING_ARGUMENTS_
#define SNUG_OPS_EMBEDDING_ARGUMENTS_
namespace snug {

// The tables, or their gradients.
struct EmbeddingTables {
  float *word, *position, *type;  // [*, hidden]; type may be null, and any of the gradients
};

struct EmbeddingArguments {
  size_t hidden;
  size_t position_offset;
  int32_t padding_id;
  float eps;
  DropoutMask mask;
  const Batch* batch;
  EmbeddingTables tables;
  const int8_t* quantized_word;  // the word table where it is int8, with a scale for each row
  const float* word_scales;
  const float *gamma, *beta;  // null without norm
  float* y;      // [tokens, hidden]; in backward dy, which becomes the gradient of the sum
  float* stats;  // [tokens, 2] or null
  EmbeddingTables gradients;  // += ; null in forward
  float *dgamma, *dbeta;      // += ; may be null
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// The sum of a token's table rows, as a function of the column.
class TokenSum {
 public:
  HWY_INLINE TokenSum(const EmbeddingArguments& a, int64_t token) {
    const Batch& batch = *a.batch;
    const size_t word = size_t(batch.ids[token]);
    if (a.quantized_word) {
      quantized_ = a.quantized_word + word * a.hidden;
      scale_ = a.word_scales[word];
    } else {
      word_ = a.tables.word + word * a.hidden;
    }
    position_ = a.tables.position + (size_t(batch.positions[token]) + a.position_offset) * a.hidden;
    if (a.tables.type) type_ = a.tables.type + size_t(batch.type_ids[token]) * a.hidden;
  }
  template <class Access>
  HWY_INLINE FloatVector operator()(size_t i, Access access) const {
    const FloatTag d;
    const FloatVector word = quantized_
                                 ? hn::Mul(load_bytes(access, quantized_ + i), hn::Set(d, scale_))
                                 : access.load(d, word_ + i);
    const FloatVector sum = hn::Add(word, access.load(d, position_ + i));
    return type_ ? hn::Add(sum, access.load(d, type_ + i)) : sum;
  }

 private:
  const float *word_ = nullptr, *position_, *type_ = nullptr;
  const int8_t* quantized_ = nullptr;
  float scale_ = 0.0f;
};

void EmbeddingForwardRows(const EmbeddingArguments& a, int64_t begin, int64_t end) {
  const FloatTag d;
  for (int64_t t = begin; t < end; ++t) {
    const TokenSum sum(a, t);
    float* const y = a.y + size_t(t) * a.hidden;
    const MaskRow row = token_mask_row(*a.batch, t);
    if (!a.gamma) {
      over_masked_row(a.mask, row, a.hidden,
                      [&](size_t i, auto access, FloatVector factor)
                          HWY_ATTR { access.store(hn::Mul(sum(i, access), factor), d, y + i); });
      continue;
    }
    const NormStats stats = norm_stats(a.hidden, a.eps, sum);
    over_masked_row(a.mask, row, a.hidden, [&](size_t i, auto access, FloatVector factor) HWY_ATTR {
      const FloatVector xhat = normalized(sum(i, access), stats);
      const FloatVector v =
          hn::MulAdd(xhat, access.load(d, a.gamma + i), access.load(d, a.beta + i));
      access.store(hn::Mul(v, factor), d, y + i);
    });
    if (a.stats) {
      a.stats[2 * t] = stats.mean;
      a.stats[2 * t + 1] = stats.rstd;
    }
  }
}

// dy := gradient of the norm's result.
void EmbeddingMaskRows(const EmbeddingArguments& a, int64_t begin, int64_t end) {
  const FloatTag d;
  for (int64_t t = begin; t < end; ++t) {
    float* const dy = a.y + size_t(t) * a.hidden;
    over_masked_row(a.mask, token_mask_row(*a.batch, t), a.hidden,
                    [&](size_t i, auto access, FloatVector factor) HWY_ATTR {
                      access.store(hn::Mul(access.load(d, dy + i), factor), d, dy + i);
                    });
  }
}

void EmbeddingNormParameters(const EmbeddingArguments& a, int64_t tokens, size_t begin,
                             size_t end) {
  const FloatTag d;
  add_column_sums(tokens, begin, end, a.dbeta, a.dgamma,
                  [&](int64_t t, size_t i, auto access, FloatVector& dbeta, FloatVector& dgamma)
                      HWY_ATTR {
                        dbeta = access.load(d, a.y + size_t(t) * a.hidden + i);
                        const NormStats stats = {a.stats[2 * t], a.stats[2 * t + 1]};
                        dgamma = hn::Mul(dbeta, normalized(TokenSum(a, t)(i, access), stats));
                      });
}

// dy := gradient of the sum.
void EmbeddingNormRows(const EmbeddingArguments& a, int64_t begin, int64_t end) {
  const FloatTag d;
  for (int64_t t = begin; t < end; ++t) {
    const TokenSum sum(a, t);
    float* const dy = a.y + size_t(t) * a.hidden;
    const NormStats stats = {a.stats[2 * t], a.stats[2 * t + 1]};
    const NormRowGradient gradient(a.hidden, stats, dy, a.gamma, sum);
    over_row(a.hidden, [&](size_t i, auto access) HWY_ATTR {
      const FloatVector gamma = access.load(d, a.gamma + i);
      access.store(gradient.at(access.load(d, dy + i), gamma, sum(i, access)), d, dy + i);
    });
  }
}

// Columns [begin, end) of the tables' gradients; the tokens of a table row are added in their
// order.
void EmbeddingScatter(const EmbeddingArguments& a, int64_t tokens, size_t begin, size_t end) {
  const FloatTag d;
  const auto add = [&](float* table, size_t table_row, int64_t t) HWY_ATTR {
    float* const to = table + table_row * a.hidden + begin;
    const float* const from = a.y + size_t(t) * a.hidden + begin;
    over_row(end - begin, [&](size_t i, auto access) HWY_ATTR {
      access.store(hn::Add(access.load(d, to + i), access.load(d, from + i)), d, to + i);
    });
  };
  const Batch& batch = *a.batch;
  for (int64_t t = 0; t < tokens; ++t) {
    if (a.gradients.word && batch.ids[t] != a.padding_id) {
      add(a.gradients.word, size_t(batch.ids[t]), t);
    }
    if (a.gradients.position) {
      add(a.gradients.position, size_t(batch.positions[t]) + a.position_offset, t);
    }
    if (a.gradients.type) add(a.gradients.type, size_t(batch.type_ids[t]), t);
  }
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/error.h"
#include "ops/cuda_workspace.h"
#include "ops/parallel.h"

namespace snug {
namespace {

HWY_EXPORT(EmbeddingForwardRows);
HWY_EXPORT(EmbeddingMaskRows);
HWY_EXPORT(EmbeddingNormParameters);
HWY_EXPORT(EmbeddingNormRows);
HWY_EXPORT(EmbeddingScatter);

EmbeddingArguments arguments(const EmbeddingSpec& spec, const Call& call) {
  return {.hidden = size_t(spec.hidden),
          .position_offset = size_t(spec.position_offset),
          .padding_id = int32_t(spec.padding_id),
          .eps = spec.eps,
          .mask = dropout_mask(spec.dropout, spec.site, *call.step),
          .batch = call.batch,
          .tables = {},
          .quantized_word = nullptr,
          .word_scales = nullptr,
          .gamma = nullptr,
          .beta = nullptr,
          .y = nullptr,
          .stats = nullptr,
          .gradients = {},
          .dgamma = nullptr,
          .dbeta = nullptr};
}

void set_tables(EmbeddingArguments& a, std::span<const Tensor> tables, const Tensor& word_scales) {
  const Tensor &word = tables[0], &position = tables[1], &type = tables[2];
  a.tables = {nullptr, position.f32(), type.f32()};
  if (word.dtype == DType::kI8) {
    SNUG_CHECK(word_scales.size() == word.rows);
    a.quantized_word = static_cast<const int8_t*>(word.data);
    a.word_scales = word_scales.f32();
  } else {
    a.tables.word = word.f32();
  }
}

}  // namespace

size_t EmbeddingGradient::workspace_bytes(const Sizing& sizing) const {
  if (sizing.device.kind == DeviceKind::kCpu) return 0;
  const int64_t types = sizing.in[4].cols > 0 ? sizing.in[4].rows : 0;
  return column_sum_bytes(spec.hidden, 2 + types);
}

void EmbeddingGradient::run(const Call& call) const {
  const Tensor& dy = call.in[0];
  EmbeddingArguments a = arguments(spec, call);
  a.y = dy.f32();
  a.stats = call.in[1].f32();
  set_tables(a, call.in.subspan(2), call.in.size() > 6 ? call.in[6] : Tensor());
  a.gamma = call.in[5].f32();
  a.gradients = {call.out[1].f32(), call.out[2].f32(), call.out[3].f32()};
  a.dgamma = call.out[4].f32();
  a.dbeta = call.out[5].f32();
  if (a.mask.on()) {
    over_ranges(dy.rows, 1, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(EmbeddingMaskRows)(a, begin, end);
    });
  }
  if (a.dgamma || a.dbeta) {
    over_ranges(dy.cols, kColumnGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(EmbeddingNormParameters)(a, dy.rows, size_t(begin), size_t(end));
    });
  }
  if (!a.gradients.word && !a.gradients.position && !a.gradients.type) return;
  if (spec.norm) {
    over_ranges(dy.rows, 1, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(EmbeddingNormRows)(a, begin, end);
    });
  }
  over_ranges(dy.cols, kColumnGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EmbeddingScatter)(a, dy.rows, size_t(begin), size_t(end));
  });
}

void Embedding::run(const Call& call) const {
  const Tensor& y = call.out[0];
  SNUG_CHECK(y.cols == spec.hidden && call.in[0].cols == spec.hidden);
  EmbeddingArguments a = arguments(spec, call);
  set_tables(a, call.in, call.in.size() > 5 ? call.in[5] : Tensor());
  if (spec.norm) {
    a.gamma = call.in[3].f32();
    a.beta = call.in[4].f32();
    a.stats = call.out[1].f32();
  }
  a.y = y.f32();
  over_ranges(y.rows, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EmbeddingForwardRows)(a, begin, end);
  });
}

void Embedding::backward(const Node& node, GradientWriter& writer) const {
  const ValueId dy = writer.gradient_of(node.outputs[0]);
  if (dy == kNoValue) return;
  std::vector<ValueId> outputs = {dy};
  bool wanted = false;
  for (size_t i = 0; i < 5; ++i) {
    const ValueId input = i < node.inputs.size() ? node.inputs[i] : kNoValue;
    const auto target = input == kNoValue ? GradientWriter::Target() : writer.gradient_for(input);
    outputs.push_back(target.value);
    wanted |= bool(target);
  }
  if (!wanted) return;
  const auto saved_input = [&](size_t i) {
    return i < node.inputs.size() && node.inputs[i] != kNoValue ? writer.saved(node.inputs[i])
                                                                : kNoValue;
  };
  const ValueId stats = spec.norm ? writer.saved(node.outputs[1]) : kNoValue;
  writer.emit(
      std::make_shared<EmbeddingGradient>(spec),
      {dy, stats, saved_input(0), saved_input(1), saved_input(2), saved_input(3), saved_input(5)},
      outputs);
}

OpPtr embedding(const EmbeddingSpec& spec) { return std::make_shared<Embedding>(spec); }

}  // namespace snug
#endif  // HWY_ONCE
