// Backward attention on tensor cores, by tiles of keys: dk and dv, and where the gradients of a
// sequence's queries fit shared memory also dq. attention_backward.cu says why and what the
// formulas are.
#pragma once

#include "cuda/attention_common.cuh"

namespace snug::cuda::attention_kernels {

// Lanes i, i + 4, i + 8 and i + 12 hold a row of four words each and get a column each.
__device__ __forceinline__ void transpose_words(std::array<uint32_t, 4>& w, int lane) {
  const bool odd = lane & 4, high = lane & 8;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 4);
    w[i] = odd ? other : w[i];
    w[i + 1] = odd ? w[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 8);
    w[i] = high ? other : w[i];
    w[i + 2] = high ? w[i + 2] : other;
  }
}

// Of two queries: log-sum-exps in powers of two, and delta as above.
struct alignas(16) QueryPair {
  float lse[2], delta[2];
};

template <int kHeadDim, int kWarps, int kQueries, bool kWhole>
struct KeysShared {
  static constexpr int kKeys = 16 * kWarps;
  static constexpr uint32_t kKeyTile = kKeys * kHeadDim * 2, kQueryTile = kQueries * kHeadDim * 2;
  static constexpr uint32_t kGradientTile = kKeys * kQueries * 2;
  static constexpr uint32_t k = 0;
  static constexpr uint32_t v = kKeyTile;
  // Two tiles of ds; with kWhole a tile of v, once it is in registers, makes room for them.
  static_assert(!kWhole || kGradientTile >= kKeyTile);
  static constexpr uint32_t queries = v + (kWhole ? 2 * kGradientTile : kKeyTile);
  static constexpr uint32_t pairs = queries + 4 * kQueryTile;
  // longest: a multiple of kQueries
  static size_t bytes(int longest) {
    const size_t dq = kWhole && longest > kKeys ? size_t(longest) * kHeadDim * sizeof(float) : 0;
    return pairs + size_t(longest) * sizeof(QueryPair) / 2 + dq;
  }
};

// The last part of dq = ds k for one tile of queries: the sum over all tiles of keys before is in
// shared memory, in the order of the accumulators.
template <class T, int kHeadDim, int kWarps, int kQueries>
struct QueryGradient {
  static constexpr int kRowGroups = kQueries / 16, kColumnGroups = kWarps / kRowGroups;
  static constexpr int kDims = kHeadDim / kColumnGroups, kBlocks = kDims / 8, kKeys = 16 * kWarps;
  static_assert(kColumnGroups * kRowGroups == kWarps && kDims % 16 == 0);

  uint32_t k_tile;
  float4* sums;  // [tiles, warps, blocks, lanes]
  T* dq;         // of the sequence and head
  int stride, length, warp, lane;
  float factor;
  QuarterRows<kHeadDim> k_rows;
  QuarterRows<kQueries> ds_rows;

  __device__ __forceinline__ void add(uint32_t ds_tile, int tile, bool first, bool last) const {
    constexpr int kAtOnce = kBlocks < 4 ? kBlocks : 4;  // blocks of columns; registers are short
    const int row_group = warp % kRowGroups, column_group = warp / kRowGroups;
#pragma unroll
    for (int block0 = 0; block0 < kBlocks; block0 += kAtOnce) {
      float4* const own = sums + ((size_t(tile) * kWarps + warp) * kBlocks + block0) * 32 + lane;
      float acc[kAtOnce][4] = {};
      if (!first) {
#pragma unroll
        for (int block = 0; block < kAtOnce; ++block) {
          const float4 sum = own[block * 32];
          acc[block][0] = sum.x, acc[block][1] = sum.y, acc[block][2] = sum.z,
          acc[block][3] = sum.w;
        }
      }
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        uint32_t ds[4];
        load_transposed(ds, ds_rows.at(ds_tile, step * 16, row_group * 2));
#pragma unroll
        for (int block = 0; block < kAtOnce; block += 2) {
          uint32_t b[4];
          load_transposed(b, k_rows.at(k_tile, step * 16, column_group * kBlocks + block0 + block));
          multiply_add<T>(acc[block], ds, b[0], b[1]);
          multiply_add<T>(acc[block + 1], ds, b[2], b[3]);
        }
      }
      if (!last) {
#pragma unroll
        for (int block = 0; block < kAtOnce; ++block) {
          own[block * 32] = {acc[block][0], acc[block][1], acc[block][2], acc[block][3]};
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = tile * kQueries + row_group * 16 + half * 8 + lane / 4;
          T* const to = dq + int64_t(query) * stride + column_group * kDims + block0 * 8;
          store_quad_row(to, acc, half, factor, query < length);
        }
      }
    }
  }
};

