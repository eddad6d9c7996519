// Kernel of optim/adamw_8bit.h. A warp has a block of 256 moments, eight consecutive ones a lane:
// their codes are one load of eight bytes, and one Philox call rounds them.
#include "cuda/update.cuh"
#include "optim/adamw_8bit.h"
#include "optim/dynamic_tree.h"
#include "optim/rounding.h"

namespace snug::cuda {
namespace {

static_assert(kMomentBlock == kWarp * kEight && kUpdateChunk % kMomentBlock == 0);

__constant__ const std::array<float, 128> kMagnitudesInConstants = make_dynamic_tree<7>();
__constant__ const std::array<float, 256> kPositivesInConstants = make_dynamic_tree<8>();
constexpr float kLargestMagnitude = kMagnitudes.back(), kLargestPositive = kPositives.back();
constexpr float kLeastMoment = 1e-36f;  // as in adamw_8bit.cc

// In shared memory, since lanes look up different codes.
struct Trees {
  float magnitudes[128], positives[256];

  __device__ void fill() {
    for (int i = int(threadIdx.x); i < 256; i += kUpdateBlock) {
      if (i < 128) magnitudes[i] = kMagnitudesInConstants[size_t(i)];
      positives[i] = kPositivesInConstants[size_t(i)];
    }
    __syncthreads();
  }
};

// tree_codes() of adamw_8bit.cc.
template <int kBits>
__device__ inline int tree_code(const float* values, float x, float threshold) {
  float power = 1.0f, parts = float(1 << (kBits - 1)), bound = 0.1f;
  float factor = power * parts / 0.9f, first = parts;
#pragma unroll
  for (int decade = 1; decade < kBits; ++decade) {
    power *= 10.0f;
    parts /= 2.0f;
    if (x < bound) factor = power * parts / 0.9f, first = parts;
    bound /= 10.0f;
  }
  int code = int(first + fmaxf(fmaf(-first, 0.1f / 0.9f, x * factor), 0.0f));
  if (!(x >= bound)) code = 0;
  code = min(max(code, 0), (1 << kBits) - 1);
  if (values[code] > x) --code;
  code = min(max(code, 0), (1 << kBits) - 2);
  const float lower = values[code], upper = values[code + 1];
  return code + (threshold * (upper - lower) < x - lower ? 1 : 0);
}

__device__ inline float largest_of_warp(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

struct Codes {
  uint8_t at[kEight] = {};
};

__device__ inline Codes load_codes(const uint8_t* codes, int i, int count) {
  Codes result;
  if (i + kEight <= count) {
    const uint2 words = *reinterpret_cast<const uint2*>(codes + i);
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      result.at[e] = uint8_t((e < 4 ? words.x : words.y) >> (e % 4 * 8));
    }
  } else {
    for (int e = 0; e < kEight && i + e < count; ++e) result.at[e] = codes[i + e];
  }
  return result;
}

__device__ inline void store_codes(uint8_t* codes, int i, int count, const Codes& from) {
  if (i + kEight <= count) {
    uint2 words = {};
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      (e < 4 ? words.x : words.y) |= uint32_t(from.at[e]) << (e % 4 * 8);
    }
    *reinterpret_cast<uint2*>(codes + i) = words;
  } else {
    for (int e = 0; e < kEight && i + e < count; ++e) codes[i + e] = from.at[e];
  }
}

struct BlockScale {
  float scale, inverse;

