// Errors of CUDA's calls and launches, with the call's own text: kDevice, exit code 8.
#pragma once

#include <cuda_runtime_api.h>

namespace snug::cuda {

[[noreturn]] void fail_call(const char* call, const char* reason);

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail_call(call, cudaGetErrorString(status));
}

}  // namespace snug::cuda

#define SNUG_CUDA(call) ::snug::cuda::check((call), #call)
// Behind every <<<...>>>: a launch that cannot start says so at once, one that fails later at the
// next synchronisation.
#define SNUG_CUDA_LAUNCHED(kernel) ::snug::cuda::check(cudaPeekAtLastError(), "kernel " kernel)
