#include "emulated_gpu/allocations.h"
#include "emulated_gpu/device.h"

namespace emulated {
namespace {

constexpr unsigned kMostThreads = 1024, kMostBlocksOfOtherSides = 65535;

}  // namespace

cudaError_t LaunchOn::submit_kernel(std::function<void()> work) const {
  const auto& [blocks, threads, cluster, shared_bytes] = grid_;
  const unsigned count = threads.x * threads.y * threads.z;
  const bool fits = count > 0 && count <= kMostThreads && blocks.x > 0 && blocks.y > 0 &&
                    blocks.z > 0 && blocks.y <= kMostBlocksOfOtherSides &&
                    blocks.z <= kMostBlocksOfOtherSides && blocks.x % cluster.x == 0;
  if (!fits) return remember(cudaErrorInvalidConfiguration);
  if (shared_bytes > dynamic_shared_limit()) return remember(cudaErrorInvalidValue);
  if (const cudaError_t status = load_code(); status != cudaSuccess) return remember(status);
  return submit(stream_, std::move(work));
}

}  // namespace emulated
