#include "ops/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/dropout_mask-inl.h"
#include "ops/math-inl.h"
#include "ops/simd-inl.h"
#include "ops/tile_product-inl.h"

#ifndef SNUG_OPS_ATTENTION_ARGUMENTS_
#define SNUG_OPS_ATTENTION_ARGUMENTS_
namespace snug {

// Queries worked on together: a multiple of the register blocks' 3, 4 and 6 rows.
inline constexpr size_t kQueryBlock = 48;

struct AttentionArguments {
  size_t heads, head_dim;
  float scale;  // 1 / sqrt(head_dim)
  bool causal;
  DropoutMask mask;
  const float* qkv;  // [tokens, 3 * heads * head_dim]
  float* o;          // [tokens, heads * head_dim]
  float* lse;        // [tokens, heads], or null
  const float* d_o;  // [tokens, heads * head_dim], backward only
  float* dqkv;       // [tokens, 3 * heads * head_dim], backward only
};

// One head of one sequence, and in forward a range of its queries.
struct AttentionItem {
  int64_t start;  // first token of the sequence
  size_t length;  // tokens in it
  uint64_t sample;
  size_t head;
  size_t first_query, end_query;
};

// The strides and pieces of a thread's workspace, in floats, for sequences up to `longest`.
struct AttentionLayout {
  size_t keys_stride, dim_stride;  // of rows of keys and of rows of head dimensions
  size_t transposed;               // [head_dim, keys_stride]
  size_t rows;                     // [longest, dim_stride]
  size_t block;                    // [kQueryBlock, dim_stride]
  size_t scores;                   // [kQueryBlock, keys_stride]
  size_t draws;                    // [kQueryBlock, keys_stride] of 16 bits

  AttentionLayout(size_t longest, size_t head_dim)
      : keys_stride(padded(longest)),
        dim_stride(padded(head_dim)),
        transposed(head_dim * keys_stride),
        rows(longest * dim_stride),
        block(kQueryBlock * dim_stride),
        scores(kQueryBlock * keys_stride),
        draws(scores / 2) {}
  size_t forward_floats() const { return transposed + rows + block + scores + draws; }
  size_t backward_floats() const {
    return 2 * transposed + 3 * rows + 3 * block + 2 * scores + draws;
  }

 private:
  // Whole vectors; strides of whole 256-byte multiples would make a column's elements share few
  // cache sets.
  static size_t padded(size_t n) {
    const size_t whole = (n + 15) / 16 * 16;
    return whole % 64 == 0 ? whole + 16 : whole;
  }
};

}  // namespace snug
#endif

