// Backward attention on Hopper's warpgroup products, for heads of 64: the one walk of
// attention_backward_keys.cuh with the formulas of attention_backward.cu, its work divided among
// warpgroups. Two compute scores, keys by queries, and from them dk and dv of 64 keys each. A
// third, the helper, copies tiles and multiplies dq, whose sums over tiles of keys stay in shared
// memory. A fourth draws dropout masks. They meet at barriers in shared memory only, so that
// products, exponentials and integer work of different tiles overlap.
//
// Where dq of a sequence does not fit, or where there are few sequences and heads, a cluster of two
// blocks shares a head: each takes every second tile of queries, and at the end of a tile of keys
// one adds up dk and the other dv.

#include "cuda/attention_hopper.cuh"
#include "cuda/column_sums.cuh"

namespace snug::cuda::attention_kernels {
namespace {

// The second: who uses tiles.
constexpr int kMathThreads = 2 * kGroupThreads, kTileThreads = 3 * kGroupThreads;
constexpr int kKeys = 128, kQueries = 64;  // of tiles
// Masks of tiles of scores, drawn ahead; so many are let go of together, which costs every thread
// of the math warps an instruction at a barrier.
constexpr int kMasks = 8, kMasksTogether = 4;

constexpr int threads_of(bool dropout) { return kTileThreads + (dropout ? kGroupThreads : 0); }
// Together as many as the threads start with, 128 or 168 each.
[[maybe_unused]] constexpr int math_registers(bool dropout) { return dropout ? 192 : 208; }
[[maybe_unused]] constexpr int helper_registers(bool dropout) { return dropout ? 80 : 88; }
[[maybe_unused]] constexpr int kDrawerRegisters = 48;

// Shared memory, from an address that is aligned to tiles.
constexpr uint32_t kKeyTile = kKeys * kRowBytes, kQueryTile = kQueries * kRowBytes;
[[maybe_unused]] constexpr uint32_t kKeysAt = 0, kValuesAt = kKeyTile;
constexpr uint32_t kStagesAt = 2 * kKeyTile;                // two of a tile of queries and its do
constexpr uint32_t kScoresAt = kStagesAt + 4 * kQueryTile;  // ds[keys, queries]
// Masks, a word per thread: which elements are kept.
constexpr uint32_t kBitsAt = kScoresAt + kKeyTile;
// lse and delta of the queries, then sums of dq.
constexpr uint32_t kRowsAt = kBitsAt + kMasks * kMathThreads * 4;

// Sums over rows of what a warp has written of dq, or of dk and dv.
struct ColumnSums {
  float keys[kMathThreads / kWarp][2][kHopperDim];
  float queries[kGroupThreads / kWarp][kHopperDim];
};
constexpr size_t kStaticBytes = sizeof(ColumnSums) + 256;  // with barriers

// queries: those of a block, whole tiles
size_t shared_bytes_of(int queries) {
  return kTileAlign + kRowsAt + size_t(queries) * (2 + kHopperDim) * sizeof(float);
}

#if SNUG_HOPPER

struct Barriers {
  uint64_t full[2], empty[2];                    // a stage
  uint64_t scores_full, scores_empty;            // ds
  uint64_t mask_full[kMasks];                    // a mask
  uint64_t mask_empty[kMasks / kMasksTogether];  // and those let go of together
};

__device__ __forceinline__ ColumnSums& column_sums() {
  __shared__ ColumnSums sums;
  return sums;
}

// sums[64] += the sums over rows of a warp's part of an accumulator.
__device__ __forceinline__ void add_rows(const Accumulator& rows, float* sums) {
  float columns[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) columns[i] = rows[i / 2][i % 2] + rows[i / 2][2 + i % 2];
  add_over_rows(columns);
  const int lane = int(threadIdx.x) % kWarp;
  float2& own = *reinterpret_cast<float2*>(sums + lane / 4 * 8 + lane % 4 * 2);
  own.x += columns[0], own.y += columns[1];
}

// What the warpgroups of a block agree on.
template <class T, int kCluster>
struct Walk {
  const Arguments<T>& a;
  Place place;
  int rank;                    // of the block in its cluster
  int key_tiles, query_tiles;  // of the sequence; of the block
  int turns = 0;               // products of the two kinds of tiles
  int hidden, stride;
  uint32_t base;          // of shared memory
  unsigned char* memory;  // the same
  // Barriers.
  uint32_t full, empty, scores_full, scores_empty, mask_full, mask_empty;

