#include "cuda/row_losses.h"
#include "cuda/rows.cuh"
#include "ops/cuda_workspace.h"

namespace snug::cuda {
namespace {

constexpr int kBlock = 512;

__global__ void __launch_bounds__(kBlock)
    add_row_losses_kernel(const double* losses, int64_t rows, double* loss,
                          const StepState* state) {
  double sum = 0.0;
  for (int64_t row = threadIdx.x; row < rows; row += kBlock) sum += losses[row];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss += double(state->loss_scale) * sum;
}

}  // namespace

void add_row_losses(const double* losses, int64_t rows, double* loss, const Launch& call) {
  add_row_losses_kernel<<<1, kBlock, 0, call.stream>>>(losses, rows, loss, call.state);
  SNUG_CUDA_LAUNCHED("add_row_losses");
}

double* row_losses(const Launch& call, int64_t rows) {
  if (!call.out[0]) return nullptr;
  SNUG_CHECK(call.workspace.size() >= row_losses_bytes({.kind = DeviceKind::kCuda}, rows));
  return reinterpret_cast<double*>(call.workspace.data());
}

}  // namespace snug::cuda
