// Forward attention on tensor cores: a block takes a tile of queries of one head and walks the keys
// of the sequence, keeping a running maximum and sum per row. Scores and probabilities never leave
// registers.

#include "cuda/attention_hopper.cuh"

namespace snug::cuda {
namespace {

using namespace attention_kernels;

// Queries of a block: 16 * kWarps.
template <int kHeadDim, int kWarps, int kKeys>
constexpr size_t forward_shared_bytes() {
  return size_t(16 * kWarps + 4 * kKeys) * kHeadDim * 2;
}

// The running maximum is let behind the true one by this many powers of two before sums are
// rescaled: most tiles then need no pass over the output.
constexpr float kSlack = 8.0f;

template <class T, int kHeadDim, int kWarps, int kKeys, int kBlocks, bool kDropout>
__global__ void __launch_bounds__(kWarps * 32, kBlocks) forward_kernel(const Arguments<T> a) {
  if constexpr (has_tensor_cores<T>()) {
    constexpr int kThreads = kWarps * 32, kRows = 16, kQueries = kRows * kWarps;
    constexpr int kSteps = kHeadDim / 16, kDimBlocks = kHeadDim / 8, kKeyBlocks = kKeys / 8;
    extern __shared__ __align__(128) unsigned char shared[];
    const int hidden = a.heads * kHeadDim, stride = 3 * hidden;
    const int64_t real = a.state->tokens;
    zero_padding(reinterpret_cast<uint4*>(a.o), hidden / 8, real, a.tokens);
    if (a.lse) zero_padding(a.lse, a.heads, real, a.tokens);

    const auto place = place_of(a);
    // With a causal mask the last tiles take longest: they start first.
    const int query0 = (a.tiles - 1 - place.tile) * kQueries;
    if (query0 >= place.length) return;
    const int keys = a.causal ? min(place.length, query0 + kQueries) : place.length;
    const int tiles = (keys + kKeys - 1) / kKeys;
    const T* const q = a.qkv + int64_t(place.start) * stride + place.head * kHeadDim;
    const T* const k = q + hidden;
    const T* const v = k + hidden;

    const uint32_t q_tile = shared_address(shared), kv_tiles = q_tile + kQueries * kHeadDim * 2;
    constexpr uint32_t kTileBytes = kKeys * kHeadDim * 2;
    const auto copy_keys = [&](int tile) {
      const uint32_t to = kv_tiles + uint32_t(tile & 1) * 2 * kTileBytes;
      copy_tile<kHeadDim, kKeys, kThreads>(to, k, stride, tile * kKeys, place.length,
                                           KeyOfColumn());
      copy_tile<kHeadDim, kKeys, kThreads>(to + kTileBytes, v, stride, tile * kKeys, place.length,
                                           KeyOfColumn());
      end_copies();
    };
    copy_tile<kHeadDim, kQueries, kThreads>(q_tile, q, stride, query0, place.length, SameRow());
    copy_keys(0);
    wait_for_copies();
    __syncthreads();

    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4,
              t = lane % 4;
    const int row0 = query0 + warp * kRows;  // first query of the warp
    const QuarterRows<kHeadDim> rows_first(true), chunks_first(false);
    uint32_t q_parts[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_matrices(q_parts[step], rows_first.at(q_tile, warp * kRows, 2 * step));
    }

    float out[kDimBlocks][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    const float factor = a.scale * kLog2E;

    for (int tile = 0; tile < tiles; ++tile) {
      if (tile > 0) {
        wait_for_copies();
        __syncthreads();
      }
      if (tile + 1 < tiles) copy_keys(tile + 1);
      const int key0 = tile * kKeys;
      if (row0 >= place.length || (a.causal && key0 >= row0 + kRows)) continue;
      const uint32_t k_tile = kv_tiles + uint32_t(tile & 1) * 2 * kTileBytes,
                     v_tile = k_tile + kTileBytes;

      float s[kKeyBlocks][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int block = 0; block < kKeyBlocks; block += 2) {
          uint32_t b[4];
          load_matrices(b, chunks_first.at(k_tile, block * 8, 2 * step));
          multiply_add<T>(s[block], q_parts[step], b[0], b[1]);
          multiply_add<T>(s[block + 1], q_parts[step], b[2], b[3]);
        }
      }

      if (key0 + kKeys > place.length || (a.causal && key0 + kKeys > row0 + 1)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = row0 + half * 8 + g;
          const int visible = a.causal ? min(place.length, query + 1) : place.length;
#pragma unroll
          for (int block = 0; block < kKeyBlocks; ++block) {
            const int key = key0 + block / 4 * 32 + t * 8 + block % 4 * 2;
            if (key >= visible) s[block][2 * half] = -INFINITY;
            if (key + 1 >= visible) s[block][2 * half + 1] = -INFINITY;
          }
        }
      }

      bool higher = false;
      float new_top[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
        for (int block = 1; block < kKeyBlocks; ++block) {
          most = fmaxf(most, fmaxf(s[block][2 * half], s[block][2 * half + 1]));
        }
        new_top[half] = fmaxf(top[half], quad_max(most));
        higher |= (new_top[half] - top[half]) * factor > kSlack;
      }
      if (__any_sync(0xffffffffu, higher)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float shrink = exp2_of((top[half] - new_top[half]) * factor);
          top[half] = new_top[half];
          sum[half] *= shrink;
#pragma unroll
          for (int block = 0; block < kDimBlocks; ++block) {
            out[block][2 * half] *= shrink;
            out[block][2 * half + 1] *= shrink;
          }
        }
      }

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float offset = -top[half] * factor;
#pragma unroll
        for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[block][e] = exp2_of(fmaf(s[block][e], factor, offset));
            sum[half] += s[block][e];
          }
        }
      }
      if constexpr (kDropout) {
        const uint32_t threshold = a.mask.threshold << 16;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int block = 0; block < kKeyBlocks; block += 4) {
            const auto words = draws_of(a, place, row0 + half * 8 + g, key0 / 8 + block + t);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (!low_kept(words[i], threshold)) s[block + i][2 * half] = 0.0f;
              if (!high_kept(words[i], threshold)) s[block + i][2 * half + 1] = 0.0f;
            }
          }
        }
      }