  // Tile `local` of the block's is this tile of the sequence's.
  __device__ __forceinline__ int tile_of(int local) const { return local * kCluster + rank; }
  __device__ __forceinline__ int first_local(int key_tile) const {
    return a.causal ? (key_tile * (kKeys / kQueries) - rank + kCluster - 1) / kCluster : 0;
  }
  __device__ __forceinline__ float* lse() const {
    return reinterpret_cast<float*>(memory + kRowsAt);
  }
  __device__ __forceinline__ float* deltas() const { return lse() + a.longest; }
  __device__ __forceinline__ float4* sums() const {
    return reinterpret_cast<float4*>(deltas() + a.longest);
  }
  __device__ __forceinline__ uint32_t stage(int turn) const {
    return base + kStagesAt + uint32_t(turn & 1) * 2 * kQueryTile;
  }
  __device__ __forceinline__ uint32_t* bits(int turn) const {
    return reinterpret_cast<uint32_t*>(memory + kBitsAt) + turn % kMasks * kMathThreads;
  }
  __device__ __forceinline__ uint32_t mask_full_at(int turn) const {
    return mask_full + uint32_t(turn % kMasks) * 8;
  }
  __device__ __forceinline__ uint32_t masks_empty(int turn) const {
    return mask_empty + uint32_t(turn % kMasks / kMasksTogether) * 8;
  }
  // Calls f(turn, key_tile, local) for the products of a tile of keys and a tile of queries in
  // their order, and end() behind those of a tile of keys.
  template <class F, class End>
  __device__ __forceinline__ void over_turns(const F& f, const End& end) const {
    int turn = 0;
    for (int key_tile = 0; key_tile < key_tiles; ++key_tile) {
      for (int local = first_local(key_tile); local < query_tiles; ++local) {
        f(turn++, key_tile, local);
      }
      end();
    }
  }
  __device__ __forceinline__ const T* q() const {
    return a.qkv + int64_t(place.start) * stride + place.head * kHopperDim;
  }
  __device__ __forceinline__ T* dq() const {
    return a.dqkv + int64_t(place.start) * stride + place.head * kHopperDim;
  }
};

// Nobody of the block reads the tiles of keys and values any more; the next ones are there.
__device__ __forceinline__ void leave_keys() { meet<1, kTileThreads>(); }
__device__ __forceinline__ void enter_keys() { meet<2, kTileThreads>(); }

// Behind the last product with a tile of keys: nobody reads it any more, nor ds. In a cluster all
// threads of both blocks meet for this.
template <int kCluster>
__device__ __forceinline__ void end_keys() {
  if constexpr (kCluster > 1) {
    cluster_meet();
  } else {
    leave_keys();
  }
}

// Then the blocks of a cluster give each other shares of dk and dv through the place of ds, which
// holds half of one: they meet when a half is there and when it is read, also those that exchange
// nothing. (Into the tiles of keys and values both would fit, but racecheck does not follow writes
// of another block over what was copied asynchronously.)
[[maybe_unused]] constexpr int kShareParts = 2;
template <int kCluster>
__device__ __forceinline__ void let_others_exchange() {
  if constexpr (kCluster > 1) {
    for (int i = 0; i < 2 * kShareParts - 1; ++i) cluster_meet();
  }
}

// The helper's part.
template <class T, int kCluster>
struct Helper {
  const Walk<T, kCluster>& walk;
  const float keep_scale;
  const int thread = int(threadIdx.x) - kMathThreads;

