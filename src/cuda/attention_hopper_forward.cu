// Forward attention on Hopper's warpgroup products, for heads of 64. A warpgroup takes 64 queries of one head, a block
// two warpgroups, and all walk the keys of the sequence. The scores of one tile of keys and the output of the one
// before are computed together; two blocks share a multiprocessor, so that one has exponents to take and masks to draw while
// the other multiplies.
//
// Neither warpgroups that take turns at the tensor cores nor draws placed between the start of the products and their
// end were faster on an H200: there the lanes' instructions are what takes time.

#include "cuda/attention_hopper.cuh"

namespace snug::cuda::attention_kernels {
namespace {

constexpr int kGroups = 2, kThreads = kGroups * kGroupThreads, kQueries = 64 * kGroups, kKeys = 64;
// The output of a tile is computed one tile later, while the next one is on its way: three are in use.
constexpr int kStages = 3;
constexpr uint32_t kKeyTile = kKeys * kRowBytes, kStageBytes = 2 * kKeyTile, kQueryTile = kQueries * kRowBytes;
constexpr size_t kBytes = kTileAlign + kQueryTile + kStages * kStageBytes;

// Sequences up to this length leave too many of a block's queries idle.
constexpr int64_t kShort = 192;
// As in attention_forward.cu.
[[maybe_unused]] constexpr float kSlack = 8.0f;

template <class T, bool kDropout>
__global__ void __launch_bounds__(kThreads, 2) hopper_forward_kernel(const __grid_constant__ Arguments<T> a) {
#if SNUG_HOPPER
  __shared__ Place shared_place;
  extern __shared__ unsigned char shared_bytes[];
  const uint32_t first_byte = shared_address(shared_bytes);
  const uint32_t q_tile = (first_byte + kTileAlign - 1) / kTileAlign * kTileAlign, kv_tiles = q_tile + kQueryTile;
  const int hidden = a.heads * kHopperDim, stride = 3 * hidden;
  if (threadIdx.x == 0) shared_place = place_of(a);
  __syncthreads();
  const Place place = shared_place;
  // With a causal mask the last tiles take longest: they start first.
  const int query0 = (a.tiles - 1 - place.tile) * kQueries;
  const bool empty = query0 >= place.length;
  const int keys = a.causal ? min(place.length, query0 + kQueries) : place.length;
  const int tiles = (keys + kKeys - 1) / kKeys;
  const T* const q = a.qkv + int64_t(place.start) * stride + place.head * kHopperDim;

  const auto copy_keys = [&](int tile) {
    const uint32_t to = kv_tiles + uint32_t(tile % kStages) * kStageBytes;
    copy_tile<kHopperDim, kKeys, kThreads>(to, q + hidden, stride, tile * kKeys, place.length, KeyOfColumn());
    copy_tile<kHopperDim, kKeys, kThreads>(to + kKeyTile, q + 2 * hidden, stride, tile * kKeys, place.length,
                                           KeyOfColumn());
    end_copies();
  };
  const auto finish_copies = [&] {
    wait_for_copies();
    show_to_products();
    __syncthreads();
  };
  if (!empty) {
    copy_tile<kHopperDim, kQueries, kThreads>(q_tile, q, stride, query0, place.length, SameRow());
    copy_keys(0);
  }
  zero_padding(reinterpret_cast<uint4*>(a.o), hidden / 8, a.state->tokens, a.tokens);
  if (a.lse) zero_padding(a.lse, a.heads, a.state->tokens, a.tokens);
  if (empty) return;

  const int group = __shfl_sync(0xffffffffu, int(threadIdx.x) / kGroupThreads, 0);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int group0 = query0 + group * 64, row0 = query0 + warp * 16;  // first queries of the warpgroup and of the warp
  const float factor = a.scale * kLog2E;
  DrawRow rows[2];
  if constexpr (kDropout) rows[0] = draw_row(a, place, row0 + g), rows[1] = draw_row(a, place, row0 + 8 + g);

  Accumulator s = {}, out = {};
  uint32_t q_parts[4][4], p[8][2];  // left operands
  float top[2], sum[2] = {};

  const auto scores = [&](int tile) {
    const uint64_t k = tile_descriptor(kv_tiles + uint32_t(tile % kStages) * kStageBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t(&left)[4] = q_parts[step];
      group_multiply<T, 0>(s, left[0], left[1], left[2], left[3], k + uint64_t(step) * kAlongRows, step > 0);
    }
    end_products();
  };
  const auto add_output = [&](int tile) {
    multiply_packed<T>(out, p, kv_tiles + uint32_t(tile % kStages) * kStageBytes + kKeyTile, tile > 0);
    end_products();
  };
  // Hides what a query does not see, and gives the maxima of the rows.
  const auto find_tops = [&](int tile, float (&new_top)[2]) {
    const int key0 = tile * kKeys;
    if (key0 + kKeys > place.length || (a.causal && key0 + kKeys > row0 + 1)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int visible = a.causal ? min(place.length, row0 + half * 8 + g + 1) : place.length;
#pragma unroll
        for (int block = 0; block < 8; ++block) {
          const int key = key0 + block / 4 * 32 + t * 8 + block % 4 * 2;
          if (key >= visible) s[block][2 * half] = -INFINITY;
          if (key + 1 >= visible) s[block][2 * half + 1] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
      for (int block = 1; block < 8; ++block) {
        most = fmaxf(most, fmaxf(s[block][2 * half], s[block][2 * half + 1]));
      }
      new_top[half] = quad_max(most);
    }
  };
  const auto probabilities = [&](int tile) {
#pragma unroll
    for (int block = 0; block < 8; block += 4) {
      DrawBlock of_block;
      if constexpr (kDropout) of_block = draw_block(a, place, tile * (kKeys / 8) + block + t);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float offset = -top[half] * factor;
        std::array<uint32_t, 4> words;
        if constexpr (kDropout) words = draws_of(a, rows[half], of_block);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float first = exp2_of(fmaf(s[block + i][2 * half], factor, offset));
          const float second = exp2_of(fmaf(s[block + i][2 * half + 1], factor, offset));
          sum[half] += first + second;
          p[block + i][half] = packed<T>(first, second);
          if constexpr (kDropout) p[block + i][half] &= kept_halves(a.keep, words[i]);
        }
      }
    }
  };

