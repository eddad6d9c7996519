#include "ops/end_attention.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/cuda_workspace.h"
#include "ops/dropout_mask.h"
#include "ops/parallel.h"
#include "ops/products.h"

namespace snug {
namespace {

// The sizes of a call, and the parts of w or b: those of q, of k and of v.
struct Shape {
  const EndAttentionSpec& spec;
  const Batch& batch;
  int64_t hidden = spec.hidden(), heads = spec.heads, wide = heads * hidden,
          sequences = batch.dims.sequences;

  int64_t start(int64_t s) const { return batch.starts[s]; }
  int64_t length(int64_t s) const { return batch.starts[s + 1] - batch.starts[s]; }
  MaskRow mask_row(int64_t s, int64_t head) const {
    return {batch.samples ? batch.samples[s] : 0, 0, uint32_t(head)};
  }
  float* matrix(const Tensor& w, int64_t part) const { return w.f32() + part * hidden * hidden; }
  float* vector(const Tensor& b, int64_t part) const { return b.f32() + part * hidden; }

  // Between a head's columns of [sequences, hidden] and its rows of [sequences, heads, hidden].
  ProductDims of_head() const { return {sequences, hidden, spec.head_dim, hidden, 1.0f, wide}; }
  template <class F>
  void each_head(const F& f) const {
    for (int64_t head = 0; head < heads; ++head) {
      f(head * spec.head_dim, head * hidden,
        head * spec.head_dim * hidden);  // columns, rows, the head's rows of a matrix
    }
  }
};

// Calls f(i, factor) for the columns of a mask's row, eight a draw.
template <class F>
void each_factor(const DropoutMask& mask, const MaskRow& row, int64_t columns, const F& f) {
  for (int64_t first = 0; first < columns; first += 8) {
    const auto words =
        mask.on() ? philox<kMaskRounds>(mask_counter(mask, row, uint32_t(first / 8)), mask.key)
                  : std::array<uint32_t, 4>();
    for (int64_t i = 0; i < std::min<int64_t>(8, columns - first); ++i) {
      const uint32_t draw = words[size_t(i / 2)] >> (i % 2 * 16) & 0xffff;
      f(first + i, draw >= mask.threshold ? mask.scale : 0.0f);
    }
  }
}

float dot(const float* x, const float* y, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// Of one head and sequence, in columns of [tokens, heads]: scores become probabilities; returns the
// sum of those that are kept.
float softmax(const Shape& shape, const DropoutMask& mask, int64_t s, int64_t head, float* p,
              float* kept) {
  const int64_t length = shape.length(s), stride = shape.heads;
  p += shape.start(s) * stride + head, kept += shape.start(s) * stride + head;
  float most = -INFINITY, sum = 0.0f, kept_sum = 0.0f;
  for (int64_t i = 0; i < length; ++i) most = std::max(most, p[i * stride]);
  for (int64_t i = 0; i < length; ++i) sum += p[i * stride] = std::exp(p[i * stride] - most);
  const float share = 1.0f / sum;
  each_factor(mask, shape.mask_row(s, head), length, [&](int64_t i, float factor) {
    p[i * stride] *= share;
    kept_sum += kept[i * stride] = p[i * stride] * factor;
  });
  return kept_sum;
}

// From the gradients of kept probabilities, in d_scores, those of the scores. `offset`: what is
// missing in all of them.
void softmax_gradient(const Shape& shape, const DropoutMask& mask, int64_t s, int64_t head,
                      const float* p, float offset, float scale, float* kept, float* d_scores) {
  const int64_t length = shape.length(s), stride = shape.heads,
                first = shape.start(s) * stride + head;
  p += first, kept += first, d_scores += first;
  float delta = 0.0f;
  each_factor(mask, shape.mask_row(s, head), length, [&](int64_t i, float factor) {
    kept[i * stride] = p[i * stride] * factor;
    d_scores[i * stride] = (d_scores[i * stride] + offset) * factor;
    delta += p[i * stride] * d_scores[i * stride];
  });
  for (int64_t i = 0; i < length; ++i) {
    d_scores[i * stride] = p[i * stride] * (d_scores[i * stride] - delta) * scale;
  }
}

float* at(const Call& call, size_t offset) {
  return reinterpret_cast<float*>(call.workspace.data() + offset);
}

}  // namespace

EndAttentionWorkspace::EndAttentionWorkspace(const EndAttentionSpec& spec, const Dims& dims,
                                             const Device& device, bool backward) {
  constexpr size_t kAlign = 256;
  const auto take = [&](size_t& at, int64_t floats) {
    at = bytes;
    bytes += (size_t(floats) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
  };
  const int64_t rows = dims.sequences * spec.heads * spec.hidden();
  take(queries, rows);
  take(kept, dims.tokens * spec.heads);
  if (!backward) return;
  take(d_means, rows);
  take(d_queries, rows);
  take(d_scores, dims.tokens * spec.heads);
  take(dq, dims.sequences * spec.hidden());
  products = bytes;
  if (device.kind == DeviceKind::kCuda) bytes += kProductWorkspaceBytes;
}

size_t EndAttention::workspace_bytes(const Sizing& sizing) const {
  return EndAttentionWorkspace(spec, sizing.dims, sizing.device, false).bytes;
}

size_t EndAttentionGradient::workspace_bytes(const Sizing& sizing) const {
  return EndAttentionWorkspace(spec, sizing.dims, sizing.device, true).bytes;
}

void EndAttention::run(const Call& call) const {
  const Tensor &x = call.in[0], &ends = call.in[1], &w = call.in[2], &b = call.in[3];
  const Tensor &o = call.out[0], &q = call.out[1], &p = call.out[2], &means = call.out[3],
               &kept_sums = call.out[4];
  const Shape shape{spec, *call.batch};
  const int64_t hidden = shape.hidden, heads = shape.heads;
  SNUG_CHECK(x.cols == hidden && w.rows == 3 * hidden && w.cols == hidden &&
             o.rows == shape.sequences);
  const EndAttentionWorkspace space(spec, call.batch->dims, {}, false);
  float *const queries = at(call, space.queries), *const kept = at(call, space.kept);
  const DropoutMask mask = dropout_mask(spec.dropout, spec.site, *call.step);
  product_nt({shape.sequences, hidden, hidden}, ends.f32(), shape.matrix(w, 0), q.f32(),
             Write::kOverwrite);
  for (int64_t i = 0; i < q.size(); ++i) q.f32()[i] += shape.vector(b, 0)[i % hidden];
  shape.each_head([&](int64_t columns, int64_t rows, int64_t matrix) {
    product_nn(shape.of_head(), q.f32() + columns, shape.matrix(w, 1) + matrix, queries + rows,
               Write::kOverwrite);
  });
  const float scale = 1.0f / std::sqrt(float(spec.head_dim));
  for (int64_t s = 0; s < shape.sequences; ++s) {
    product_nt({shape.length(s), hidden, heads, 0, scale}, x.f32() + shape.start(s) * hidden,
               queries + s * shape.wide, p.f32() + shape.start(s) * heads, Write::kOverwrite);
  }
  over_ranges(shape.sequences * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kept_sums.f32()[i] = softmax(shape, mask, i / heads, i % heads, p.f32(), kept);
    }
  });
  std::fill_n(means.f32(), means.size(), 0.0f);
  for (int64_t s = 0; s < shape.sequences; ++s) {
    product_tn({shape.length(s), hidden, heads}, kept + shape.start(s) * heads,
               x.f32() + shape.start(s) * hidden, means.f32() + s * shape.wide);
  }
  shape.each_head([&](int64_t columns, int64_t rows, int64_t matrix) {
    product_nt(shape.of_head(), means.f32() + rows, shape.matrix(w, 2) + matrix, o.f32() + columns,
               Write::kOverwrite);
  });
  for (int64_t i = 0; i < o.size(); ++i) {
    const int64_t column = i % hidden;
    o.f32()[i] +=
        shape.vector(b, 2)[column] * kept_sums.f32()[i / hidden * heads + column / spec.head_dim];
  }
}

void EndAttentionGradient::run(const Call& call) const {
  const Tensor &x = call.in[0], &ends = call.in[1], &w = call.in[2], &b = call.in[3],
               &q = call.in[4], &p = call.in[5];
  const Tensor &means = call.in[6], &kept_sums = call.in[7], &d_o = call.in[8];
  const Tensor &dx = call.out[0], &dends = call.out[1], &dw = call.out[2], &db = call.out[3];
  const Shape shape{spec, *call.batch};
  const int64_t hidden = shape.hidden, heads = shape.heads;
  const EndAttentionWorkspace space(spec, call.batch->dims, {}, true);
  float *const queries = at(call, space.queries), *const d_queries = at(call, space.d_queries);
  float *const kept = at(call, space.kept), *const d_means = at(call, space.d_means),
               *const d_scores = at(call, space.d_scores);
  float* const dq = at(call, space.dq);
  const DropoutMask mask = dropout_mask(spec.dropout, spec.site, *call.step);
  const float scale = 1.0f / std::sqrt(float(spec.head_dim));
  shape.each_head([&](int64_t columns, int64_t rows, int64_t matrix) {
    product_nn(shape.of_head(), q.f32() + columns, shape.matrix(w, 1) + matrix, queries + rows,
               Write::kOverwrite);
    product_nn(shape.of_head(), d_o.f32() + columns, shape.matrix(w, 2) + matrix, d_means + rows,
               Write::kOverwrite);
  });
  for (int64_t s = 0; s < shape.sequences; ++s) {
    product_nt({shape.length(s), hidden, heads}, x.f32() + shape.start(s) * hidden,
               d_means + s * shape.wide, d_scores + shape.start(s) * heads, Write::kOverwrite);
  }
  over_ranges(shape.sequences * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t s = i / heads, head = i % heads, column = head * spec.head_dim;
      const float offset =
          dot(d_o.f32() + s * hidden + column, shape.vector(b, 2) + column, spec.head_dim);
      softmax_gradient(shape, mask, s, head, p.f32(), offset, scale, kept, d_scores);
    }
  });
  std::fill_n(d_queries, shape.sequences * shape.wide, 0.0f);
  for (int64_t s = 0; s < shape.sequences; ++s) {
    const int64_t length = shape.length(s), tokens = shape.start(s) * hidden,
                  columns = shape.start(s) * heads;
    product_tn({length, hidden, heads}, d_scores + columns, x.f32() + tokens,
               d_queries + s * shape.wide);
    if (!dx) continue;
    product_nn({length, hidden, heads}, d_scores + columns, queries + s * shape.wide,
               dx.f32() + tokens, add_x ? Write::kAdd : Write::kOverwrite);
    product_nn({length, hidden, heads}, kept + columns, d_means + s * shape.wide, dx.f32() + tokens,
               Write::kAdd);
  }
  shape.each_head([&](int64_t columns, int64_t rows, int64_t matrix) {
    product_nt(shape.of_head(), d_queries + rows, shape.matrix(w, 1) + matrix, dq + columns,
               Write::kOverwrite);
    if (!dw) return;
    product_tn(shape.of_head(), q.f32() + columns, d_queries + rows, shape.matrix(dw, 1) + matrix);
    product_tn(shape.of_head(), d_o.f32() + columns, means.f32() + rows,
               shape.matrix(dw, 2) + matrix);
  });
  const ProductDims whole{shape.sequences, hidden, hidden};
  if (dw) product_tn(whole, dq, ends.f32(), shape.matrix(dw, 0));
  if (dends) {
    product_nn(whole, dq, shape.matrix(w, 0), dends.f32(),
               add_ends ? Write::kAdd : Write::kOverwrite);
  }
  if (!db) return;
  // The bias of keys moves all scores of a query alike: it has no gradient.
  for (int64_t i = 0; i < shape.sequences * hidden; ++i) {
    const int64_t column = i % hidden;
    shape.vector(db, 0)[column] += dq[i];
    shape.vector(db, 2)[column] +=
        d_o.f32()[i] * kept_sums.f32()[i / hidden * heads + column / spec.head_dim];
  }
}

void EndAttention::backward(const Node& node, GradientWriter& writer) const {
  const ValueId d_o = writer.gradient_of(node.outputs[0]);
  if (d_o == kNoValue) return;
  const auto dw = writer.gradient_for(node.inputs[2]), db = writer.gradient_for(node.inputs[3]);
  const auto dends = writer.gradient_for(node.inputs[1]), dx = writer.gradient_for(node.inputs[0]);
  if (!dx && !dends && !dw && !db) return;
  std::vector<ValueId> inputs;
  for (const ValueId in : node.inputs) inputs.push_back(writer.saved(in));
  for (size_t i = 1; i < node.outputs.size(); ++i) inputs.push_back(writer.saved(node.outputs[i]));
  inputs.push_back(d_o);
  writer.emit(std::make_shared<EndAttentionGradient>(spec, dx.accumulate, dends.accumulate),
              std::move(inputs), {dx.value, dends.value, dw.value, db.value});
}

OpPtr end_attention(const EndAttentionSpec& spec) {
  SNUG_CHECK(spec.heads > 0 && spec.heads < (1 << 16) && spec.head_dim > 0);
  return std::make_shared<EndAttention>(spec);
}

}  // namespace snug