  __device__ __forceinline__ void copy_keys(int key_tile) const {
    const T* const k = walk.q() + walk.hidden;
    copy_tile<kHopperDim, kKeys, kGroupThreads>(walk.base + kKeysAt, k, walk.stride,
                                                key_tile * kKeys, walk.place.length, KeyOfRow(),
                                                thread);
    copy_tile<kHopperDim, kKeys, kGroupThreads>(walk.base + kValuesAt, k + walk.hidden, walk.stride,
                                                key_tile * kKeys, walk.place.length, KeyOfRow(),
                                                thread);
    end_copies();
  }
  // lse in powers of two, and -delta, of a tile of queries. A query that is not there gets
  // probabilities of zero.
  __device__ __forceinline__ void find_rows(int local, float per_keep_scale) const {
    const Arguments<T>& a = walk.a;
    const int64_t first = int64_t(walk.place.start) * walk.hidden + walk.place.head * kHopperDim;
    // Eight lanes a query, sixteen bytes each.
    const int query0 = walk.tile_of(local) * kQueries, part = thread % 8;
    constexpr int kAtOnce = kGroupThreads / 8;
    uint4 o[kQueries / kAtOnce], d_o[kQueries / kAtOnce];
    float lse[kQueries / kAtOnce];
#pragma unroll
    for (int i = 0; i < kQueries / kAtOnce; ++i) {
      const int64_t row = min(query0 + i * kAtOnce + thread / 8, walk.place.length - 1);
      o[i] = *reinterpret_cast<const uint4*>(a.o + first + row * walk.hidden + part * 8);
      d_o[i] = *reinterpret_cast<const uint4*>(a.d_o + first + row * walk.hidden + part * 8);
      lse[i] = a.lse[(walk.place.start + row) * a.heads + walk.place.head];
    }
#pragma unroll
    for (int i = 0; i < kQueries / kAtOnce; ++i) {
      const uint32_t xs[4] = {o[i].x, o[i].y, o[i].z, o[i].w},
                     ys[4] = {d_o[i].x, d_o[i].y, d_o[i].z, d_o[i].w};
      float delta = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 u = unpacked<T>(xs[j]), w = unpacked<T>(ys[j]);
        delta = fmaf(u.x, w.x, fmaf(u.y, w.y, delta));
      }
#pragma unroll
      for (int j = 1; j < 8; j *= 2) delta += __shfl_xor_sync(0xffffffffu, delta, j);
      const int row = i * kAtOnce + thread / 8;
      const bool there = query0 + row < walk.place.length;
      if (part == 0) {
        walk.lse()[local * kQueries + row] = there ? lse[i] * kLog2E : INFINITY;
        walk.deltas()[local * kQueries + row] = there ? -delta * per_keep_scale : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void copy_queries(int turn, int local) const {
    const Arguments<T>& a = walk.a;
    const T* const d_o =
        a.d_o + int64_t(walk.place.start) * walk.hidden + walk.place.head * kHopperDim;
    const int query0 = walk.tile_of(local) * kQueries;
    copy_tile<kHopperDim, kQueries, kGroupThreads>(walk.stage(turn), walk.q(), walk.stride, query0,
                                                   walk.place.length, SameRow(), thread);
    copy_tile<kHopperDim, kQueries, kGroupThreads>(walk.stage(turn) + kQueryTile, d_o, walk.hidden,
                                                   query0, walk.place.length, SameRow(), thread);
    end_copies();
  }

  __device__ __forceinline__ void finish_copies() const {
    wait_for_copies();
    show_to_products();
  }

  __device__ __forceinline__ void prepare(int turn, int key_tile, int local) const {
    if (turn >= 2) await(walk.empty + uint32_t(turn & 1) * 8, uint32_t(turn >> 1 & 1) ^ 1);
    copy_queries(turn, local);
    if (key_tile == 0) find_rows(local, 1.0f / keep_scale);
    finish_copies();
    arrive(walk.full + uint32_t(turn & 1) * 8);
  }

  // dq += ds k for a tile of queries.
  __device__ __forceinline__ void add_query_gradient(int turn, int key_tile, int local) const {
    float4* const own = walk.sums() + size_t(local) * (kQueries * kHopperDim / 4) + thread;
    Accumulator sum = {};
    if (key_tile > 0) {
#pragma unroll
      for (int block = 0; block < 8; ++block) {
        const float4 four = own[block * kGroupThreads];
        sum[block][0] = four.x, sum[block][1] = four.y, sum[block][2] = four.z,
        sum[block][3] = four.w;
      }
    }
    await(walk.scores_full, uint32_t(turn & 1));
    pin(sum);
    before_products();
    const uint64_t ds = tile_descriptor(walk.base + kScoresAt),
                   k = tile_descriptor(walk.base + kKeysAt);
#pragma unroll
    for (uint64_t step = 0; step < kKeys / 16; ++step) {
      group_multiply<T, 1, 1>(sum, ds + step * kAcrossRows, k + step * kAcrossRows, 1);
    }
    end_products();
    wait_for_products<0>();
    pin(sum);
    if (thread % 32 == 0) arrive(walk.scores_empty);

    const int tile = walk.tile_of(local);
    const int last = walk.a.causal
                         ? min(walk.key_tiles - 1, (tile * kQueries + kQueries - 1) / kKeys)
                         : walk.key_tiles - 1;
    if (key_tile < last) {
#pragma unroll
      for (int block = 0; block < 8; ++block) {
        own[block * kGroupThreads] = {sum[block][0], sum[block][1], sum[block][2], sum[block][3]};
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = tile * kQueries + thread / 32 * 16 + half * 8 + thread % 32 / 4;
        store_quad_row(walk.dq() + int64_t(query) * walk.stride, sum, half,
                       walk.a.scale * keep_scale, query < walk.place.length);
      }
      if (walk.a.pieces) add_rows(sum, column_sums().queries[thread / kWarp]);
    }
  }

  __device__ __forceinline__ void run() const {
    int turn = 0;
    // The first tile of queries of the first tile of keys that has one: others have one from the
    // start on.
    if (walk.query_tiles > 0) prepare(0, 0, 0);
    finish_copies();
    for (int key_tile = 0; key_tile < walk.key_tiles; ++key_tile) {
      enter_keys();
      for (int local = walk.first_local(key_tile); local < walk.query_tiles; ++local, ++turn) {
        if (local + 1 < walk.query_tiles) {
          prepare(turn + 1, key_tile, local + 1);
        } else if (key_tile + 1 < walk.key_tiles &&
                   walk.first_local(key_tile + 1) < walk.query_tiles) {
          prepare(turn + 1, key_tile + 1, walk.first_local(key_tile + 1));
        }
        add_query_gradient(turn, key_tile, local);
      }
      end_keys<kCluster>();
      const bool more = key_tile + 1 < walk.key_tiles;
      if (more) copy_keys(key_tile + 1);
      let_others_exchange<kCluster>();
      if (more) finish_copies();
    }
  }
};

// The one that draws masks, ahead of the others.
template <class T, int kCluster>
struct Drawer {
  const Walk<T, kCluster>& walk;
  const int thread = int(threadIdx.x) - kTileThreads;

  // A thread of a math warp gets a word: bit 16i + 2j + e is for its row i and column 8j + 2t + e.
  // The word of lane 4g + t of warp w comes from the calls for block 2w + g / 4 of eight keys, word
  // g % 4 of each. Two neighbours here share a block and t, one for the first eight of those
  // queries and one for the others.
  __device__ __forceinline__ void draw(int turn, int key_tile, int local) const {
    const Arguments<T>& a = walk.a;
    const int block = thread / 8, t = thread % 4;
    const bool second = thread & 4;
    const DrawBlock of_block = draw_block(a, walk.place, key_tile * (kKeys / 8) + block);
    const int query0 = walk.tile_of(local) * kQueries + (second ? 32 : 0) + t * 2;
    // Of eight queries: bits 8 to 15 for the first key of a word, 24 to 31 for its second.
    uint32_t kept[4] = {};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const auto words = draws_of(a, draw_row(a, walk.place, query0 + n / 2 * 8 + n % 2), of_block);
#pragma unroll
      for (int i = 0; i < 4; ++i) kept[i] = kept[i] >> 1 | (kept_tops(a.keep, words[i]) & kTops);
    }
    uint32_t* const to =
        walk.bits(turn) + block / 2 * 32 + (block % 2 * 4 + (second ? 2 : 0)) * 4 + t;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, second ? kept[i] : kept[2 + i], 4);
      to[i * 4] = second ? kept[2 + i] | other >> 8 : kept[i] >> 8 | other;
    }
  }

