// Forward attention on Hopper's warpgroup products, for heads of 64. A warpgroup takes 64 queries
// of one head, a block two warpgroups, and all walk the keys of the sequence, which the copy engine
// brings some tiles ahead; the warpgroups wait for tiles, not for each other. The scores of one
// tile of keys and the output of the one before are computed together; two blocks share a
// multiprocessor, so that one has exponents to take and masks to draw while the other multiplies.
//
// Neither warpgroups that take turns at the tensor cores nor draws placed between the start of the
// products and their end were faster on an H200: there the lanes' instructions are what takes time.

#include "cuda/attention_hopper.cuh"
#include "cuda/tensor_copies.cuh"

namespace snug::cuda::attention_kernels {
namespace {

constexpr int kGroups = 2, kThreads = kGroups * kGroupThreads, kQueries = 64 * kGroups, kKeys = 64;
// The output of a tile is computed one tile later, while the next two are on their way. The first
// warp starts the copies and may be up to a tile ahead of others.
constexpr int kStages = 4, kAhead = 2;
static_assert(kStages >= kAhead + 2);
constexpr uint32_t kKeyTile = kKeys * kRowBytes, kStageBytes = 2 * kKeyTile,
                   kQueryTile = kQueries * kRowBytes;
constexpr size_t kBytes = kTileAlign + kQueryTile + kStages * kStageBytes;

// Sequences up to this length leave too many of a block's queries idle.
constexpr int64_t kShort = 192;
// Exponents are relative to the largest score of the row so far, or to one of before: maxima are
// looked for in the first tile, and then only where what a lane has of a row adds up to more than
// this. Below it, fp16 holds every element.
[[maybe_unused]] constexpr float kMostAdded = 8192.0f;

template <class T>
struct ForwardArguments : Arguments<T> {
  CUtensorMap key_tiles;     // of qkv: 64 columns of kKeys rows, in the order of KeyOfColumn
  uint32_t threshold_twice;  // the mask's, in both halves
  float factor;              // of scores in exponents of two
};

struct Shared {
  Place place;
  int whole_tiles;  // of keys, up to the last token of all sequences
  DrawStem stem;
  uint64_t full[kStages], empty[kStages];  // barriers
};

// kHeavy: draws are compared in the way that needs more instructions and knows all thresholds.
enum class Dropout : uint8_t { kNone, kUsual, kHeavy };

template <class T, Dropout kKind>
__global__ void __launch_bounds__(kThreads, 2)
    hopper_forward_kernel(const __grid_constant__ ForwardArguments<T> a) {
#if SNUG_HOPPER
  constexpr bool kDropout = kKind != Dropout::kNone;
  // What is the same for all lanes of a warp: the compiler is told.
  const auto in_warp = [](int x) { return int(__reduce_or_sync(0xffffffffu, unsigned(x))); };
  __shared__ Shared shared;
  extern __shared__ unsigned char shared_bytes[];
  const uint32_t first_byte = shared_address(shared_bytes);
  const uint32_t q_tile = (first_byte + kTileAlign - 1) / kTileAlign * kTileAlign,
                 kv_tiles = q_tile + kQueryTile;
  const int hidden = a.heads * kHopperDim, stride = 3 * hidden;
  const uint32_t full = shared_address(shared.full), empty = shared_address(shared.empty);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(full + i * 8, 1);
      init_barrier(empty + i * 8, kThreads / kWarp);
    }
    show_barriers();
    shared.place = place_of(a);
    shared.whole_tiles = (a.state->tokens - shared.place.start) / kKeys;
    if constexpr (kDropout) shared.stem = draw_stem(a, shared.place);
  }
  __syncthreads();
  Place place = shared.place;
  place.start = in_warp(place.start), place.length = in_warp(place.length),
  place.head = in_warp(place.head);
  // With a causal mask the last tiles take longest: they start first.
  const int query0 = (a.tiles - 1 - place.tile) * kQueries;
  const bool no_queries = query0 >= place.length;
  const int keys = a.causal ? min(place.length, query0 + kQueries) : place.length;
  const int tiles = in_warp((keys + kKeys - 1) / kKeys);
  const T* const q = a.qkv + int64_t(place.start) * stride + place.head * kHopperDim;

