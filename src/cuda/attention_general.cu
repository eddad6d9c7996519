// Attention without tensor cores, for fp32 and for head sizes that the fast kernels do not know. A
// warp owns two rows of scores (queries, or keys for dk and dv), its lanes the columns of one tile
// after another; for sums over a tile, lanes own head dimensions instead and probabilities travel
// by shuffles.
#include "cuda/attention_common.cuh"

namespace snug::cuda::attention_kernels {
namespace {

constexpr int kRows = 2;       // of a warp
constexpr int kMostSlots = 8;  // dimensions of a lane: head_dim / 32, rounded up

// Rows of tiles are whole vectors of four, an odd number of them: lanes that read the same place of
// different rows then meet different banks.
__host__ __device__ inline int row_stride(int head_dim) { return 4 * (((head_dim + 3) / 4) | 1); }

// Large heads take smaller tiles, to fit 48 KB or little more.
struct GeneralShape {
  int warps, columns;
  explicit GeneralShape(int head_dim)
      : warps(head_dim > 128 ? 4 : 8), columns(head_dim > 128 ? 16 : 32) {}
  int rows() const { return warps * kRows; }
  size_t bytes(int head_dim, int row_tiles, int column_tiles) const {
    return size_t(row_tiles * rows() + column_tiles * columns) * row_stride(head_dim) *
           sizeof(float);
  }
};

// tile[rows, row_stride] := rows from `first` on of a sequence's matrix, zeros behind its end and
// behind head_dim.
template <class T>
__device__ void load_rows(float* tile, const T* from, int64_t stride, int first, int rows, int end,
                          int head_dim) {
  const int width = row_stride(head_dim);
  for (int i = int(threadIdx.x); i < rows * width; i += int(blockDim.x)) {
    const int row = i / width, column = i % width;
    const bool there = first + row < end && column < head_dim;
    tile[i] = there ? to_float(from[int64_t(first + row) * stride + column]) : 0.0f;
  }
}

// Inner products of the warp's rows with the lane's column.
__device__ __forceinline__ void inner(const float* rows, const float* column, int width,
                                      float (&s)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) s[r] = 0.0f;
  for (int i = 0; i < width; i += 4) {
    const float4 y = *reinterpret_cast<const float4*>(column + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(rows + r * width + i);
      s[r] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, s[r]))));
    }
  }
}

// sums[row] += weight of column j * column j of the tile, over all columns; lane l owns dimensions
// l, l + 32, ...
__device__ __forceinline__ void add_columns(const float* tile, int columns, int width, int head_dim,
                                            const float (&weight)[kRows],
                                            float (&sums)[kRows][kMostSlots]) {
  const int lane = int(threadIdx.x) % 32;
  for (int j = 0; j < columns; ++j) {
    float w[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) w[r] = __shfl_sync(0xffffffffu, weight[r], j);
#pragma unroll
    for (int slot = 0; slot < kMostSlots; ++slot) {
      const int column = lane + 32 * slot;
      if (column >= head_dim) break;
      const float x = tile[j * width + column];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r][slot] = fmaf(w[r], x, sums[r][slot]);
    }
  }
}

template <class T>
__device__ __forceinline__ void store_row(T* to, int head_dim, const float (&sums)[kMostSlots],
                                          float factor) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int slot = 0; slot < kMostSlots; ++slot) {
    const int column = lane + 32 * slot;
    if (column < head_dim) to[column] = from_float<T>(sums[slot] * factor);
  }
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
  return x;
}

__device__ __forceinline__ float kept_factor(const DropoutMask& mask, const Place& place, int query,
                                             int key) {
  return mask_factor(mask, {place.sample, uint32_t(query), uint32_t(place.head)}, uint32_t(key));
}