// kWhole: the block walks all tiles of keys, and computes dq too.
template <class T, int kHeadDim, int kWarps, int kQueries, int kBlocks, bool kWhole, bool kDropout>
__global__ void __launch_bounds__(kWarps * 32, kBlocks) keys_kernel(const Arguments<T> a) {
  if constexpr (has_tensor_cores<T>()) {
    using Shared = KeysShared<kHeadDim, kWarps, kQueries, kWhole>;
    constexpr int kThreads = kWarps * 32, kKeys = Shared::kKeys;
    constexpr int kSteps = kHeadDim / 16, kDimBlocks = kHeadDim / 8;
    // Queries whose scores are in registers at once.
    constexpr int kPart = 32, kPartBlocks = kPart / 8;
    // Left operands, in registers.
    constexpr bool kValuesStay = kHeadDim <= 64, kKeysStay = kValuesStay;
    static_assert(kValuesStay || !kWhole);
    extern __shared__ __align__(128) unsigned char shared[];
    const int hidden = a.heads * kHeadDim, stride = 3 * hidden;
    zero_padding(reinterpret_cast<uint4*>(a.dqkv), stride / 8, a.state->tokens, a.tokens);

    const Place place = place_of(a);
    const int first_tile = kWhole ? 0 : place.tile;
    if (first_tile * kKeys >= place.length) return;
    const int key_tiles = (place.length + kKeys - 1) / kKeys,
              end_tile = kWhole ? key_tiles : first_tile + 1;
    const int query_tiles = (place.length + kQueries - 1) / kQueries;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4,
              t = lane % 4;
    const T* const q = a.qkv + int64_t(place.start) * stride + place.head * kHeadDim;
    const T* const d_o = a.d_o + int64_t(place.start) * hidden + place.head * kHeadDim;
    T* const dq = a.dqkv + int64_t(place.start) * stride + place.head * kHeadDim;

    const uint32_t base = shared_address(shared), k_tile = base + Shared::k;
    uint32_t v_tile = base + Shared::v;
    QueryPair* const pairs = reinterpret_cast<QueryPair*>(shared + Shared::pairs);
    const float keep_scale = kDropout ? a.mask.scale : 1.0f, per_keep_scale = 1.0f / keep_scale;

    const auto copy_queries = [&](int tile) {
      const uint32_t to = base + Shared::queries + uint32_t(tile & 1) * 2 * Shared::kQueryTile;
      copy_tile<kHeadDim, kQueries, kThreads>(to, q, stride, tile * kQueries, place.length,
                                              SameRow());
      copy_tile<kHeadDim, kQueries, kThreads>(to + Shared::kQueryTile, d_o, hidden, tile * kQueries,
                                              place.length, SameRow());
      end_copies();
    };
    const auto copy_keys = [&](int tile) {
      copy_tile<kHeadDim, kKeys, kThreads>(k_tile, q + hidden, stride, tile * kKeys, place.length,
                                           KeyOfRow());
      end_copies();
    };
    const auto copy_values = [&](int tile, uint32_t to) {
      copy_tile<kHeadDim, kKeys, kThreads>(to, q + 2 * hidden, stride, tile * kKeys, place.length,
                                           KeyOfRow());
      end_copies();
    };
    const auto first_query_tile = [&](int key_tile) {
      return a.causal ? key_tile * kKeys / kQueries : 0;
    };
    copy_keys(first_tile);
    copy_values(first_tile, v_tile);
    copy_queries(first_query_tile(first_tile));

    // A query that is not there gets probabilities of zero.
    const auto keep_pair = [&](int query, float delta) {
      const bool there = query < place.length;
      QueryPair& pair = pairs[query / 2];
      pair.lse[query & 1] =
          there ? a.lse[int64_t(place.start + query) * a.heads + place.head] * kLog2E : INFINITY;
      pair.delta[query & 1] = there ? delta * per_keep_scale : 0.0f;
    };
    if constexpr (kWhole) {
      // Eight lanes a query, sixteen bytes each at a time
      const T* const o = a.o + int64_t(place.start) * hidden + place.head * kHeadDim;
#pragma unroll 8
      for (int query = int(threadIdx.x) / 8; query < query_tiles * kQueries;
           query += kThreads / 8) {
        float delta = 0.0f;
        // No branch: many loads shall be on their way.
        const int64_t row = min(query, place.length - 1);
#pragma unroll
        for (int column = 0; column < kHeadDim; column += 64) {
          const uint4 x = *reinterpret_cast<const uint4*>(o + row * hidden + column + lane % 8 * 8);
          const uint4 y =
              *reinterpret_cast<const uint4*>(d_o + row * hidden + column + lane % 8 * 8);
          const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 u = unpacked<T>(xs[i]), w = unpacked<T>(ys[i]);
            delta = fmaf(u.x, w.x, fmaf(u.y, w.y, delta));
          }
        }
#pragma unroll
        for (int i = 1; i < 8; i *= 2) delta += __shfl_xor_sync(0xffffffffu, delta, i);
        if (lane % 8 == 0) keep_pair(query, delta);
      }
    } else {
      for (int query = first_query_tile(first_tile) * kQueries + int(threadIdx.x);
           query < query_tiles * kQueries; query += kThreads) {
        keep_pair(query, query < place.length
                             ? a.row_sums[int64_t(place.start + query) * a.heads + place.head]
                             : 0.0f);
      }
    }

    const QuarterRows<kHeadDim> rows_first(true), chunks_first(false);
    const float factor = a.scale * kLog2E;
    for (int key_tile = first_tile; key_tile < end_tile; ++key_tile) {
      const int key0 = key_tile * kKeys, first_query = first_query_tile(key_tile);
      wait_for_copies();
      __syncthreads();
      uint32_t k_parts[kSteps][4], v_parts[kSteps][4];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if constexpr (kKeysStay) {
          load_matrices(k_parts[step], rows_first.at(k_tile, warp * 16, 2 * step));
        }
        if constexpr (kValuesStay) {
          load_matrices(v_parts[step], rows_first.at(v_tile, warp * 16, 2 * step));
        }
      }
      float dk[kDimBlocks][4] = {}, dv[kDimBlocks][4] = {};

      const auto add_query_gradient = [&](int tile) {
        if constexpr (kWhole) {
          const QueryGradient<T, kHeadDim, kWarps, kQueries> gradient = {
              .k_tile = k_tile,
              .sums = reinterpret_cast<float4*>(pairs + a.longest / 2),
              .dq = dq,
              .stride = stride,
              .length = place.length,
              .warp = warp,
              .lane = lane,
              .factor = a.scale * keep_scale,
              .k_rows = QuarterRows<kHeadDim>(true),
              .ds_rows = QuarterRows<kQueries>(false)};
          const int last = a.causal ? min(key_tiles - 1, (tile * kQueries + kQueries - 1) / kKeys)
                                    : key_tiles - 1;
          gradient.add(base + Shared::v + uint32_t(tile & 1) * Shared::kGradientTile, tile,
                       key_tile == 0, key_tile == last);
        }
      };

      for (int tile = first_query; tile < query_tiles; ++tile) {
        wait_for_copies();
        __syncthreads();
        if (tile + 1 < query_tiles) copy_queries(tile + 1);
        const uint32_t q_tile =
            base + Shared::queries + uint32_t(tile & 1) * 2 * Shared::kQueryTile;
        const uint32_t do_tile = q_tile + Shared::kQueryTile;
        // dq is one tile behind: the barrier above is then the only one of a tile. Half of the
        // warps compute it before their scores and half behind, so that one half multiplies while
        // the other takes exponents.
        const bool early = warp >= kWarps / 2;
        if (tile > first_query && early) add_query_gradient(tile - 1);

#pragma unroll
        for (int part = 0; part < kQueries; part += kPart) {
          const int query0 = tile * kQueries + part;
          float s[kPartBlocks][4] = {}, dp[kPartBlocks][4] = {};
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            uint32_t left[4];
            if constexpr (!kKeysStay) {
              load_matrices(left, rows_first.at(k_tile, warp * 16, 2 * step));
            }
#pragma unroll
            for (int block = 0; block < kPartBlocks; block += 2) {
              uint32_t b[4];
              load_matrices(b, chunks_first.at(q_tile, part + block * 8, 2 * step));
              multiply_add<T>(s[block], kKeysStay ? k_parts[step] : left, b[0], b[1]);
              multiply_add<T>(s[block + 1], kKeysStay ? k_parts[step] : left, b[2], b[3]);
            }
          }
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            uint32_t left[4];
            if constexpr (!kValuesStay) {
              load_matrices(left, rows_first.at(v_tile, warp * 16, 2 * step));
            }
#pragma unroll
            for (int block = 0; block < kPartBlocks; block += 2) {
              uint32_t b[4];
              load_matrices(b, chunks_first.at(do_tile, part + block * 8, 2 * step));
              multiply_add<T>(dp[block], kValuesStay ? v_parts[step] : left, b[0], b[1]);
              multiply_add<T>(dp[block + 1], kValuesStay ? v_parts[step] : left, b[2], b[3]);
            }
          }

          const int key = key0 + warp * 16 + 2 * g;  // of row g; that of row g + 8 follows it
          if (key0 + kKeys > place.length || (a.causal && key0 + kKeys > query0 + 1)) {
#pragma unroll
            for (int block = 0; block < kPartBlocks; ++block) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int query = query0 + block * 8 + t * 2 + i % 2;
                if (key + i / 2 >= place.length || (a.causal && key + i / 2 > query)) {
                  s[block][i] = -INFINITY;
                }
              }
            }
          }
          uint32_t p[kPartBlocks][2], ds[kPartBlocks][2];  // as left operands
