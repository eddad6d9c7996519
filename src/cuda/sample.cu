// Kernels of ops/sample.h: one block per row. Probabilities are counted in whole numbers, 2^40
// being that of the likeliest token, so sums are exact and do not know the order in which threads
// add. The thresholds of top-k and top-p are found without sorting: logits are counted into bins of
// equal width below the largest, which names the bin that a threshold lies in, and the few logits
// of that bin are compared with each other.
#include "core/philox.h"
#include "cuda/kernels.h"
#include "cuda/rows.cuh"
#include "ops/sample.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 1024, kWarps = kBlock / kWarp;
constexpr int kBins = 2 * kBlock;
constexpr int kListed = 1024;   // logits of one bin that are looked at together
constexpr int kCompared = 256;  // and each with each
constexpr int kMassBits = 40;
constexpr double kLn2 = 0.69314718055994531;

template <class T>
struct Arguments {
  const T* logits;      // [rows, logit_stride]
  float* adjusted;      // [rows, stride]
  float* next;          // [rows, 2]
  const uint8_t* seen;  // [texts, vocabulary], or null
  int64_t stride, logit_stride;
  int vocabulary;
  float repetition_penalty, inverse_temperature;
  bool greedy;
  int top_k;    // 0: all
  float top_p;  // 1: all
  uint64_t seed;
  Batch batch;
  const StepState* state;
};

struct Shared {
  uint64_t sums[kWarps];
  float most[kWarps], least[kWarps];
  int ids[kWarps];
  uint32_t counts[kBins], mass_low[kBins], mass_high[kBins];
  float list[kListed];
  uint64_t masses[kCompared];
  int listed;
  int bin;         // found by find_bin()
  uint64_t above;  // in the bins before it
  uint32_t key;
};

// Whole numbers in the order of the logits.
__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline uint64_t mass_of(float x, float most) {
  return __float2ull_rn(expf(x - most) * float(uint64_t{1} << kMassBits));
}
// The logarithm of a sum of masses, as a share of the likeliest token's.
__device__ inline double log_of(uint64_t mass) { return log(double(mass)) - kMassBits * kLn2; }

__device__ uint64_t block_total(uint64_t value, Shared& shared) {
  value = lanes_sum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared.sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0;
  for (int w = 0; w < kWarps; ++w) value += shared.sums[w];
  return value;
}

struct Extremes {
  float most, least;  // least: of the finite ones
  int first;          // id of the first of the largest
};

__device__ inline void join(Extremes& a, const Extremes& b) {
  if (b.most > a.most || (b.most == a.most && b.first < a.first)) {
    a.most = b.most, a.first = b.first;
  }
  a.least = fminf(a.least, b.least);
}

__device__ Extremes block_extremes(Extremes own, Shared& shared) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    join(own, {__shfl_xor_sync(0xffffffffu, own.most, step),
               __shfl_xor_sync(0xffffffffu, own.least, step),
               __shfl_xor_sync(0xffffffffu, own.first, step)});
  }
  const int warp = int(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    shared.most[warp] = own.most, shared.least[warp] = own.least, shared.ids[warp] = own.first;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) join(own, {shared.most[w], shared.least[w], shared.ids[w]});
  return own;
}

// Penalty and temperature; as on the CPU to the bit.
template <class T>
__device__ Extremes adjust(const Arguments<T>& a, const T* logits, const uint8_t* seen,
                           float* adjusted, Shared& shared) {
  Extremes own = {-INFINITY, INFINITY, a.vocabulary};
#pragma unroll 8
  for (int id = int(threadIdx.x); id < a.vocabulary; id += kBlock) {
    float x = to_float(logits[id]);
    if (seen && seen[id]) x = x > 0.0f ? x / a.repetition_penalty : x * a.repetition_penalty;
    x = __fmul_rn(x, a.inverse_temperature) + 0.0f;  // minus zero is zero
    adjusted[id] = x;
    join(own, {x, isfinite(x) ? x : INFINITY, id});
  }
  return block_extremes(own, shared);
}

// The row of one block, adjusted.
struct Row {
  const float* values;
  int count;
  float most, bins_per_unit;