template <class T>
__global__ void general_forward(const Arguments<T> a, int columns) {
  extern __shared__ __align__(128) float shared_floats[];
  const int dim = a.head_dim, hidden = a.heads * dim, width = row_stride(dim);
  const int64_t stride = 3 * hidden;
  zero_padding(a.o, hidden, a.state->tokens, a.tokens);
  if (a.lse) zero_padding(a.lse, a.heads, a.state->tokens, a.tokens);
  const Place place = place_of(a);
  const int rows = int(blockDim.x) / 32 * kRows, query0 = place.tile * rows;
  if (query0 >= place.length) return;
  const int keys = a.causal ? min(place.length, query0 + rows) : place.length;
  const T* const q = a.qkv + place.start * stride + place.head * dim;
  float* const q_rows = shared_floats;
  float* const k_tile = q_rows + rows * width;
  float* const v_tile = k_tile + columns * width;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32,
            row0 = query0 + warp * kRows;
  load_rows(q_rows, q, stride, query0, rows, place.length, dim);

  float sums[kRows][kMostSlots] = {}, top[kRows], total[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) top[r] = -INFINITY;
  for (int key0 = 0; key0 < keys; key0 += columns) {
    __syncthreads();
    load_rows(k_tile, q + hidden, stride, key0, columns, place.length, dim);
    load_rows(v_tile, q + 2 * hidden, stride, key0, columns, place.length, dim);
    __syncthreads();
    const int key = key0 + lane;
    float p[kRows];
    inner(q_rows + warp * kRows * width, k_tile + min(lane, columns - 1) * width, width, p);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int query = row0 + r;
      const bool visible = lane < columns && key < place.length && !(a.causal && key > query);
      const float s = visible ? p[r] * a.scale : -INFINITY, most = fmaxf(top[r], warp_max(s));
      // Nothing is visible yet only where a tile lies behind a causal row; its first tile does not.
      const float shrink = expf(top[r] - most);
      p[r] = expf(s - most);
      top[r] = most;
      total[r] = total[r] * shrink + warp_sum(p[r]);
#pragma unroll
      for (int slot = 0; slot < kMostSlots; ++slot) sums[r][slot] *= shrink;
      if (a.mask.on() && visible) p[r] *= kept_factor(a.mask, place, query, key);
    }
    add_columns(v_tile, columns, width, dim, p, sums);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int query = row0 + r;
    if (query >= place.length) break;
    const int64_t token = place.start + query;
    store_row(a.o + token * hidden + place.head * dim, dim, sums[r], 1.0f / total[r]);
    if (a.lse && lane == 0) a.lse[token * a.heads + place.head] = top[r] + logf(total[r]);
  }
}

// The gradient of a score, without the scale of scores, and the probability after dropout.
struct ScoreGradient {
  float kept, gradient;
};
template <class T>
__device__ __forceinline__ ScoreGradient score_gradient(const Arguments<T>& a, const Place& place,
                                                        int query, int key, float s, float dp,
                                                        float lse, float delta) {
  if (key >= place.length || query >= place.length || (a.causal && key > query)) {
    return {0.0f, 0.0f};
  }
  const float p = expf(s * a.scale - lse);
  const float factor = a.mask.on() ? kept_factor(a.mask, place, query, key) : 1.0f;
  return {p * factor, p * (dp * factor - delta)};
}

template <class T>
__global__ void general_queries(const Arguments<T> a, int columns) {
  extern __shared__ __align__(128) float shared_floats[];
  const int dim = a.head_dim, hidden = a.heads * dim, width = row_stride(dim);
  const int64_t stride = 3 * hidden;
  const Place place = place_of(a);
  const int rows = int(blockDim.x) / 32 * kRows, query0 = place.tile * rows;
  if (query0 >= place.length) return;
  const int keys = a.causal ? min(place.length, query0 + rows) : place.length;
  const T* const q = a.qkv + place.start * stride + place.head * dim;
  const T* const d_o = a.d_o + int64_t(place.start) * hidden + place.head * dim;
  float* const q_rows = shared_floats;
  float* const do_rows = q_rows + rows * width;
  float* const k_tile = do_rows + rows * width;
  float* const v_tile = k_tile + columns * width;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32,
            row0 = query0 + warp * kRows;
  load_rows(q_rows, q, stride, query0, rows, place.length, dim);
  load_rows(do_rows, d_o, hidden, query0, rows, place.length, dim);

  float sums[kRows][kMostSlots] = {}, lse[kRows], delta[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = int64_t(place.start + row0 + r) * a.heads + place.head;
    lse[r] = row0 + r < place.length ? a.lse[at] : 0.0f;
    delta[r] = row0 + r < place.length ? a.row_sums[at] : 0.0f;
  }
  for (int key0 = 0; key0 < keys; key0 += columns) {
    __syncthreads();
    load_rows(k_tile, q + hidden, stride, key0, columns, place.length, dim);
    load_rows(v_tile, q + 2 * hidden, stride, key0, columns, place.length, dim);
    __syncthreads();
    const int column = min(lane, columns - 1), key = lane < columns ? key0 + lane : place.length;
    float s[kRows], dp[kRows], ds[kRows];
    inner(q_rows + warp * kRows * width, k_tile + column * width, width, s);
    inner(do_rows + warp * kRows * width, v_tile + column * width, width, dp);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      ds[r] = score_gradient(a, place, row0 + r, key, s[r], dp[r], lse[r], delta[r]).gradient;
    }
    add_columns(k_tile, columns, width, dim, ds, sums);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row0 + r >= place.length) break;
    store_row(a.dqkv + (place.start + row0 + r) * stride + place.head * dim, dim, sums[r], a.scale);
  }
}