#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const pair = &s[2 * step + i / 2][i % 2 * 2];
          p[i] = packed<T>(pair[0], pair[1]);
        }
#pragma unroll
        for (int block = 0; block < kDimBlocks; block += 2) {
          uint32_t b[4];
          load_transposed(b, rows_first.at(v_tile, step * 16, block));
          multiply_add<T>(out[block], p, b[0], b[1]);
          multiply_add<T>(out[block + 1], p, b[2], b[3]);
        }
      }
    }
    if (row0 >= place.length) return;

    // Through the warp's own rows of the tile of queries, for stores of whole chunks.
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = quad_sum(sum[half]), norm = (kDropout ? a.mask.scale : 1.0f) / total;
      const int row = half * 8 + g, query = row0 + row;
      if (a.lse && t == 0 && query < place.length) {
        a.lse[int64_t(place.start + query) * a.heads + place.head] =
            top[half] * a.scale + logf(total);
      }
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
        const uint32_t bits =
            packed<T>(out[block][2 * half] * norm, out[block][2 * half + 1] * norm);
        *reinterpret_cast<uint32_t*>(shared + chunk_offset<kHeadDim>(warp * kRows + row, block) +
                                     t * 4) = bits;
      }
    }
    __syncwarp();
    T* const o = a.o + int64_t(place.start) * hidden + place.head * kHeadDim;
#pragma unroll
    for (int i0 = 0; i0 < kRows * kDimBlocks; i0 += 32) {
      const int row = (i0 + lane) / kDimBlocks, chunk = (i0 + lane) % kDimBlocks;
      if (row0 + row >= place.length) continue;
      *reinterpret_cast<uint4*>(o + int64_t(row0 + row) * hidden + chunk * 8) =
          *reinterpret_cast<const uint4*>(shared +
                                          chunk_offset<kHeadDim>(warp * kRows + row, chunk));
    }
  }
}

template <class T, int kHeadDim, int kWarps, int kKeys, int kBlocks>
void start_forward(Arguments<T> a, const Launch& call) {
  const Dims& dims = call.batch->dims;
  a.tiles = tiles_of(dims.longest, 16 * kWarps);
  constexpr size_t kBytes = forward_shared_bytes<kHeadDim, kWarps, kKeys>();
  if (kBytes > device_limits().shared_bytes) return launch_general_forward(a, call);
  const dim3 grid(unsigned(a.tiles * dims.sequences), unsigned(a.heads));
  start(a.mask.on() ? forward_kernel<T, kHeadDim, kWarps, kKeys, kBlocks, true>
                    : forward_kernel<T, kHeadDim, kWarps, kKeys, kBlocks, false>,
        grid, kWarps * 32, kBytes, call.stream, a);
}

template <class T>
void launch_forward(const Attention& op, const Launch& call) {
  Arguments<T> a = arguments<T>(op.spec, call);
  a.o = static_cast<T*>(call.out[0].data);
  a.lse = call.out.size() > 1 ? call.out[1].f32() : nullptr;
  if constexpr (!std::is_same_v<T, float>) {
    const int64_t longest = call.batch->dims.longest;
    if (launch_hopper_forward(a, call)) return;
    if (device_limits().capability >= (std::is_same_v<T, __half> ? 75 : 80)) {
      switch (op.spec.head_dim) {
        case 32:
          return start_forward<T, 32, 4, 64, 3>(a, call);
        case 64:
          // Small blocks waste fewer rows where there are few queries. Blocks of 128 queries were
          // no faster on an H200.
          if (longest <= 32) return start_forward<T, 64, 2, 32, 7>(a, call);
          return start_forward<T, 64, 4, 64, 3>(a, call);
        case 96:
          return start_forward<T, 96, 4, 64, 2>(a, call);
        case 128:
          return start_forward<T, 128, 4, 64, 2>(a, call);
      }
    }
  }
  launch_general_forward(a, call);
}

}  // namespace

void launch(const Attention& op, const Launch& call) {
  SNUG_CHECK(op.spec.head_dim <= 256);
  if (call.batch->dims.tokens == 0 || call.batch->dims.sequences == 0) return;
  with_type(call.in[0].dtype, [&]<class T>() { launch_forward<T>(op, call); });
}

}  // namespace snug::cuda