  const int warp = in_warp(int(threadIdx.x) / kWarp), group = warp / (kGroupThreads / kWarp);
  const int lane = int(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int own_barrier = 1 + warp;  // of the warp

  const auto keys_at = [&](int tile) { return kv_tiles + uint32_t(tile) % kStages * kStageBytes; };
  const auto barrier_of = [&](int tile) { return uint32_t(tile) % kStages * 8; };
  const auto await_keys = [&](int tile) {
    await(full + barrier_of(tile), uint32_t(tile) / kStages & 1);
  };
  const auto leave_keys = [&](int tile) {
    if (lane == 0) arrive(empty + barrier_of(tile));
  };
  // By a whole warp. Keys behind the end of the sequence are hidden, but their values are
  // multiplied with zeros: those of the next sequence may come along, what is behind all sequences
  // not.
  const auto request_keys = [&](int tile) {
    await(empty + barrier_of(tile), (uint32_t(tile) / kStages & 1) ^ 1);
    const uint32_t to = keys_at(tile), barrier = full + barrier_of(tile);
    if (tile < in_warp(shared.whole_tiles)) {
      if (lane == 0) {
        const int row = place.start + tile * kKeys, column = hidden + place.head * kHopperDim;
        arrive_for_bytes(barrier, kStageBytes);
        copy_in_steps(to, a.key_tiles, row, column, barrier);
        copy_in_steps(to + kKeyTile, a.key_tiles, row, column + hidden, barrier);
      }
    } else {
#pragma unroll 1  // few registers matter more here
      for (int row0 = 0; row0 < kKeys; row0 += kWarp / 8) {
        const int again = lane_again(), row = row0 + again / 8,
                  key = tile * kKeys + KeyOfColumn()(row);
        const T* const from = q + hidden + int64_t(key) * stride + again % 8 * 8;
        const uint32_t chunk = to + chunk_offset<kHopperDim>(row, again % 8);
        copy_chunk(chunk, from, key < place.length);
        copy_chunk(chunk + kKeyTile, from + hidden, key < place.length);
      }
      end_copies();
      wait_for_copies();
      show_to_products();
      meet_in_warp(own_barrier);
      if (lane == 0) arrive(barrier);
    }
    __syncwarp();
  };
  if (!no_queries) {
    if (warp == 0) {
      for (int tile = 0; tile <= min(kAhead, tiles - 1); ++tile) request_keys(tile);
    }
    copy_tile<kHopperDim, kQueries, kThreads>(q_tile, q, stride, query0, place.length, SameRow());
    end_copies();
  }
  zero_padding(reinterpret_cast<uint4*>(a.o), hidden / 8, a.state->tokens, a.tokens);
  if (a.lse) zero_padding(a.lse, a.heads, a.state->tokens, a.tokens);
  if (no_queries) return;

  // First queries of the warpgroup and of the warp.
  const int group0 = query0 + group * 64, row0 = query0 + warp * 16;
  DrawRow rows[2];
  if constexpr (kDropout) {
    rows[0] = draw_row(a, place, row0 + g), rows[1] = draw_row(a, place, row0 + 8 + g);
  }

  Accumulator s = {}, out = {};
  uint32_t q_parts[4][4], p[8][2];  // left operands
  float top[2], sum[2];

  const auto scores = [&](int tile) {
    const uint64_t k = tile_descriptor(keys_at(tile));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t(&left)[4] = q_parts[step];
      group_multiply<T, 0>(s, left[0], left[1], left[2], left[3], k + uint64_t(step) * kAlongRows,
                           step > 0);
    }
    end_products();
  };
  const auto add_output = [&](int tile) {
    multiply_packed<T>(out, p, keys_at(tile) + kKeyTile, tile > 0);
    end_products();
  };
  // What a query does not see. All queries of the warp see the whole of the first tiles.
  const int seen_tiles = in_warp((a.causal ? min(place.length, row0 + 1) : place.length) / kKeys);
  const auto hide = [&](int tile) {
    if (tile >= seen_tiles) {
      const int again = lane_again(), g = again / 4, t = again % 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int visible = a.causal ? min(place.length, row0 + half * 8 + g + 1) : place.length;
#pragma unroll
        for (int block = 0; block < 8; ++block) {
          const int key = tile * kKeys + block / 4 * 32 + t * 8 + block % 4 * 2;
          if (key >= visible) s[block][2 * half] = -INFINITY;
          if (key + 1 >= visible) s[block][2 * half + 1] = -INFINITY;
        }
      }
    }
  };
  const auto find_tops = [&](float(&new_top)[2]) {
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
  // From scores to what is proportional to probabilities; `added` gets the sums.
  const auto take_exponents = [&](float(&added)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float offset = -top[half] * a.factor;
#pragma unroll
      for (int block = 0; block < 8; ++block) {
        float& first = s[block][2 * half];
        float& second = s[block][2 * half + 1];
        first = exp2_of(fmaf(first, a.factor, offset));
        second = exp2_of(fmaf(second, a.factor, offset));
        added[half] = block == 0 ? first + second : added[half] + (first + second);
      }
    }
  };
  // Drops some of them, and makes the others an operand.
  const auto pack = [&](int tile) {
    DrawStem stem;
    if constexpr (kDropout) stem = shared.stem;
#pragma unroll
    for (int block = 0; block < 8; block += 4) {
      DrawBlock of_block;
      if constexpr (kDropout) {
        of_block = draw_block(stem, place.head, tile * (kKeys / 8) + block + t);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::array<uint32_t, 4> words;
        if constexpr (kDropout) words = draws_of(a, rows[half], of_block);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[block + i][half] = packed<T>(s[block + i][2 * half], s[block + i][2 * half + 1]);
          if constexpr (kKind == Dropout::kUsual) {
            p[block + i][half] &= kept_halves(a.threshold_twice, words[i]);
          }
          if constexpr (kKind == Dropout::kHeavy) {
            p[block + i][half] &= kept_halves(a.keep, words[i]);
          }
        }
      }
    }
  };
  // Where scores went far above those of before: computes them again, by this warp alone, and takes
  // their exponents relative to the new maxima. The output so far must be there.
  const auto raise_tops = [&](int tile, float(&added)[2]) {
    const int again = lane_again(), row = again % 8, low = again / 8 % 2, high = again / 16;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      s[block][0] = s[block][1] = s[block][2] = s[block][3] = 0.0f;
    }
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
      uint32_t left[4];
      load_matrices(left,
                    q_tile + chunk_offset<kHopperDim>(warp * 16 + low * 8 + row, 2 * step + high));
