// Kernel of optim/adamw.h.
#include "cuda/update.cuh"

namespace snug::cuda {
namespace {

template <class C>
__global__ void __launch_bounds__(kUpdateBlock) adamw_kernel(const UpdateCall call) {
  adamw_chunk<C>(call, call.chunks[blockIdx.x]);
}

}  // namespace

void launch_adamw(const UpdateArguments& arguments, cudaStream_t stream) {
  with_type(arguments.copy_dtype, [&]<class C>() {
    adamw_kernel<C>
        <<<unsigned(arguments.chunk_count), kUpdateBlock, 0, stream>>>(UpdateCall(arguments));
    SNUG_CUDA_LAUNCHED("adamw");
  });
}

}  // namespace snug::cuda