HWY_BEFORE_NAMESPACE();
namespace snug::HWY_NAMESPACE {

// A matrix of `rows` rows of head_dim values inside a packed tensor.
struct HeadRows {
  const float* data;
  size_t row_stride, rows, head_dim;
};

// to[head_dim, stride] = fromᵀ, with zeros up to a whole vector of columns. Walks blocks of 16 x
// 16: both sides are strided, and their lines must survive in the cache until all of their elements
// have been used.
HWY_INLINE void copy_transposed(const HeadRows& from, float* HWY_RESTRICT to, size_t stride) {
  const size_t width = (from.rows + 15) / 16 * 16;
  for (size_t row0 = 0; row0 < width; row0 += 16) {
    const size_t rows = std::min<size_t>(16, from.rows - row0);
    for (size_t dim0 = 0; dim0 < from.head_dim; dim0 += 16) {
      const size_t dims = std::min<size_t>(16, from.head_dim - dim0);
      for (size_t row = 0; row < rows; ++row) {
        const float* const source = from.data + (row0 + row) * from.row_stride + dim0;
        for (size_t dim = 0; dim < dims; ++dim) {
          to[(dim0 + dim) * stride + row0 + row] = source[dim];
        }
      }
    }
  }
  for (size_t dim = 0; dim < from.head_dim; ++dim) {
    std::fill(to + dim * stride + from.rows, to + dim * stride + width, 0.0f);
  }
}

// to[rows, stride] = from, with zeros up to a whole vector of columns.
HWY_INLINE void copy_rows(const HeadRows& from, float* HWY_RESTRICT to, size_t stride) {
  const FloatTag d;
  for (size_t row = 0; row < from.rows; ++row) {
    const float* const source = from.data + row * from.row_stride;
    over_row(from.head_dim, [&](size_t i, auto access) HWY_ATTR {
      hn::StoreU(access.load(d, source + i), d, to + row * stride + i);
    });
  }
}

// to[rows] = from, into a packed tensor.
HWY_INLINE void writerows(const float* from, size_t stride, size_t rows, size_t head_dim, float* to,
                          size_t to_stride) {
  const FloatTag d;
  for (size_t row = 0; row < rows; ++row) {
    over_row(head_dim, [&](size_t i, auto access) HWY_ATTR {
      access.store(hn::LoadU(d, from + row * stride + i), d, to + row * to_stride + i);
    });
  }
}

// Scores behind the last visible key become minus infinity, up to the end of the vectors that are
// worked on.
HWY_INLINE void hide_keys(float* scores, size_t visible, size_t width) {
  std::fill(scores + visible, scores + width, -std::numeric_limits<float>::infinity());
}

// scores := exp(scale * (score - max)), times the mask's factors; returns the sum before masking
// and the maximum.
struct SoftmaxRow {
  float sum, max;
};
HWY_INLINE SoftmaxRow softmax_row(float* HWY_RESTRICT scores, size_t width, float scale,
                                  const DropoutMask& mask, const uint16_t* draws) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  FloatVector highest = hn::LoadU(d, scores);
  for (size_t i = lanes; i < width; i += lanes) {
    highest = hn::Max(highest, hn::LoadU(d, scores + i));
  }
  const float max = hn::GetLane(hn::MaxOfLanes(d, highest));
  const FloatVector top = hn::Set(d, max), factor = hn::Set(d, scale);
  FloatVector sum = hn::Zero(d);
  for (size_t i = 0; i < width; i += lanes) {
    FloatVector p = vector_exp(hn::Mul(hn::Sub(hn::LoadU(d, scores + i), top), factor));
    sum = hn::Add(sum, p);
    if (draws) p = hn::Mul(p, draw_factor(mask, draws + i));
    hn::StoreU(p, d, scores + i);
  }
  return {sum_of_lanes(sum), max};
}

// scores := masked probabilities, d_scores (holding dP) := gradient of the scores.
struct GradientRow {
  float scale, lse, delta;  // delta = do · o
};
HWY_INLINE void softmax_gradient_row(float* HWY_RESTRICT scores, float* HWY_RESTRICT d_scores,
                                     size_t width, const GradientRow& row, const DropoutMask& mask,
                                     const uint16_t* draws) {
  const FloatTag d;
  const FloatVector scale = hn::Set(d, row.scale), lse = hn::Set(d, row.lse),
                    delta = hn::Set(d, row.delta);
  for (size_t i = 0; i < width; i += hn::Lanes(d)) {
    const FloatVector p = vector_exp(hn::MulSub(hn::LoadU(d, scores + i), scale, lse));
    FloatVector kept = p, dp = hn::LoadU(d, d_scores + i);
    if (draws) {
      const FloatVector factor = draw_factor(mask, draws + i);
      kept = hn::Mul(p, factor);
      dp = hn::Mul(dp, factor);
    }
    hn::StoreU(kept, d, scores + i);
    hn::StoreU(hn::Mul(hn::Mul(p, scale), hn::Sub(dp, delta)), d, d_scores + i);
  }
}

// What both directions know about an item.
struct AttentionView {
  size_t hidden, qkv_stride;
  const float *q, *k, *v;
  size_t lanes;

  HWY_INLINE AttentionView(const AttentionArguments& a, const AttentionItem& item)
      : hidden(a.heads * a.head_dim),
        qkv_stride(3 * hidden),
        q(a.qkv + size_t(item.start) * qkv_stride + item.head * a.head_dim),
        k(q + hidden),
        v(k + hidden),
        lanes(hn::Lanes(FloatTag())) {}
  HWY_INLINE size_t whole(size_t keys) const { return (keys + lanes - 1) / lanes * lanes; }
};

// Draws the masks of a block of queries; null when dropout is off.
HWY_INLINE const uint16_t* draw_block(const AttentionArguments& a, const AttentionItem& item,
                                      size_t query, size_t rows, size_t keys, uint16_t* draws,
                                      size_t stride) {
  if (!a.mask.on()) return nullptr;
  attention_draws(a.mask, {item.sample, uint32_t(query), uint32_t(item.head)}, rows, keys, draws,
                  stride);
  return draws;
}