  __device__ __forceinline__ void run() const {
    walk.over_turns(
        [&](int turn, int key_tile, int local) {
          if (turn >= kMasks && turn % kMasksTogether == 0) {
            await(walk.masks_empty(turn), uint32_t(turn / kMasks - 1) & 1);
          }
          draw(turn, key_tile, local);
          arrive(walk.mask_full_at(turn));
        },
        [] {
          if constexpr (kCluster > 1) end_keys<kCluster>();
          let_others_exchange<kCluster>();
        });
  }
};

// The part of the two others.
template <class T, int kCluster, bool kDropout>
struct Math {
  const Walk<T, kCluster>& walk;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;

  // Hides keys that are not there, and with a causal mask those behind a query.
  __device__ __forceinline__ void hide(Accumulator& s, int key0, int query0) const {
    const int key = key0 + 2 * (lane / 4), length = walk.place.length;
    if (key0 + 16 <= length && !(walk.a.causal && key0 + 15 > query0)) return;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = query0 + block * 8 + lane % 4 * 2 + i % 2;
        if (key + i / 2 >= length || (walk.a.causal && key + i / 2 > query)) {
          s[block][i] = -INFINITY;
        }
      }
    }
  }

  // The two take turns at the first products, so that one has scores to work on while the other's
  // are computed.
  __device__ __forceinline__ void take_turn(int group) const { meet_at(3 + group, kMathThreads); }
  __device__ __forceinline__ void pass_turn(int group, int turn) const {
    if (group == 0 || turn + 1 < walk.turns) come_to(4 - group, kMathThreads);
  }

  // The stage of this turn may be overwritten.
  __device__ __forceinline__ void release(int turn) const {
    __syncwarp();
    if (lane == 0) arrive(walk.empty + uint32_t(turn & 1) * 8);
  }

  __device__ __forceinline__ uint32_t take_mask(int turn) const {
    await(walk.mask_full_at(turn), uint32_t(turn / kMasks) & 1);
    const uint32_t bits = walk.bits(turn)[threadIdx.x];
    if (turn % kMasksTogether == kMasksTogether - 1) arrive(walk.masks_empty(turn));
    return bits;
  }

  __device__ __forceinline__ void run(float factor, float keep_scale) const {
    const Arguments<T>& a = walk.a;
    const int g = lane / 4, t = lane % 4,
              group = __shfl_sync(0xffffffffu, int(threadIdx.x) / kGroupThreads, 0);
    const uint32_t rows = uint32_t(group) * 64 * kRowBytes;
    const uint32_t k_rows = walk.base + kKeysAt + rows, v_rows = walk.base + kValuesAt + rows;
    // The row and chunk this lane addresses when the warp stores two blocks of ds.
    const uint32_t ds_row =
        walk.base + kScoresAt + chunk_offset<kQueries>(warp * 16 + lane % 16, lane / 16);
    if (group == 1 && walk.turns > 0) come_to(3, kMathThreads);
    int turn = 0;
    for (int key_tile = 0; key_tile < walk.key_tiles; ++key_tile) {
      // Of the warp.
      const int first = walk.first_local(key_tile), key0 = key_tile * kKeys + warp * 16;
      Accumulator s = {}, dp = {}, dk = {}, dv = {};
      uint32_t p[8][2], ds[8][2];
      enter_keys();
      for (int local = first; local < walk.query_tiles; ++local, ++turn) {
        const uint32_t q_tile = walk.stage(turn), do_tile = q_tile + kQueryTile;
        const int query0 = walk.tile_of(local) * kQueries;
        if (local > first) {
          wait_for_products<0>();  // dk and dv of the tile before
          pin(dk);
          pin(dv);
          release(turn - 1);
        }
        await(walk.full + uint32_t(turn & 1) * 8, uint32_t(turn >> 1 & 1));
        take_turn(group);
        before_products();
        multiply_rows<T>(s, k_rows, q_tile);
        end_products();
        multiply_rows<T>(dp, v_rows, do_tile);
        end_products();
        pass_turn(group, turn);
        const uint32_t bits = kDropout ? take_mask(turn) : 0;
        const int row = local * kQueries + t * 2;  // of the block's queries, the lane's first
        float2 lse[8];
#pragma unroll
        for (int block = 0; block < 8; ++block) {
          lse[block] = *reinterpret_cast<const float2*>(walk.lse() + row + block * 8);
        }
        wait_for_products<1>();  // scores
        pin(s);

        hide(s, key0, query0);
        wait_for_products<0>();  // gradients of probabilities
        pin(dp);
#pragma unroll
        for (int block = 0; block < 8; ++block) {
          const float2 offset = lse[block];
          const float2 delta = *reinterpret_cast<const float2*>(walk.deltas() + row + block * 8);
          float kept[4], d_score[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float probability =
                exp2_of(fmaf(s[block][i], factor, i % 2 ? -offset.y : -offset.x));
            kept[i] =
                !kDropout || (bits >> (i / 2 * 16 + block * 2 + i % 2) & 1) ? probability : 0.0f;
            d_score[i] = fmaf(kept[i], dp[block][i], probability * (i % 2 ? delta.y : delta.x));
          }
          p[block][0] = packed<T>(kept[0], kept[1]);
          p[block][1] = packed<T>(kept[2], kept[3]);
          ds[block][0] = packed<T>(d_score[0], d_score[1]);
          ds[block][1] = packed<T>(d_score[2], d_score[3]);
        }
        pin(p);
        before_products();
        multiply_packed<T>(dv, p, do_tile, local > first);
        end_products();

        if (turn > 0) await(walk.scores_empty, uint32_t((turn - 1) & 1));
#pragma unroll
        for (int block = 0; block < 8; block += 2) {
          store_matrices(ds_row ^ uint32_t(block * 16), ds[block][0], ds[block][1],
                         ds[block + 1][0], ds[block + 1][1]);
        }
        pin(ds);
        before_products();
        multiply_packed<T>(dk, ds, q_tile, local > first);
        end_products();
        show_to_products();
        __syncwarp();
        if (lane == 0) arrive(walk.scores_full);
      }
      wait_for_products<0>();
      pin(dk);
      pin(dv);
      if (first < walk.query_tiles) release(turn - 1);
      end_keys<kCluster>();
      bool own_dk = true, own_dv = true;
      if constexpr (kCluster > 1) {
        own_dk = walk.rank == 0, own_dv = !own_dk;
        exchange(dk, dv);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = key0 + 2 * g + half;
        T* const to = walk.dq() + int64_t(key) * walk.stride + walk.hidden;
        if (own_dk) store_quad_row(to, dk, half, a.scale * keep_scale, key < walk.place.length);
        if (own_dv) store_quad_row(to + walk.hidden, dv, half, keep_scale, key < walk.place.length);
      }
      if (a.pieces) {
        if (own_dk) add_rows(dk, column_sums().keys[warp][0]);
        if (own_dv) add_rows(dv, column_sums().keys[warp][1]);
      }
    }
  }

  // The block of rank 0 gets the other one's share of dk and gives its own of dv; see
  // let_others_exchange().
  __device__ __forceinline__ void exchange(Accumulator& dk, Accumulator& dv) const {
    const bool gives_dv = walk.rank == 0;
    const uint32_t to =
        address_at(walk.base + kScoresAt + threadIdx.x * 16, uint32_t(walk.rank ^ 1));
    const float4* const got =
        reinterpret_cast<const float4*>(walk.memory + kScoresAt) + threadIdx.x;
    constexpr int kBlocks = 8 / kShareParts;
    static_assert(kBlocks * kMathThreads * sizeof(float4) <= kKeyTile);
#pragma unroll
    for (int part = 0; part < kShareParts; ++part) {
      if (part > 0) cluster_meet();
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const int block = part * kBlocks + i;
        float four[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = gives_dv ? dv[block][j] : dk[block][j];
        store_there(to + uint32_t(i) * kMathThreads * 16, four);
      }
      cluster_meet();
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const float4 four = got[i * kMathThreads];
        const float more[4] = {four.x, four.y, four.z, four.w};
        const int block = part * kBlocks + i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          dk[block][j] += gives_dv ? more[j] : 0.0f;
          dv[block][j] += gives_dv ? 0.0f : more[j];
        }
      }
    }
  }
};