#pragma unroll
          for (int block = 0; block < kPartBlocks; block += 2) {
            std::array<uint32_t, 4> words = {};
            if constexpr (kDropout) {
              const int own = g % 4;  // one query of the four of these blocks
              words = draws_of(a, place, query0 + (block + own / 2) * 8 + t * 2 + own % 2,
                               (key0 + warp * 16) / 8 + g / 4);
              transpose_words(words, lane);
            }
#pragma unroll
            for (int next = 0; next < 2; ++next) {
              const int at = block + next, query = query0 + at * 8 + t * 2;
              const QueryPair pair = pairs[query / 2];
              float kept_p[4], d_score[4];
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int e = i % 2, row = i / 2;
                const float probability = exp2_of(fmaf(s[at][i], factor, -pair.lse[e]));
                float gradient = dp[at][i];
                kept_p[i] = probability;
                if constexpr (kDropout) {
                  const uint32_t word = words[2 * next + e], threshold = a.mask.threshold << 16;
                  const bool kept = row ? high_kept(word, threshold) : low_kept(word, threshold);
                  kept_p[i] = kept ? probability : 0.0f;
                  gradient = kept ? gradient : 0.0f;
                }
                d_score[i] = probability * (gradient - pair.delta[e]);
              }
              p[at][0] = packed<T>(kept_p[0], kept_p[1]);
              p[at][1] = packed<T>(kept_p[2], kept_p[3]);
              ds[at][0] = packed<T>(d_score[0], d_score[1]);
              ds[at][1] = packed<T>(d_score[2], d_score[3]);
            }
          }
          if constexpr (kWhole) {
            unsigned char* const to =
                shared + Shared::v + uint32_t(tile & 1) * Shared::kGradientTile + t * 4;
#pragma unroll
            for (int block = 0; block < kPartBlocks; ++block) {
              const int chunk = part / 8 + block;
              *reinterpret_cast<uint32_t*>(to + chunk_offset<kQueries>(warp * 16 + g, chunk)) =
                  ds[block][0];
              *reinterpret_cast<uint32_t*>(to + chunk_offset<kQueries>(warp * 16 + g + 8, chunk)) =
                  ds[block][1];
            }
          }
