// What CUDA C++ has that C++ has not, for kernels on the emulated GPU: where a thread is, launches,
// barriers and exchanges, and functions on numbers. translate.py puts it in front of every .cu
// file.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include "emulated_gpu/executor.h"
#include "emulated_gpu/fibers.h"
#include "emulated_gpu/runtime.h"

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

// A block's threads are of one thread of the processor, and its blocks come one after the other.
#undef __shared__
#define __shared__ thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

namespace emulated {

// What stands between <<< and >>>.
class LaunchOn {
 public:
  LaunchOn(dim3 blocks, dim3 threads, size_t shared_bytes = 0, cudaStream_t stream = nullptr)
      : grid_{blocks, threads, {}, shared_bytes}, stream_(stream) {}
  explicit LaunchOn(const cudaLaunchConfig_t& config)
      : LaunchOn(config.gridDim, config.blockDim, config.dynamicSmemBytes, config.stream) {
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      if (config.attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
      const auto& cluster = config.attrs[i].val.clusterDim;
      grid_.cluster = {cluster.x, cluster.y, cluster.z};
    }
  }

  // A kernel with copies of its arguments.
  template <class Kernel, class... Arguments>
  cudaError_t start(const Kernel& kernel, const Arguments&... arguments) const {
    return submit_kernel([grid = grid_, kernel, kept = std::tuple<Arguments...>(arguments...)] {
      run(grid, [&] { std::apply(kernel, kept); });
    });
  }

 private:
  // Fails where a device would refuse the launch.
  cudaError_t submit_kernel(std::function<void()> work) const;

  Grid grid_;
  cudaStream_t stream_;
};

}  // namespace emulated

// The templates that nvcc's headers have for kernels.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  return emulated::LaunchOn(*config).start(kernel, arguments...);
}
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}

// Barriers and exchanges.

inline void __syncthreads() { emulated::block_meeting().join(emulated::threads_left()); }
inline int __syncthreads_and(int value) {
  emulated::together(emulated::block_meeting(), emulated::threads_left(), 0, value,
                     [count = int(blockDim.x)](const auto& of) {
                       bool all = true;
                       for (int i = 0; i < count; ++i) all &= of(i) != 0;
                       for (int i = 0; i < count; ++i) of(i) = all;
                     });
  return value;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulated::warp_meeting(mask).join(emulated::lanes_of(mask));
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

namespace emulated {

template <class Work>
void for_lanes(unsigned mask, const Work& work) {
  for (; mask != 0; mask &= mask - 1) work(std::countr_zero(mask));
}

// Each lane gets the value of another, or keeps its own where that is not there.
template <class T>
T exchange(unsigned mask, T value, int source) {
  struct Own {
    T given, got;
    int source;
  } own{value, value, source};
  in_warp(mask, own, [mask](const auto& of) {
    for_lanes(mask, [&](int lane) {
      const int from = of(lane).source;
      if (from >= 0 && from < 32 && (mask >> from & 1)) of(lane).got = of(from).given;
    });
  });
  return own.got;
}
template <class Combine>
unsigned combined(unsigned mask, unsigned value, const Combine& combine) {
  in_warp(mask, value, [&](const auto& of) {
    unsigned all = combine.first;
    for_lanes(mask, [&](int lane) { all = combine(all, of(lane), lane); });
    for_lanes(mask, [&](int lane) { of(lane) = all; });
  });
  return value;
}

}  // namespace emulated

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  return emulated::exchange(mask, value, source & 31);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emulated::exchange(mask, value, emulated::lane_number() ^ bits);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  return emulated::exchange(mask, value, emulated::lane_number() - int(distance));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned own = predicate ? 1u << emulated::lane_number() : 0;
  struct Or {
    unsigned first = 0;
    unsigned operator()(unsigned all, unsigned one, int) const { return all | one; }
  };
  return emulated::combined(mask, own, Or());
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  struct Or {
    unsigned first = 0;
    unsigned operator()(unsigned all, unsigned one, int) const { return all | one; }
  };
  return emulated::combined(mask, value, Or());
}

// Memory.

template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
T __ldcv(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*to).fetch_add(value);
}
template <class T, class Change>
T emulated_change(T* to, const Change& change) {
  std::atomic_ref<T> word(*to);
  T before = word;
  while (!word.compare_exchange_weak(before, change(before))) {
  }
  return before;
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  return emulated_change(to, [=](T before) { return std::max(before, value); });
}
inline unsigned atomicInc(unsigned* to, unsigned limit) {
  return emulated_change(to, [=](unsigned before) { return before >= limit ? 0 : before + 1; });
}

// Numbers.

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline int __float2int_rn(float x) { return int(std::lrint(x)); }
inline unsigned long long __float2ull_rn(float x) { return (unsigned long long)std::nearbyint(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
using std::isfinite;
using std::isnan;
using std::max;
using std::min;
