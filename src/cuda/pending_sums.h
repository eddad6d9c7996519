// Sums over rows without floating-point atomics, so that their order never changes: blocks of a
// kernel leave one sum per piece of the rows, and when all are done the pieces are added in their
// order to the targets. That takes another kernel, which does little and still costs microseconds;
// so where there is room, pieces of several kernels wait and are added by one. The bits are the
// same.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace snug::cuda {

// Targets of up to three sums per column, each [cols] and added to (+=). Any may be null.
struct SumTargets {
  float* at[3] = {};

  explicit operator bool() const { return at[0] || at[1] || at[2]; }
};

// [count, sums, cols] in device memory, for the first `sums` targets.
struct Pieces {
  const float* at = nullptr;
  int64_t count = 0, sums = 0, cols = 0;
  SumTargets targets;
};

constexpr size_t piece_bytes(int64_t count, int64_t sums, int64_t cols) {
  return size_t(count * sums * cols) * sizeof(float);
}

// Pieces that wait. All calls are for one stream.
class PendingSums {
 public:
  static constexpr size_t kMost = 32;  // to be added by one kernel

  explicit PendingSums(std::span<std::byte> room)
      : room_(room) {}  // device memory, 256-byte aligned; may be empty

  // Memory for pieces that add() is told of next; null: there never is so much. Adds those that
  // wait where they leave too little.
  float* take(size_t bytes, cudaStream_t stream);
  bool has(const float* pieces) const;
  void add(const Pieces& pieces, cudaStream_t stream);
  // Adds all that wait, which must come before anybody reads a target.
  void finish(cudaStream_t stream);

 private:
  std::span<std::byte> room_;
  size_t used_ = 0;
  std::vector<Pieces> waiting_;
};

// Where a kernel leaves its pieces: among those that wait, or in its workspace where pending is
// null or too small.
float* room_for_pieces(PendingSums* pending, size_t bytes, std::span<std::byte> workspace,
                       cudaStream_t stream);
// Adds what the kernel left there, once it is launched: now, or with others.
void add_pieces(PendingSums* pending, const Pieces& pieces, cudaStream_t stream);

}  // namespace snug::cuda