#pragma unroll
      for (int block = 0; block < 8; block += 2) {
        uint32_t k[4];
        load_matrices(
            k, keys_at(tile) + chunk_offset<kHopperDim>((block + high) * 8 + row, 2 * step + low));
        multiply_add<T>(s[block], left, k[0], k[1]);
        multiply_add<T>(s[block + 1], left, k[2], k[3]);
      }
    }
    meet_in_warp(own_barrier);
    hide(tile);
    float new_top[2];
    find_tops(new_top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float most = fmaxf(top[half], new_top[half]),
                  shrink = exp2_of((top[half] - most) * a.factor);
      top[half] = most;
      sum[half] *= shrink;
#pragma unroll
      for (int block = 0; block < 8; ++block) {
        out[block][2 * half] *= shrink;
        out[block][2 * half + 1] *= shrink;
      }
    }
    take_exponents(added);
  };

  wait_for_copies();
  __syncthreads();
  if (group0 >= place.length) {
    // Nothing to do but to let others have the stages.
    for (int tile = 0; tile + kStages < tiles; ++tile) {
      await_keys(tile);
      leave_keys(tile);
    }
    return;
  }
  const QuarterRows<kHopperDim> quarter_rows(true);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    load_matrices(q_parts[step], quarter_rows.at(q_tile, warp * 16, 2 * step));
  }
  await_keys(0);
  before_products();
  scores(0);
  wait_for_products<0>();
  pin(s);
  hide(0);
  find_tops(top);
  take_exponents(sum);
  pack(0);
  // Of the block's tiles the first warpgroup does without the last where all its keys are hidden.
  // All copies have been started by then.
  const int own_tiles = a.causal ? min(tiles, group0 / kKeys + 1) : tiles;
  static_assert(kQueries <= 2 * kKeys && kAhead >= 1);
  for (int tile = 1; tile < own_tiles; ++tile) {
    await_keys(tile);
    pin(p);
    before_products();
    scores(tile);
    add_output(tile - 1);
    wait_for_products<1>();
    pin(s);
    hide(tile);
    float added[2];
    take_exponents(added);
    if (__any_sync(0xffffffffu, fmaxf(added[0], added[1]) > kMostAdded)) {
      wait_for_products<0>();
      pin(out);
      raise_tops(tile, added);
    }
    wait_for_products<0>();
    pin(out);
    leave_keys(tile - 1);
    sum[0] += added[0], sum[1] += added[1];
    pack(tile);
    if (warp == 0 && tile + kAhead < tiles) request_keys(tile + kAhead);
  }
  pin(p);
  before_products();
  add_output(own_tiles - 1);
  wait_for_products<0>();
  pin(out);

  // Through the warp's own rows of the tile of queries, for stores of whole chunks.
  meet_in_warp(own_barrier);
  unsigned char* const own_rows = shared_bytes + (q_tile - first_byte);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(sum[half]), norm = (kDropout ? a.mask.scale : 1.0f) / total;
    const int row = half * 8 + g, query = row0 + row;
    if (a.lse && t == 0 && query < place.length) {
      a.lse[int64_t(place.start + query) * a.heads + place.head] =
          top[half] * a.scale + logf(total);
    }
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const uint32_t bits = packed<T>(out[block][2 * half] * norm, out[block][2 * half + 1] * norm);
      *reinterpret_cast<uint32_t*>(own_rows + chunk_offset<kHopperDim>(warp * 16 + row, block) +
                                   t * 4) = bits;
    }
  }
  __syncwarp();
  T* const o = a.o + int64_t(place.start) * hidden + place.head * kHopperDim;