// The block's piece of the sums of its head's columns, when all who add to them have come.
template <class T>
__device__ __forceinline__ void write_sums(const Arguments<T>& a, const Place& place,
                                           float keep_scale) {
  const ColumnSums& sums = column_sums();
  // dq, dk, dv.
  const int part = int(threadIdx.x) / kHopperDim, column = int(threadIdx.x) % kHopperDim;
  if (part > 2) return;
  float total = 0.0f;
  if (part == 0) {
#pragma unroll
    for (const auto& of_warp : sums.queries) total += of_warp[column];
  } else {
#pragma unroll
    for (const auto& of_warp : sums.keys) total += of_warp[part - 1][column];
  }
  const int hidden = a.heads * kHopperDim;
  const int64_t piece = place.sequence * a.tiles + place.tile;
  a.pieces[piece * 3 * hidden + part * hidden + place.head * kHopperDim + column] =
      total * (part < 2 ? a.scale * keep_scale : keep_scale);
}

#endif  // SNUG_HOPPER

template <class T, int kCluster, bool kDropout>
__global__ void __launch_bounds__(threads_of(kDropout), 1)
    hopper_backward_kernel(const __grid_constant__ Arguments<T> a) {
#if SNUG_HOPPER
  __shared__ Barriers barriers;
  static_assert(sizeof(Barriers) + sizeof(ColumnSums) <= kStaticBytes);
  extern __shared__ unsigned char shared_bytes[];
  const int hidden = a.heads * kHopperDim;
  const Place place = place_of(a);  // its tile is the block's rank
  const auto zero_rest = [&] {
    zero_padding(reinterpret_cast<uint4*>(a.dqkv), 3 * hidden / 8, a.state->tokens, a.tokens);
  };
  for (int i = int(threadIdx.x); i < int(sizeof(ColumnSums) / sizeof(float));
       i += threads_of(kDropout)) {
    reinterpret_cast<float*>(&column_sums())[i] = 0.0f;
  }
  if (place.length == 0) {
    __syncthreads();
    if (a.pieces) write_sums(a, place, 1.0f);
    return zero_rest();
  }
  const uint32_t first_byte = shared_address(shared_bytes);
  const uint32_t base = (first_byte + kTileAlign - 1) / kTileAlign * kTileAlign;
  const int all_tiles = (place.length + kQueries - 1) / kQueries;
  Walk<T, kCluster> walk = {.a = a,
                            .place = place,
                            .rank = place.tile,
                            .key_tiles = (place.length + kKeys - 1) / kKeys,
                            .query_tiles = (all_tiles - place.tile + kCluster - 1) / kCluster,
                            .hidden = hidden,
                            .stride = 3 * hidden,
                            .base = base,
                            .memory = shared_bytes + (base - first_byte),
                            .full = shared_address(barriers.full),
                            .empty = shared_address(barriers.empty),
                            .scores_full = shared_address(&barriers.scores_full),
                            .scores_empty = shared_address(&barriers.scores_empty),
                            .mask_full = shared_address(barriers.mask_full),
                            .mask_empty = shared_address(barriers.mask_empty)};
  walk.over_turns([&](int turn, int, int) { walk.turns = turn + 1; }, [] {});
  const int group = __shfl_sync(0xffffffffu, int(threadIdx.x) / kGroupThreads, 0);
  const float keep_scale = kDropout ? a.mask.scale : 1.0f;
  const Helper<T, kCluster> helper = {walk, keep_scale};
  if (group == 2) helper.copy_keys(0);
  // All that is read will be in the cache soon; the first walk over queries does not wait for
  // memory.
  const int64_t row_bytes = int64_t(hidden) * 2, head_bytes = place.head * int64_t(kRowBytes);
  for (int row = int(threadIdx.x); row < place.length; row += threads_of(kDropout)) {
    const int64_t token = place.start + row;
    const char* const qkv =
        reinterpret_cast<const char*>(a.qkv) + token * 3 * row_bytes + head_bytes;
    for (int part = 0; part < 3; ++part) prefetch(qkv + part * row_bytes);
    prefetch(reinterpret_cast<const char*>(a.o) + token * row_bytes + head_bytes);
    prefetch(reinterpret_cast<const char*>(a.d_o) + token * row_bytes + head_bytes);
  }
  if (threadIdx.x == 0) {
    constexpr uint32_t kMathWarps = kMathThreads / 32, kHelperWarps = kGroupThreads / 32;
    for (uint32_t stage = 0; stage < 2; ++stage) {
      init_barrier(walk.full + stage * 8, kGroupThreads);
      init_barrier(walk.empty + stage * 8, kMathWarps);
    }
    init_barrier(walk.scores_full, kMathWarps);
    init_barrier(walk.scores_empty, kHelperWarps);
    for (uint32_t mask = 0; mask < kMasks; ++mask) {
      init_barrier(walk.mask_full + mask * 8, kGroupThreads);
    }
    for (uint32_t part = 0; part < kMasks / kMasksTogether; ++part) {
      init_barrier(walk.mask_empty + part * 8, kMathThreads);
    }
  }
  if constexpr (kCluster > 1) {
    cluster_meet();
  } else {
    __syncthreads();
  }
  if (group == 2) {
    give_registers<helper_registers(kDropout)>();
    helper.run();
  } else if (group < 2) {
    take_registers<math_registers(kDropout)>();
    const Math<T, kCluster, kDropout> math = {walk};
    math.run(a.scale * kLog2E, keep_scale);
  } else {
    give_registers<kDrawerRegisters>();
    const Drawer<T, kCluster> drawer = {walk};
    drawer.run();
  }
  if (a.pieces && group < 3) {
    leave_keys();
    write_sums(a, place, keep_scale);
  }
  zero_rest();
#endif
}