  finish_copies();
  if (tiles > 1) copy_keys(1);
  const bool there = group0 < place.length;
  int last = 0;  // the tile whose output is still to be added
  if (there) {
    const QuarterRows<kHopperDim> quarter_rows(true);
#pragma unroll
    for (int step = 0; step < 4; ++step) load_matrices(q_parts[step], quarter_rows.at(q_tile, warp * 16, 2 * step));
    before_products();
    scores(0);
    wait_for_products<0>();
    pin(s);
    find_tops(0, top);
    probabilities(0);
  }
  for (int tile = 1; tile < tiles; ++tile) {
    finish_copies();
    if (tile + 1 < tiles) copy_keys(tile + 1);
    if (!there || (a.causal && tile * kKeys >= group0 + 64)) continue;
    pin(p);
    before_products();
    scores(tile);
    add_output(tile - 1);
    last = tile;
    wait_for_products<1>();
    pin(s);
    float new_top[2];
    find_tops(tile, new_top);
    wait_for_products<0>();
    pin(out);
    bool higher = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) higher |= (new_top[half] - top[half]) * factor > kSlack;
    if (__any_sync(0xffffffffu, higher)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float most = fmaxf(top[half], new_top[half]), shrink = exp2_of((top[half] - most) * factor);
        top[half] = most;
        sum[half] *= shrink;
#pragma unroll
        for (int block = 0; block < 8; ++block) {
          out[block][2 * half] *= shrink;
          out[block][2 * half + 1] *= shrink;
        }
      }
    }
    probabilities(tile);
  }
  if (!there) return;
  pin(p);
  before_products();
  add_output(last);
  wait_for_products<0>();
  pin(out);

  // Through the warp's own rows of the tile of queries, for stores of whole chunks.
  unsigned char* const own_rows = shared_bytes + (q_tile - first_byte);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(sum[half]), norm = (kDropout ? a.mask.scale : 1.0f) / total;
    const int row = half * 8 + g, query = row0 + row;
    if (a.lse && t == 0 && query < place.length) {
      a.lse[int64_t(place.start + query) * a.heads + place.head] = top[half] * a.scale + logf(total);
    }
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const uint32_t bits = packed<T>(out[block][2 * half] * norm, out[block][2 * half + 1] * norm);
      *reinterpret_cast<uint32_t*>(own_rows + chunk_offset<kHopperDim>(warp * 16 + row, block) + t * 4) = bits;
    }
  }
  __syncwarp();
  T* const o = a.o + int64_t(place.start) * hidden + place.head * kHopperDim;
#pragma unroll
  for (int i0 = 0; i0 < 16 * 8; i0 += 32) {
    const int row = (i0 + lane) / 8, chunk = lane % 8;
    if (row0 + row >= place.length) continue;
    *reinterpret_cast<uint4*>(o + int64_t(row0 + row) * hidden + chunk * 8) =
        *reinterpret_cast<const uint4*>(own_rows + chunk_offset<kHopperDim>(warp * 16 + row, chunk));
  }
#endif
}

}  // namespace

template <class T>
bool launch_hopper_forward(Arguments<T> a, const Launch& call) {
  const Dims& dims = call.batch->dims;
  const auto kernel = a.mask.on() ? hopper_forward_kernel<T, true> : hopper_forward_kernel<T, false>;
  if (a.head_dim != kHopperDim || dims.longest <= kShort || !has_hopper_body(kernel)) return false;
  a.tiles = tiles_of(dims.longest, kQueries);
  // Smaller blocks are faster where there are too few of these for two on each multiprocessor.
  if (a.tiles * dims.sequences * a.heads < 2 * device_limits().multiprocessors) return false;
  const dim3 grid(unsigned(a.tiles * dims.sequences), unsigned(a.heads));
  start(kernel, grid, kThreads, kBytes, call.stream, a);
  return true;
}

template bool launch_hopper_forward(Arguments<__half>, const Launch&);
template bool launch_hopper_forward(Arguments<__nv_bfloat16>, const Launch&);

}  // namespace snug::cuda::attention_kernels