#pragma unroll
  for (int i0 = 0; i0 < 16 * 8; i0 += 32) {
    const int row = (i0 + lane) / 8, chunk = lane % 8;
    if (row0 + row >= place.length) continue;
    *reinterpret_cast<uint4*>(o + int64_t(row0 + row) * hidden + chunk * 8) =
        *reinterpret_cast<const uint4*>(own_rows +
                                        chunk_offset<kHopperDim>(warp * 16 + row, chunk));
  }
#endif
}

}  // namespace

template <class T>
bool launch_hopper_forward(Arguments<T> common, const Launch& call) {
  ForwardArguments<T> a = {common, {}, common.mask.threshold * 0x10001u, common.scale * kLog2E};
  const Dims& dims = call.batch->dims;
  const auto kernel = !a.mask.on() ? hopper_forward_kernel<T, Dropout::kNone>
                      : a.mask.threshold <= kMostCompared
                          ? hopper_forward_kernel<T, Dropout::kUsual>
                          : hopper_forward_kernel<T, Dropout::kHeavy>;
  if (a.head_dim != kHopperDim || dims.longest <= kShort || !has_hopper_body(kernel)) return false;
  a.tiles = tiles_of(dims.longest, kQueries);
  // Smaller blocks are faster where there are too few of these for two on each multiprocessor.
  if (a.tiles * dims.sequences * a.heads < 2 * device_limits().multiprocessors) return false;
  a.key_tiles =
      tensor_map({a.qkv, a.tokens, 3 * a.heads * kHopperDim, 2}, {{4, 8}, {4, 2}, {2, 32}});
  const dim3 grid(unsigned(a.tiles * dims.sequences), unsigned(a.heads));
  start(kernel, grid, kThreads, kBytes, call.stream, a);
  return true;
}

template bool launch_hopper_forward(Arguments<__half>, const Launch&);
template bool launch_hopper_forward(Arguments<__nv_bfloat16>, const Launch&);

}  // namespace snug::cuda::attention_kernels