  // Grows as x falls.
  __device__ int bin(float x) const { return min(int((most - x) * bins_per_unit), kBins - 1); }
};

__device__ void fill_bins(const Row& row, bool with_mass, Shared& shared) {
  for (int bin = int(threadIdx.x); bin < kBins; bin += kBlock) {
    shared.counts[bin] = shared.mass_low[bin] = shared.mass_high[bin] = 0;
  }
  __syncthreads();
#pragma unroll 4
  for (int id = int(threadIdx.x); id < row.count; id += kBlock) {
    const float x = row.values[id];
    const int bin = row.bin(x);
    atomicAdd(&shared.counts[bin], 1u);
    if (!with_mass) continue;
    const uint64_t mass = mass_of(x, row.most);
    const uint32_t low = uint32_t(mass), before = atomicAdd(&shared.mass_low[bin], low);
    const uint32_t high = uint32_t(mass >> 32) + (before + low < before ? 1 : 0);
    if (high > 0) atomicAdd(&shared.mass_high[bin], high);
  }
  __syncthreads();
}

__device__ inline uint64_t mass_of_bin(const Shared& shared, int bin) {
  return (uint64_t(shared.mass_high[bin]) << 32) + shared.mass_low[bin];
}

// Finds the first bin with which the sum from bin 0 on reaches `need`, which all of them together
// do.
template <class F>
__device__ void find_bin(const F& value_of, uint64_t need, Shared& shared) {
  const int own = 2 * int(threadIdx.x), lane = int(threadIdx.x) % kWarp,
            warp = int(threadIdx.x) / kWarp;
  const uint64_t first = value_of(own), both = first + value_of(own + 1);
  uint64_t sum = both;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) shared.sums[warp] = sum;
  if (threadIdx.x == 0) shared.bin = kBins - 1, shared.above = 0;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += shared.sums[w];
  const uint64_t before = sum - both;
  if (before < need && need <= sum) {
    const bool in_first = need <= before + first;
    shared.bin = in_first ? own : own + 1;
    shared.above = in_first ? before : before + first;
  }
  __syncthreads();
}

// The largest key such that what is not below it measures `need` or more, together with `above`
// that is known to lie higher than all `count` values.
template <class F>
__device__ uint32_t largest_key(const float* values, int count, uint64_t above, uint64_t need,
                                const F& measure, Shared& shared) {
  if (count <= kCompared) {  // each with each
    const int own = int(threadIdx.x);
    if (own < count) shared.masses[own] = measure(values[own]);
    if (own == 0) shared.key = 0;
    __syncthreads();
    if (own < count) {
      const uint32_t key = key_of(values[own]);
      uint64_t sum = above;
      for (int i = 0; i < count; ++i) sum += key_of(values[i]) >= key ? shared.masses[i] : 0;
      if (sum >= need) atomicMax(&shared.key, key);
    }
    __syncthreads();
    return shared.key;
  }
  uint32_t key = 0;  // bit by bit
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t attempt = key | 1u << bit;
    uint64_t sum = 0;
    for (int i = int(threadIdx.x); i < count; i += kBlock) {
      if (key_of(values[i]) >= attempt) sum += measure(values[i]);
    }
    if (above + block_total(sum, shared) >= need) key = attempt;
  }
  return key;
}

// The same over the row, by way of its bins. Where one bin holds too much, as with many equal
// logits, over all of it.
template <class F>
__device__ uint32_t threshold(const Row& row, uint64_t need, const F& measure, Shared& shared) {
  const int bin = shared.bin;
  const uint64_t above = shared.above;
  if (shared.counts[bin] > kListed) {
    return largest_key(row.values, row.count, 0, need, measure, shared);
  }
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
#pragma unroll 8
  for (int id = int(threadIdx.x); id < row.count; id += kBlock) {
    const float x = row.values[id];
    if (row.bin(x) == bin) shared.list[atomicAdd(&shared.listed, 1)] = x;
  }
  __syncthreads();
  return largest_key(shared.list, shared.listed, above, need, measure, shared);
}

