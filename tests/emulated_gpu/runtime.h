// What the emulated device's runtime, products and kernels share. One host thread at a time uses
// the device, and what it submits is done when the call returns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace emulated {

// The device as SNUG_EMULATED_GPU describes it, e.g. "memory=2GiB capability=75"; what is not named
// is as here. Read once.
struct Device {
  int count = 1;
  int driver = CUDART_VERSION;
  int capability = 90;
  int multiprocessors = 132;
  size_t memory_bytes = size_t{16} << 30;
  size_t context_bytes = size_t{500} << 20;
  size_t code_bytes = size_t{7} << 20;  // of kernels, loaded with the first
  size_t neighbours_bytes = 0;
  long failing_allocation = 0;  // the nth call of cudaMalloc or cudaMallocHost fails; 0: none
  long failing_work = 0;        // the nth kernel, copy or product does, and all calls behind it
};
const Device& device();

// What a block can have after cudaFuncSetAttribute().
size_t largest_shared_bytes();
// The most of it that a kernel was said to ask for at its launch.
size_t dynamic_shared_limit();

// Work in the order of a stream: done at once, or, where the stream is being captured, kept as a
// node of its graph and done when that is launched. What has failed before fails again. Errors are
// remembered.
cudaError_t submit(cudaStream_t stream, std::function<void()> work,
                   cudaGraphNodeType type = cudaGraphNodeTypeKernel);

// For cudaGetLastError(); gives back what it is given.
cudaError_t remember(cudaError_t status);

}  // namespace emulated
