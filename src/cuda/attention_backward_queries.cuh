// Backward attention on tensor cores, by tiles of queries: dq alone.
#pragma once

#include "cuda/attention_common.cuh"

namespace snug::cuda::attention_kernels {

template <int kHeadDim, int kWarps, int kKeys>
constexpr size_t queries_shared_bytes() {
  return size_t(2 * 16 * kWarps + 4 * kKeys) * kHeadDim * 2;
}

// dq alone: a block takes a tile of queries and walks the keys.
template <class T, int kHeadDim, int kWarps, int kKeys, int kBlocks, bool kDropout>
__global__ void __launch_bounds__(kWarps * 32, kBlocks) queries_kernel(const Arguments<T> a) {
  if constexpr (has_tensor_cores<T>()) {
    constexpr int kThreads = kWarps * 32, kQueries = 16 * kWarps;
    constexpr int kSteps = kHeadDim / 16, kDimBlocks = kHeadDim / 8, kKeyBlocks = kKeys / 8;
    constexpr bool kPartsStay = kHeadDim <= 64;
    extern __shared__ __align__(128) unsigned char shared[];
    const Place place = place_of(a);
    const int query0 = (a.tiles - 1 - place.tile) * kQueries;
    if (query0 >= place.length) return;
    const int hidden = a.heads * kHeadDim, stride = 3 * hidden;
    const int keys = a.causal ? min(place.length, query0 + kQueries) : place.length;
    const int tiles = (keys + kKeys - 1) / kKeys;
    const T* const q = a.qkv + int64_t(place.start) * stride + place.head * kHeadDim;
    const T* const d_o = a.d_o + int64_t(place.start) * hidden + place.head * kHeadDim;

    constexpr uint32_t kQueryTile = kQueries * kHeadDim * 2, kKeyTile = kKeys * kHeadDim * 2;
    const uint32_t q_tile = shared_address(shared), do_tile = q_tile + kQueryTile,
                   key_tiles = do_tile + kQueryTile;
    const auto copy_keys = [&](int tile) {
      const uint32_t to = key_tiles + uint32_t(tile & 1) * 2 * kKeyTile;
      copy_tile<kHeadDim, kKeys, kThreads>(to, q + hidden, stride, tile * kKeys, place.length,
                                           KeyOfColumn());
      copy_tile<kHeadDim, kKeys, kThreads>(to + kKeyTile, q + 2 * hidden, stride, tile * kKeys,
                                           place.length, KeyOfColumn());
      end_copies();
    };
    copy_tile<kHeadDim, kQueries, kThreads>(q_tile, q, stride, query0, place.length, SameRow());
    copy_tile<kHeadDim, kQueries, kThreads>(do_tile, d_o, hidden, query0, place.length, SameRow());
    copy_keys(0);

    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4,
              t = lane % 4;
    const int row0 = query0 + warp * 16;
    const float keep_scale = kDropout ? a.mask.scale : 1.0f;
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = row0 + half * 8 + g;
      const int64_t at = int64_t(place.start + query) * a.heads + place.head;
      lse[half] = query < place.length ? a.lse[at] * kLog2E : INFINITY;
      delta[half] = query < place.length ? a.row_sums[at] / keep_scale : 0.0f;
    }
    wait_for_copies();
    __syncthreads();
    const QuarterRows<kHeadDim> rows_first(true), chunks_first(false);
    uint32_t q_parts[kSteps][4], do_parts[kSteps][4];
    if constexpr (kPartsStay) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        load_matrices(q_parts[step], rows_first.at(q_tile, warp * 16, 2 * step));
        load_matrices(do_parts[step], rows_first.at(do_tile, warp * 16, 2 * step));
      }
    }
    float dq[kDimBlocks][4] = {};
    const float factor = a.scale * kLog2E;

    for (int tile = 0; tile < tiles; ++tile) {
      if (tile > 0) {
        wait_for_copies();
        __syncthreads();
      }
      if (tile + 1 < tiles) copy_keys(tile + 1);
      const int key0 = tile * kKeys;
      if (row0 >= place.length || (a.causal && key0 >= row0 + 16)) continue;
      const uint32_t k_tile = key_tiles + uint32_t(tile & 1) * 2 * kKeyTile,
                     v_tile = k_tile + kKeyTile;

      float s[kKeyBlocks][4] = {}, dp[kKeyBlocks][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t left_q[4], left_do[4];
        if constexpr (!kPartsStay) {
          load_matrices(left_q, rows_first.at(q_tile, warp * 16, 2 * step));
          load_matrices(left_do, rows_first.at(do_tile, warp * 16, 2 * step));
        }
#pragma unroll
        for (int block = 0; block < kKeyBlocks; block += 2) {
          uint32_t b[4];
          load_matrices(b, chunks_first.at(k_tile, block * 8, 2 * step));
          multiply_add<T>(s[block], kPartsStay ? q_parts[step] : left_q, b[0], b[1]);
          multiply_add<T>(s[block + 1], kPartsStay ? q_parts[step] : left_q, b[2], b[3]);
          load_matrices(b, chunks_first.at(v_tile, block * 8, 2 * step));
          multiply_add<T>(dp[block], kPartsStay ? do_parts[step] : left_do, b[0], b[1]);
          multiply_add<T>(dp[block + 1], kPartsStay ? do_parts[step] : left_do, b[2], b[3]);
        }
      }

      if (key0 + kKeys > place.length || (a.causal && key0 + kKeys > row0 + 1)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int visible = a.causal ? min(place.length, row0 + half * 8 + g + 1) : place.length;
#pragma unroll
          for (int block = 0; block < kKeyBlocks; ++block) {
            const int key = key0 + block / 4 * 32 + t * 8 + block % 4 * 2;
            if (key >= visible) s[block][2 * half] = -INFINITY;
            if (key + 1 >= visible) s[block][2 * half + 1] = -INFINITY;
          }
        }
      }
      uint32_t ds[kKeyBlocks][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row0 + half * 8 + g;
#pragma unroll
        for (int group = 0; group < kKeyBlocks; group += 4) {
          std::array<uint32_t, 4> words = {};
          if constexpr (kDropout) words = draws_of(a, place, query, key0 / 8 + group + t);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int block = group + i;
            float d_score[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const float probability = exp2_of(fmaf(s[block][2 * half + e], factor, -lse[half]));
              float gradient = dp[block][2 * half + e];
              if constexpr (kDropout) {
                const uint32_t threshold = a.mask.threshold << 16;
                if (!(e ? high_kept(words[i], threshold) : low_kept(words[i], threshold))) {
                  gradient = 0.0f;
                }
              }
              d_score[e] = probability * (gradient - delta[half]);
            }
            ds[block][half] = packed<T>(d_score[0], d_score[1]);
          }
        }
      }
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        const uint32_t left[4] = {ds[2 * step][0], ds[2 * step][1], ds[2 * step + 1][0],
                                  ds[2 * step + 1][1]};