#pragma unroll
          for (int step = 0; step < kPart / 16; ++step) {
            const uint32_t left_p[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0],
                                        p[2 * step + 1][1]};
            const uint32_t left_ds[4] = {ds[2 * step][0], ds[2 * step][1], ds[2 * step + 1][0],
                                         ds[2 * step + 1][1]};
#pragma unroll
            for (int block = 0; block < kDimBlocks; block += 2) {
              uint32_t b[4];
              load_transposed(b, rows_first.at(do_tile, part + step * 16, block));
              multiply_add<T>(dv[block], left_p, b[0], b[1]);
              multiply_add<T>(dv[block + 1], left_p, b[2], b[3]);
              load_transposed(b, rows_first.at(q_tile, part + step * 16, block));
              multiply_add<T>(dk[block], left_ds, b[0], b[1]);
              multiply_add<T>(dk[block + 1], left_ds, b[2], b[3]);
            }
          }
        }
        if (tile > first_query && !early) add_query_gradient(tile - 1);
      }
      if constexpr (kWhole) {
        __syncthreads();
        const bool more = key_tile + 1 < end_tile;
        if (more) {
          // The last tile's ds is in one half of that memory; the other is free.
          v_tile = base + Shared::v + uint32_t(query_tiles & 1) * Shared::kGradientTile;
          copy_values(key_tile + 1, v_tile);
          copy_queries(first_query_tile(key_tile + 1));
        }
        add_query_gradient(query_tiles - 1);
        if (more) {
          __syncthreads();
          copy_keys(key_tile + 1);
        }
      }

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = key0 + warp * 16 + 2 * g + half;
        T* const to = dq + int64_t(key) * stride + hidden;
        store_quad_row(to, dk, half, a.scale * keep_scale, key < place.length);
        store_quad_row(to + hidden, dv, half, keep_scale, key < place.length);
      }
    }
  }
}

template <class T, int kHeadDim, int kWarps, int kQueries, int kBlocks, bool kWhole>
void start_keys(Arguments<T> a, const Launch& call) {
  const Dims& dims = call.batch->dims;
  a.tiles = kWhole ? 1 : tiles_of(dims.longest, 16 * kWarps);
  a.longest = tiles_of(dims.longest, kQueries) * kQueries;
  const size_t bytes = KeysShared<kHeadDim, kWarps, kQueries, kWhole>::bytes(a.longest);
  const dim3 grid(unsigned(a.tiles * dims.sequences), unsigned(a.heads));
  if (a.mask.on()) {
    start(keys_kernel<T, kHeadDim, kWarps, kQueries, kBlocks, kWhole, true>, grid, kWarps * 32,
          bytes, call.stream, a);
  } else {
    start(keys_kernel<T, kHeadDim, kWarps, kQueries, kBlocks, kWhole, false>, grid, kWarps * 32,
          bytes, call.stream, a);
  }
}

}  // namespace snug::cuda::attention_kernels