void AttentionForward(const AttentionArguments& a, const AttentionItem& item, float* workspace) {
  const FloatTag d;
  const AttentionView view(a, item);
  const AttentionLayout layout(item.length, a.head_dim);
  const size_t dim = a.head_dim, ks = layout.keys_stride, ds = layout.dim_stride;
  const size_t all_keys = a.causal ? item.end_query : item.length;
  float* const kt = workspace;
  float* const v = kt + layout.transposed;
  float* const o = v + layout.rows;
  float* const scores = o + layout.block;
  uint16_t* const draw_space = reinterpret_cast<uint16_t*>(scores + layout.scores);
  copy_transposed({view.k, view.qkv_stride, all_keys, dim}, kt, ks);
  copy_rows({view.v, view.qkv_stride, all_keys, dim}, v, ds);

  for (size_t query = item.first_query; query < item.end_query; query += kQueryBlock) {
    const size_t rows = std::min(kQueryBlock, item.end_query - query);
    const size_t keys = a.causal ? query + rows : item.length, width = view.whole(keys);
    tile_product({view.q + query * view.qkv_stride, view.qkv_stride, 1, kt, ks, scores, ks, rows,
                  dim, keys, false});
    const uint16_t* const draws = draw_block(a, item, query, rows, keys, draw_space, ks);
    float inverse[kQueryBlock];
    for (size_t row = 0; row < rows; ++row) {
      float* const line = scores + row * ks;
      hide_keys(line, a.causal ? query + row + 1 : keys, width);
      const SoftmaxRow softmax =
          softmax_row(line, width, a.scale, a.mask, draws ? draws + row * ks : nullptr);
      inverse[row] = 1.0f / softmax.sum;
      const size_t token = size_t(item.start) + query + row;
      if (a.lse) a.lse[token * a.heads + item.head] = softmax.max * a.scale + std::log(softmax.sum);
    }
    tile_product({scores, ks, 1, v, ds, o, ds, rows, keys, dim, false});
    for (size_t row = 0; row < rows; ++row) {
      float* const to = a.o + (size_t(item.start) + query + row) * view.hidden + item.head * dim;
      over_row(dim, [&](size_t i, auto access) HWY_ATTR {
        access.store(hn::Mul(hn::LoadU(d, o + row * ds + i), hn::Set(d, inverse[row])), d, to + i);
      });
    }
  }
}

HWY_INLINE float row_dot(const float* x, const float* y, size_t n) {
  const FloatTag d;
  FloatVector sum = hn::Zero(d);
  over_row(n, [&](size_t i, auto access) HWY_ATTR {
    sum = hn::MulAdd(access.load(d, x + i), access.load(d, y + i), sum);
  });
  return sum_of_lanes(sum);
}