template <class T, int kCluster>
auto kernel_of(bool dropout) {
  return dropout ? hopper_backward_kernel<T, kCluster, true>
                 : hopper_backward_kernel<T, kCluster, false>;
}

template <class T, int kCluster>
Started start_hopper(Arguments<T> a, float* sums, const Launch& call) {
  const Dims& dims = call.batch->dims;
  const int64_t blocks = kCluster * dims.sequences;  // of a head, one piece of the sums each
  const int64_t cols = 3 * a.heads * kHopperDim;
  if (sums && blocks <= kColumnSumPieces) {
    a.pieces =
        room_for_pieces(call.pending, piece_bytes(blocks, 1, cols), call.workspace, call.stream);
  }
  a.tiles = kCluster;
  a.longest = tiles_of(dims.longest, kQueries * kCluster) * kQueries;
  auto* const kernel = kernel_of<T, kCluster>(a.mask.on());
  const size_t bytes = shared_bytes_of(a.longest);
  SNUG_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks), unsigned(a.heads));
  config.blockDim = dim3(unsigned(threads_of(a.mask.on())));
  config.dynamicSmemBytes = bytes;
  config.stream = call.stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  SNUG_CUDA(cudaLaunchKernelEx(&config, kernel, a));
  if (!a.pieces) return Started::kWithoutSums;
  add_pieces(call.pending, {a.pieces, blocks, 1, cols, {{sums}}}, call.stream);
  return Started::kWithSums;
}

}  // namespace

