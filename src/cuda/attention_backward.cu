// Backward attention on tensor cores. Probabilities are computed again from the kept log-sum-exp,
// the dropout mask from its counters. No sum is left to atomics, so results do not depend on the
// order of blocks.
//
// Scores are computed transposed, keys by queries: then the probabilities and their gradients
// already have the layout of the left operand of dv += pᵀ do and dk += dsᵀ q, and only dq needs
// them through shared memory. Where the gradients of a sequence's queries fit shared memory, one
// block takes a whole head of a sequence and does everything in one walk (five products); otherwise
// blocks take a tile of keys each, and a second kernel computes dq (seven products).
//
// Constant factors wait until the end: with ds = p (kept · dp - delta), where delta is o · do
// divided by the scale of kept elements, dk and dq lack that scale and the scale of the scores, dv
// the first.

#include "cuda/attention_backward_keys.cuh"
#include "cuda/attention_backward_queries.cuh"
#include "cuda/attention_hopper.cuh"
#include "ops/linear.h"

namespace snug::cuda {
namespace {

using namespace attention_kernels;

// Two kernels; what does not fit the device's shared memory goes the general way.
template <class T, int kHeadDim, int kWarps, int kQueries, int kKeys>
void start_two(Arguments<T> a, const Launch& call) {
  const int longest = tiles_of(call.batch->dims.longest, kQueries) * kQueries;
  const size_t bytes = std::max(KeysShared<kHeadDim, kWarps, kQueries, false>::bytes(longest),
                                queries_shared_bytes<kHeadDim, 4, kKeys>());
  if (bytes > device_limits().shared_bytes) return launch_general_backward(a, call);
  launch_row_sums(a, call.stream);
  start_keys<T, kHeadDim, kWarps, kQueries, 1, false>(a, call);
  start_queries<T, kHeadDim, 4, kKeys, 2>(a, call);
}

// One block per head and sequence leaves processors idle where there are few of them. Costs count
// products of tiles.
bool whole_is_faster(const Dims& dims, int heads, int keys, int multiprocessors) {
  const int64_t pairs = dims.sequences * heads, tiles = tiles_of(dims.longest, keys);
  const auto rounds = [&](int64_t blocks) {
    return (blocks + multiprocessors - 1) / multiprocessors;
  };
  return rounds(pairs) * tiles * 5 <= rounds(pairs * tiles) * 7;
}

// On tensor cores where there are any for the type and the head size.
template <class T>
void launch_any_backward(const Arguments<T>& a, const Launch& call) {
  const Dims& dims = call.batch->dims;
  if constexpr (!std::is_same_v<T, float>) {
    const DeviceLimits limits = device_limits();
    if (limits.capability >= (std::is_same_v<T, __half> ? 75 : 80)) {
      switch (a.head_dim) {
        case 32:
          return start_two<T, 32, 8, 64, 64>(a, call);
        case 64:
          if (KeysShared<64, 8, 64, true>::bytes(tiles_of(dims.longest, 64) * 64) <=
                  limits.shared_bytes &&
              whole_is_faster(dims, a.heads, 128, limits.multiprocessors)) {
            return start_keys<T, 64, 8, 64, 1, true>(a, call);
          }
          if constexpr (std::is_same_v<T, __half>) {
            if (limits.capability == 75) {
              return start_two<T, 64, 8, 32, 64>(a, call);  // 64 KB are all it has
            }
          }
          return start_two<T, 64, 8, 64, 64>(a, call);
        case 96:
          return start_two<T, 96, 8, 32, 32>(a, call);
        case 128:
          return start_two<T, 128, 8, 32, 32>(a, call);
      }
    }
  }
  launch_general_backward(a, call);
}

// Whether it has added dqkv's sums over rows to `sums`, which may be null.
template <class T>
bool launch_backward(const AttentionGradient& op, float* sums, const Launch& call) {
  Arguments<T> a = arguments<T>(op.spec, call);
  a.o = static_cast<T*>(call.in[1].data);
  a.lse = call.in[2].f32();
  a.d_o = static_cast<const T*>(call.in[3].data);
  a.dqkv = static_cast<T*>(call.out[0].data);
  a.row_sums = reinterpret_cast<float*>(call.workspace.data());
  if constexpr (!std::is_same_v<T, float>) {
    const Started started = launch_hopper_backward(a, sums, call);
    if (started != Started::kNot) return started == Started::kWithSums;
  }
  launch_any_backward(a, call);
  return false;
}

}  // namespace

void launch(const AttentionGradient& op, const Launch& call) {
  SNUG_CHECK(op.spec.head_dim <= 256);
  const Dims& dims = call.batch->dims;
  if (dims.tokens == 0 || dims.sequences == 0) return;
  SNUG_CHECK(call.workspace.size() >= size_t(dims.tokens * op.spec.heads) * sizeof(float));
  const Tensor dbias = call.out.size() > 1 ? call.out[1] : Tensor();
  bool has_sums = false;
  with_type(call.in[0].dtype,
            [&]<class T>() { has_sums = launch_backward<T>(op, dbias.f32(), call); });
  if (dbias && !has_sums) {
    const Tensor in[] = {call.out[0], {}}, out[] = {{}, dbias};
    launch(LinearEpilogueGradient(Activation::kNone),
           {.in = in, .out = out, .workspace = call.workspace, .stream = call.stream});
  }
}

}  // namespace snug::cuda