// Query blocks follow each other in one thread, so the sums of dk and dv have one order.
void AttentionBackward(const AttentionArguments& a, const AttentionItem& item, float* workspace) {
  const AttentionView view(a, item);
  const AttentionLayout layout(item.length, a.head_dim);
  const size_t dim = a.head_dim, ks = layout.keys_stride, ds = layout.dim_stride,
               length = item.length;
  float* const kt = workspace;
  float* const vt = kt + layout.transposed;
  float* const k = vt + layout.transposed;
  float* const dk = k + layout.rows;
  float* const dv = dk + layout.rows;
  float* const q = dv + layout.rows;
  float* const d_o = q + layout.block;
  float* const dq = d_o + layout.block;
  float* const scores = dq + layout.block;
  float* const d_scores = scores + layout.scores;
  uint16_t* const draw_space = reinterpret_cast<uint16_t*>(d_scores + layout.scores);
  copy_transposed({view.k, view.qkv_stride, length, dim}, kt, ks);
  copy_transposed({view.v, view.qkv_stride, length, dim}, vt, ks);
  copy_rows({view.k, view.qkv_stride, length, dim}, k, ds);
  const size_t start = size_t(item.start), column = item.head * dim;
  float* const dqkv = a.dqkv + start * view.qkv_stride + column;
  if (a.causal) {
    std::fill(dk, dk + 2 * layout.rows, 0.0f);  // the first blocks do not reach the last keys
  }

  for (size_t query = 0; query < length; query += kQueryBlock) {
    const size_t rows = std::min(kQueryBlock, length - query);
    const size_t keys = a.causal ? query + rows : length, width = view.whole(keys);
    const size_t at = (start + query) * view.hidden + column;
    copy_rows({view.q + query * view.qkv_stride, view.qkv_stride, rows, dim}, q, ds);
    copy_rows({a.d_o + at, view.hidden, rows, dim}, d_o, ds);
    tile_product({q, ds, 1, kt, ks, scores, ks, rows, dim, keys, false});
    tile_product({d_o, ds, 1, vt, ks, d_scores, ks, rows, dim, keys, false});
    const uint16_t* const draws = draw_block(a, item, query, rows, keys, draw_space, ks);
    for (size_t row = 0; row < rows; ++row) {
      float* const line = scores + row * ks;
      hide_keys(line, a.causal ? query + row + 1 : keys, width);
      const float lse = a.lse[(start + query + row) * a.heads + item.head];
      const float delta =
          row_dot(a.d_o + at + row * view.hidden, a.o + at + row * view.hidden, dim);
      softmax_gradient_row(line, d_scores + row * ks, width, {a.scale, lse, delta}, a.mask,
                           draws ? draws + row * ks : nullptr);
    }
    const bool add = query > 0 || a.causal;
    tile_product({scores, 1, ks, d_o, ds, dv, ds, keys, rows, dim, add});
    tile_product({d_scores, 1, ks, q, ds, dk, ds, keys, rows, dim, add});
    tile_product({d_scores, ks, 1, k, ds, dq, ds, rows, keys, dim, false});
    writerows(dq, ds, rows, dim, dqkv + query * view.qkv_stride, view.qkv_stride);
  }
  writerows(dk, ds, length, dim, dqkv + view.hidden, view.qkv_stride);
  writerows(dv, ds, length, dim, dqkv + 2 * view.hidden, view.qkv_stride);
}

}  // namespace snug::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <omp.h>

#include <atomic>

#include "core/error.h"
#include "ops/cuda_workspace.h"
#include "ops/linear.h"

namespace snug {
namespace {

HWY_EXPORT(AttentionForward);
HWY_EXPORT(AttentionBackward);

// Queries of one work item in forward, where long sequences are split; a whole number of blocks.
constexpr size_t kForwardQueries = 6 * kQueryBlock;

// Walks all items of a batch in order: sequences, their heads, and pieces of `queries` queries
// each.
class ItemCursor {
 public:
  ItemCursor(const Batch& batch, size_t heads, size_t queries)
      : batch_(batch), heads_(heads), queries_(queries) {
    enter_sequence();
  }

  // The item with this index, not below that of the previous call; false behind the last one.
  bool seek(int64_t index, AttentionItem& item) {
    while (sequence_ < batch_.dims.sequences && index >= first_ + items_in_sequence()) {
      first_ += items_in_sequence();
      ++sequence_;
      enter_sequence();
    }
    if (sequence_ >= batch_.dims.sequences) return false;
    const size_t local = size_t(index - first_), piece = local % pieces_;
    item = {.start = batch_.starts[sequence_],
            .length = length_,
            .sample = batch_.samples ? batch_.samples[sequence_] : 0,
            .head = local / pieces_,
            .first_query = piece * queries_,
            .end_query = std::min(length_, (piece + 1) * queries_)};
    return true;
  }

 private:
  int64_t items_in_sequence() const { return int64_t(heads_ * pieces_); }
  void enter_sequence() {
    if (sequence_ >= batch_.dims.sequences) return;
    length_ = size_t(batch_.starts[sequence_ + 1] - batch_.starts[sequence_]);
    pieces_ = (length_ + queries_ - 1) / queries_;
  }