template <class T>
Started launch_hopper_backward(const Arguments<T>& a, float* sums, const Launch& call) {
  const Dims& dims = call.batch->dims;
  if (a.head_dim != kHopperDim || dims.longest <= kKeys) return Started::kNot;
  if (!has_hopper_body(kernel_of<T, 1>(a.mask.on()))) return Started::kNot;
  const DeviceLimits limits = device_limits();
  const auto fits = [&](int cluster) {
    const int queries = tiles_of(dims.longest, kQueries * cluster) * kQueries;
    return shared_bytes_of(queries) + kStaticBytes <= limits.shared_bytes;
  };
  // Rounds of blocks over the multiprocessors, in units of one head; sharing a head costs about a
  // tenth.
  const auto rounds = [&](int64_t cluster) {
    const int64_t blocks = cluster * dims.sequences * a.heads;
    return double((blocks + limits.multiprocessors - 1) / limits.multiprocessors) / double(cluster);
  };
  // With few blocks, kernels that make one of every tile of keys are faster.
  const bool enough = 3 * 2 * dims.sequences * a.heads >= limits.multiprocessors;
  if (fits(1) && rounds(1) <= 1.1 * rounds(2)) return start_hopper<T, 1>(a, sums, call);
  return fits(2) && enough ? start_hopper<T, 2>(a, sums, call) : Started::kNot;
}

template Started launch_hopper_backward(const Arguments<__half>&, float*, const Launch&);
template Started launch_hopper_backward(const Arguments<__nv_bfloat16>&, float*, const Launch&);

}  // namespace snug::cuda::attention_kernels