// The key of the least logit that top-k and top-p keep.
template <class T>
__device__ uint32_t kept_from(const Arguments<T>& a, const Row& row, Shared& shared) {
  const bool by_count = a.top_k > 0 && a.top_k < a.vocabulary, by_mass = a.top_p < 1.0f;
  if (!by_count && !by_mass) return 0;
  fill_bins(row, by_mass, shared);
  uint32_t key = 0;
  if (by_count) {
    find_bin([&](int bin) { return uint64_t(shared.counts[bin]); }, uint64_t(a.top_k), shared);
    key = threshold(
        row, uint64_t(a.top_k), [](float) { return uint64_t{1}; }, shared);
  }
  if (by_mass) {
    const auto mass = [&](float x) { return mass_of(x, row.most); };
    uint64_t kept = 0;
#pragma unroll 4
    for (int id = int(threadIdx.x); id < row.count; id += kBlock) {
      if (key_of(row.values[id]) >= key) kept += mass(row.values[id]);
    }
    kept = block_total(kept, shared);
    const uint64_t need =
        max(uint64_t{1}, min(kept, uint64_t(ceil(double(a.top_p) * double(kept)))));
    find_bin([&](int bin) { return mass_of_bin(shared, bin); }, need, shared);
    key = max(key, threshold(row, need, mass, shared));
  }
  return key;
}

struct Drawn {
  int id;
  uint64_t total;  // mass of all that is kept
};

// The first id with which the mass of kept ids so far exceeds `draw` / 2^24 of all. Warps share a
// range of ids, and the one that holds it becomes the next range.
__device__ Drawn draw_id(const Row& row, uint32_t key, uint32_t draw, int fallback,
                         Shared& shared) {
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const auto kept_mass = [&](int id) {
    const float x = row.values[id];
    return key_of(x) >= key ? mass_of(x, row.most) : 0;
  };
  int begin = 0, end = row.count;
  uint64_t total = 0, left = 0;
  for (bool first = true; first || end - begin > kWarp; first = false) {
    const int share = (end - begin + kBlock - 1) / kBlock * kWarp;
    const int from = begin + warp * share, to = min(end, from + share);
    uint64_t sum = 0;
#pragma unroll 8
    for (int id = from + lane; id < to; id += kWarp) sum += kept_mass(id);
    sum = lanes_sum(sum);
    __syncthreads();
    if (lane == 0) shared.sums[warp] = sum;
    __syncthreads();
    if (first) {
      for (int w = 0; w < kWarps; ++w) total += shared.sums[w];
      if (total == 0) return {fallback, 1};  // no number at all
      left = (total >> 24) * draw + (((total & 0xffffffu) * draw) >> 24);
    }
    int w = 0;
    while (w < kWarps - 1 && shared.sums[w] <= left) left -= shared.sums[w++];
    begin += w * share;
    end = min(end, begin + share);
  }
  uint64_t sum = begin + lane < end ? kept_mass(begin + lane) : 0;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  const uint32_t beyond = __ballot_sync(0xffffffffu, sum > left);
  return {beyond ? begin + __ffs(int(beyond)) - 1 : fallback, total};
}

// sample_draw() of ops/sample.h, times 2^24.
__device__ inline uint32_t draw_of(uint64_t seed, uint64_t text, uint32_t position) {
  constexpr uint32_t kPurpose = 0x53414d50;
  return philox({uint32_t(text), uint32_t(text >> 32), position, kPurpose},
                {uint32_t(seed), uint32_t(seed >> 32)})[0] >>
         8;
}