  const Batch& batch_;
  size_t heads_, queries_, length_ = 0, pieces_ = 0;
  int64_t sequence_ = 0, first_ = 0;
};

// Calls kernel(item, workspace of the thread) for all items. Which thread takes an item is left to
// chance; what it computes is not.
template <class Kernel>
void over_items(const Call& call, size_t heads, size_t queries, size_t floats_per_thread,
                const Kernel& kernel) {
  const auto workspace = reinterpret_cast<float*>(call.workspace.data());
  const size_t room = call.workspace.size() / (floats_per_thread * sizeof(float));
  SNUG_CHECK(room >= size_t(omp_get_max_threads()));
  std::atomic<int64_t> next = 0;
#pragma omp parallel
  {
    ItemCursor cursor(*call.batch, heads, queries);
    AttentionItem item;
    float* const own = workspace + size_t(omp_get_thread_num()) * floats_per_thread;
    while (cursor.seek(next.fetch_add(1, std::memory_order_relaxed), item)) kernel(item, own);
  }
}

AttentionArguments arguments(const AttentionSpec& spec, const Call& call) {
  return {.heads = size_t(spec.heads),
          .head_dim = size_t(spec.head_dim),
          .scale = 1.0f / std::sqrt(float(spec.head_dim)),
          .causal = spec.causal,
          .mask = dropout_mask(spec.dropout, spec.site, *call.step),
          .qkv = call.in[0].f32(),
          .o = nullptr,
          .lse = nullptr,
          .d_o = nullptr,
          .dqkv = nullptr};
}

size_t forward_floats(const AttentionSpec& spec, int64_t longest) {
  return AttentionLayout(size_t(longest), size_t(spec.head_dim)).forward_floats();
}
size_t backward_floats(const AttentionSpec& spec, int64_t longest) {
  return AttentionLayout(size_t(longest), size_t(spec.head_dim)).backward_floats();
}

}  // namespace

size_t AttentionGradient::workspace_bytes(const Sizing& sizing) const {
  if (sizing.device.kind == DeviceKind::kCuda) {
    // One sum a query and head, o · do; then sums over rows.
    return std::max(size_t(sizing.dims.tokens * spec.heads) * sizeof(float),
                    column_sum_bytes(sizing.in[0].cols, 1));
  }
  return backward_floats(spec, sizing.dims.longest) * sizeof(float) * size_t(sizing.device.threads);
}

void AttentionGradient::run(const Call& call) const {
  AttentionArguments a = arguments(spec, call);
  a.o = call.in[1].f32();
  a.lse = call.in[2].f32();
  a.d_o = call.in[3].f32();
  a.dqkv = call.out[0].f32();
  const size_t longest = size_t(call.batch->dims.longest);
  over_items(call, a.heads, longest, backward_floats(spec, call.batch->dims.longest),
             [&](const AttentionItem& item, float* own) {
               HWY_DYNAMIC_DISPATCH(AttentionBackward)(a, item, own);
             });
  if (call.out.size() > 1 && call.out[1]) {
    const Tensor in[] = {call.out[0], {}};
    LinearEpilogueGradient(Activation::kNone).run({.in = in, .out = call.out, .workspace = {}});
  }
}

size_t Attention::workspace_bytes(const Sizing& sizing) const {
  if (sizing.device.kind == DeviceKind::kCuda) return 0;
  return forward_floats(spec, sizing.dims.longest) * sizeof(float) * size_t(sizing.device.threads);
}

void Attention::run(const Call& call) const {
  SNUG_CHECK(call.in[0].cols == 3 * spec.heads * spec.head_dim &&
             call.out[0].rows == call.in[0].rows);
  AttentionArguments a = arguments(spec, call);
  a.o = call.out[0].f32();
  a.lse = call.out[1].f32();
  over_items(call, a.heads, kForwardQueries, forward_floats(spec, call.batch->dims.longest),
             [&](const AttentionItem& item, float* own) {
               HWY_DYNAMIC_DISPATCH(AttentionForward)(a, item, own);
             });
}

void Attention::backward(const Node& node, GradientWriter& writer) const {
  const ValueId qkv = node.inputs[0], o = node.outputs[0], lse = node.outputs[1];
  const ValueId d_o = writer.gradient_of(o);
  if (d_o == kNoValue) return;
  const auto dqkv = writer.gradient_for(qkv);
  if (!dqkv) return;
  SNUG_CHECK(!dqkv.accumulate);  // nothing else reads qkv
  writer.emit(std::make_shared<AttentionGradient>(spec),
              {writer.saved(qkv), writer.saved(o), writer.saved(lse), d_o}, {dqkv.value});
}

OpPtr attention(const AttentionSpec& spec) {
  SNUG_CHECK(spec.heads > 0 && spec.heads < (1 << 16) && spec.head_dim > 0);
  return std::make_shared<Attention>(spec);
}

}  // namespace snug
#endif  // HWY_ONCE