template <class T>
__global__ void general_keys(const Arguments<T> a, int columns) {
  extern __shared__ __align__(128) float shared_floats[];
  const int dim = a.head_dim, hidden = a.heads * dim, width = row_stride(dim);
  const int64_t stride = 3 * hidden;
  zero_padding(a.dqkv, stride, a.state->tokens, a.tokens);
  const Place place = place_of(a);
  const int rows = int(blockDim.x) / 32 * kRows, key0 = place.tile * rows;
  if (key0 >= place.length) return;
  const T* const q = a.qkv + place.start * stride + place.head * dim;
  const T* const d_o = a.d_o + int64_t(place.start) * hidden + place.head * dim;
  float* const k_rows = shared_floats;
  float* const v_rows = k_rows + rows * width;
  float* const q_tile = v_rows + rows * width;
  float* const do_tile = q_tile + columns * width;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, row0 = key0 + warp * kRows;
  load_rows(k_rows, q + hidden, stride, key0, rows, place.length, dim);
  load_rows(v_rows, q + 2 * hidden, stride, key0, rows, place.length, dim);

  float dk[kRows][kMostSlots] = {}, dv[kRows][kMostSlots] = {};
  for (int query0 = a.causal ? key0 / columns * columns : 0; query0 < place.length;
       query0 += columns) {
    __syncthreads();
    load_rows(q_tile, q, stride, query0, columns, place.length, dim);
    load_rows(do_tile, d_o, hidden, query0, columns, place.length, dim);
    __syncthreads();
    const int column = min(lane, columns - 1),
              query = lane < columns ? query0 + lane : place.length;
    float s[kRows], dp[kRows], p[kRows], ds[kRows], lse = 0.0f, delta = 0.0f;
    inner(k_rows + warp * kRows * width, q_tile + column * width, width, s);
    inner(v_rows + warp * kRows * width, do_tile + column * width, width, dp);
    if (query < place.length) {
      const int64_t at = int64_t(place.start + query) * a.heads + place.head;
      lse = a.lse[at];
      delta = a.row_sums[at];
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const ScoreGradient gradient =
          score_gradient(a, place, query, row0 + r, s[r], dp[r], lse, delta);
      p[r] = gradient.kept;
      ds[r] = gradient.gradient;
    }
    add_columns(do_tile, columns, width, dim, p, dv);
    add_columns(q_tile, columns, width, dim, ds, dk);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row0 + r >= place.length) break;
    T* const to = a.dqkv + (place.start + row0 + r) * stride + hidden + place.head * dim;
    store_row(to, dim, dk[r], a.scale);
    store_row(to + hidden, dim, dv[r], 1.0f);
  }
}

// A warp per token and head.
template <class T>
__global__ void row_sums_kernel(const Arguments<T> a) {
  const int64_t item = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (item >= int64_t(a.state->tokens) * a.heads) return;
  const int lane = int(threadIdx.x) % 32;
  float sum = 0.0f;
  for (int i = lane; i < a.head_dim; i += 32) {
    sum = fmaf(to_float(a.o[item * a.head_dim + i]), to_float(a.d_o[item * a.head_dim + i]), sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) a.row_sums[item] = sum;
}

template <class T>
void start_general(void (*kernel)(Arguments<T>, int), Arguments<T> a, const Launch& call,
                   int row_tiles) {
  const GeneralShape shape(a.head_dim);
  const Dims& dims = call.batch->dims;
  a.tiles = tiles_of(dims.longest, shape.rows());
  const size_t bytes = shape.bytes(a.head_dim, row_tiles, 2);
  if (bytes > 48 * 1024) {
    SNUG_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
  }
  const dim3 grid(unsigned(a.tiles * dims.sequences), unsigned(a.heads));
  kernel<<<grid, shape.warps * 32, bytes, call.stream>>>(a, shape.columns);
  SNUG_CUDA_LAUNCHED("attention (general)");
}

}  // namespace

template <class T>
void launch_row_sums(const Arguments<T>& a, cudaStream_t stream) {
  const int64_t items = a.tokens * a.heads;
  start(row_sums_kernel<T>, dim3(unsigned((items + 7) / 8)), 256, 0, stream, a);
}

template <class T>
void launch_general_forward(Arguments<T> a, const Launch& call) {
  start_general(general_forward<T>, a, call, 1);
}

template <class T>
void launch_general_backward(Arguments<T> a, const Launch& call) {
  launch_row_sums(a, call.stream);
  start_general(general_keys<T>, a, call, 2);
  start_general(general_queries<T>, a, call, 2);
}

template void launch_row_sums(const Arguments<__half>&, cudaStream_t);
template void launch_row_sums(const Arguments<__nv_bfloat16>&, cudaStream_t);
template void launch_general_forward(Arguments<float>, const Launch&);
template void launch_general_forward(Arguments<__half>, const Launch&);
template void launch_general_forward(Arguments<__nv_bfloat16>, const Launch&);
template void launch_general_backward(Arguments<float>, const Launch&);
template void launch_general_backward(Arguments<__half>, const Launch&);
template void launch_general_backward(Arguments<__nv_bfloat16>, const Launch&);

}  // namespace snug::cuda::attention_kernels