template <class T>
__global__ void __launch_bounds__(kBlock) sample_kernel(const Arguments<T> a) {
  __shared__ Shared shared;
  const int64_t row = blockIdx.x;
  float* const next = a.next + 2 * row;
  if (row >= a.state->targets) {
    if (threadIdx.x < 2) next[threadIdx.x] = 0.0f;
    return;
  }
  const int token = a.batch.target_rows[row], sequence = a.batch.row_of[token];
  const uint8_t* const seen =
      a.seen ? a.seen + a.batch.samples[sequence] * uint64_t(a.vocabulary) : nullptr;
  float* const adjusted = a.adjusted + row * a.stride;
  const Extremes extremes = adjust(a, a.logits + row * a.logit_stride, seen, adjusted, shared);
  const int likeliest = extremes.first < a.vocabulary ? extremes.first : 0;
  const float range = extremes.most - extremes.least;
  const Row adjusted_row = {adjusted, a.vocabulary, extremes.most,
                            range > 0.0f ? float(kBins - 1) / range : 0.0f};
  Drawn drawn = {likeliest, 0};
  if (a.greedy) {
    for (int id = int(threadIdx.x); id < a.vocabulary; id += kBlock) {
      drawn.total += mass_of(adjusted[id], extremes.most);
    }
    drawn.total = block_total(drawn.total, shared);
  } else {
    const uint32_t key = kept_from(a, adjusted_row, shared);
    const auto text = uint64_t(a.batch.labels[sequence]);
    const uint32_t draw = draw_of(a.seed, text, uint32_t(a.batch.positions[token]) + 1);
    drawn = draw_id(adjusted_row, key, draw, likeliest, shared);
  }
  if (threadIdx.x == 0) {
    next[0] = float(drawn.id);
    next[1] = float(double(adjusted[drawn.id]) - double(extremes.most) - log_of(drawn.total));
  }
}

// One block per text.
__global__ void __launch_bounds__(kBlock)
    mark_seen_kernel(uint8_t* seen, int vocabulary, Batch batch, const StepState* state) {
  const int sequence = int(blockIdx.x);
  if (sequence >= state->sequences) return;
  const int begin = batch.starts[sequence], end = batch.starts[sequence + 1];
  uint8_t* const own = seen + batch.samples[sequence] * uint64_t(vocabulary);
  if (begin < end && batch.positions[begin] == 0) {  // begins anew
    for (int id = int(threadIdx.x); id < vocabulary; id += kBlock) own[id] = 0;
    __syncthreads();
  }
  for (int token = begin + int(threadIdx.x); token < end; token += kBlock) {
    own[batch.ids[token]] = 1;
  }
}

}  // namespace

void launch(const Sample& op, const Launch& call) {
  const Tensor &logits = call.in[0], &next = call.out[0];
  const Tensor seen = call.out.size() > 1 ? call.out[1] : Tensor();
  const int64_t stride = ceil_div(logits.cols, 64) * 64,
                vocabulary = op.spec.vocabulary > 0 ? op.spec.vocabulary : logits.cols;
  SNUG_CHECK(next.cols == 2 && next.dtype == DType::kF32 && next.rows == logits.rows &&
             logits.cols < int64_t{1} << 24);
  SNUG_CHECK(!seen || (seen.dtype == DType::kU8 && seen.cols == vocabulary));
  SNUG_CHECK(call.workspace.size() >= size_t(logits.rows * stride) * sizeof(float));
  if (logits.rows == 0) return;
  if (seen) {
    mark_seen_kernel<<<unsigned(call.batch->dims.sequences), kBlock, 0, call.stream>>>(
        data_of<uint8_t>(seen), int(vocabulary), *call.batch, call.state);
    SNUG_CUDA_LAUNCHED("mark_seen");
  }
  const bool greedy = op.spec.temperature == 0.0f;
  with_type(logits.dtype, [&]<class T>() {
    const Arguments<T> arguments = {
        .logits = data_of<T>(logits),
        .adjusted = reinterpret_cast<float*>(call.workspace.data()),
        .next = next.f32(),
        .seen = data_of<uint8_t>(seen),
        .stride = stride,
        .logit_stride = logits.cols,
        .vocabulary = int(vocabulary),
        .repetition_penalty = op.spec.repetition_penalty,
        .inverse_temperature = greedy ? 1.0f : 1.0f / op.spec.temperature,
        .greedy = greedy,
        .top_k = int(std::min(op.spec.top_k, vocabulary)),
        .top_p = op.spec.top_p,
        .seed = op.spec.seed,
        .batch = *call.batch,
        .state = call.state};
    sample_kernel<T><<<unsigned(logits.rows), kBlock, 0, call.stream>>>(arguments);
    SNUG_CUDA_LAUNCHED("sample");
  });
}

}  // namespace snug::cuda