#pragma unroll
        for (int block = 0; block < kDimBlocks; block += 2) {
          uint32_t b[4];
          load_transposed(b, rows_first.at(k_tile, step * 16, block));
          multiply_add<T>(dq[block], left, b[0], b[1]);
          multiply_add<T>(dq[block + 1], left, b[2], b[3]);
        }
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = row0 + half * 8 + g;
      T* const to = a.dqkv + int64_t(place.start + query) * stride + place.head * kHeadDim;
      store_quad_row(to, dq, half, a.scale * keep_scale, query < place.length);
    }
  }
}

template <class T, int kHeadDim, int kWarps, int kKeys, int kBlocks>
void start_queries(Arguments<T> a, const Launch& call) {
  const Dims& dims = call.batch->dims;
  a.tiles = tiles_of(dims.longest, 16 * kWarps);
  constexpr size_t kBytes = queries_shared_bytes<kHeadDim, kWarps, kKeys>();
  const dim3 grid(unsigned(a.tiles * dims.sequences), unsigned(a.heads));
  if (a.mask.on()) {
    start(queries_kernel<T, kHeadDim, kWarps, kKeys, kBlocks, true>, grid, kWarps * 32, kBytes,
          call.stream, a);
  } else {
    start(queries_kernel<T, kHeadDim, kWarps, kKeys, kBlocks, false>, grid, kWarps * 32, kBytes,
          call.stream, a);
  }
}

}  // namespace snug::cuda::attention_kernels