  __device__ BlockScale(float largest, float top) {
    if (!(largest >= kLeastMoment)) largest = 0.0f;
    scale = largest / top;
    inverse = largest > 0.0f ? top / largest : 0.0f;
  }
};

// Block number `block` of a chunk; all lanes of a warp.
template <class C, bool kSplit, GradientForm kForm>
__device__ inline void update_block(const UpdateCall& call, const UpdateChunk& chunk, int block,
                                    const Trees& trees) {
  const int lane = int(threadIdx.x) % kWarp, i = block * int(kMomentBlock) + lane * kEight,
            count = chunk.count;
  const bool present = i < count;
  const Weights<C, kSplit> w(call.at<std::byte>(chunk.weight), call.at<C>(chunk.copy));
  const Gradients<kForm> g(call.at<std::byte>(chunk.gradient));
  uint8_t *const m = call.at<uint8_t>(chunk.first), *const v = call.at<uint8_t>(chunk.second);
  float *const m_scale = call.at<float>(chunk.first_scale) + block, *const v_scale =
                                                                        call.at<float>(
                                                                            chunk.second_scale) +
                                                                        block;
  const UpdateFactors factors = *call.factors;
  const UpdateScales scales(factors, *call.result, chunk.decays);
  Eight w8, g8, first, root;
  Codes m_codes, v_codes;
  if (present) {
    w8 = eight_of(w, i, count), g8 = eight_of(g, i, count);
    m_codes = load_codes(m, i, count), v_codes = load_codes(v, i, count);
  }
  const float m_old = *m_scale, v_old = *v_scale;
  float m_largest = 0.0f, v_largest = 0.0f;
#pragma unroll
  for (int e = 0; e < kEight; ++e) {
    const float magnitude = trees.magnitudes[m_codes.at[e] & 127] * m_old;
    const float old_root = trees.positives[v_codes.at[e]] * v_old;
    float m1 = m_codes.at[e] & 128 ? -magnitude : magnitude, v1 = __fmul_rn(old_root, old_root);
    adamw_element(w8.at[e], m1, v1, g8.at[e], factors, scales);
    first.at[e] = m1, root.at[e] = sqrtf(v1);
    m_largest = fmaxf(m_largest, fabsf(m1)), v_largest = fmaxf(v_largest, root.at[e]);
  }
  // Every lane has read the old scales before the warp exchanges values, and the first writes the
  // new ones after.
  const BlockScale m_new(largest_of_warp(m_largest), kLargestMagnitude),
      v_new(largest_of_warp(v_largest), kLargestPositive);
  if (lane == 0) *m_scale = m_new.scale, *v_scale = v_new.scale;
  if (!present) return;
  const RoundingDraws draws = {
      {factors.key[0], factors.key[1]}, uint32_t(chunk.parameter), factors.step};
  const auto counter =
      rounding_counter(draws, RoundedArray::kSecondMoments, uint32_t((chunk.begin + i) / kEight));
  const auto words = philox<kRoundingRounds>(counter, draws.key);
#pragma unroll
  for (int e = 0; e < kEight; ++e) {
    const int m_code = tree_code<7>(trees.magnitudes, fabsf(first.at[e]) * m_new.inverse, 0.5f);
    m_codes.at[e] = uint8_t(m_code | (first.at[e] < 0.0f ? 128 : 0));
    const float threshold = float(words[e / 2] >> (e % 2 * 16) & 0xffff) * (1.0f / 65536.0f);
    const float x = root.at[e] * v_new.inverse;
    v_codes.at[e] = uint8_t(x > 0.0f ? max(tree_code<8>(trees.positives, x, threshold), 1) : 0);
  }
  store_codes(m, i, count, m_codes), store_codes(v, i, count, v_codes);
  store_eight_of(w, i, count, w8);
}

template <class C>
__device__ inline void eight_bit_chunk(const UpdateCall& call, const UpdateChunk& chunk,
                                       Trees& trees) {
  if (call.result->applied) {
    trees.fill();
    const int blocks = (chunk.count + int(kMomentBlock) - 1) / int(kMomentBlock);
    for (int block = int(threadIdx.x) / kWarp; block < blocks; block += kUpdateBlock / kWarp) {
      with_halves<C>(chunk, [&]<bool kSplit, GradientForm kForm>() {
        update_block<C, kSplit, kForm>(call, chunk, block, trees);
      });
    }
    __syncthreads();  // gradients are read
  }
  if (chunk.keeps_gradient) return;
  const Gradients<GradientForm::kExact> g(call.at<std::byte>(chunk.gradient));
  over_chunk(
      chunk.count, [&](int i) { g.clear_four(i); }, [&](int i) { g.clear_one(i); });
}

template <class C>
__global__ void __launch_bounds__(kUpdateBlock) adamw_8bit_kernel(const UpdateCall call) {
  __shared__ Trees trees;
  const UpdateChunk chunk = call.chunks[blockIdx.x];
  if (chunk.format == StateFormat::kEightBit) {
    eight_bit_chunk<C>(call, chunk, trees);
  } else {
    adamw_chunk<C>(call, chunk);
  }
}

}  // namespace

void launch_adamw_8bit(const UpdateArguments& arguments, cudaStream_t stream) {
  with_type(arguments.copy_dtype, [&]<class C>() {
    adamw_8bit_kernel<C>
        <<<unsigned(arguments.chunk_count), kUpdateBlock, 0, stream>>>(UpdateCall(arguments));
    SNUG_CUDA_LAUNCHED("adamw_8bit");
  });
}

}  // namespace snug::cuda
