#include <algorithm>

#include "cuda/column_sums.cuh"
#include "cuda/pending_sums.h"

namespace snug::cuda {
namespace {

constexpr int kPieceWarps = 16;

// Pieces as the kernel sees them: the first of its blocks that work on them, 32 columns of all sums
// each.
struct Job {
  const float* pieces;
  int first_block, count, width, cols;
  SumTargets targets;
};
struct Jobs {
  int count;
  Job at[PendingSums::kMost];
};

// Warps of a block take a share of the pieces each, all in flight at once. A kernel of its own,
// since a last block of the one before would read more than a megabyte alone.
__global__ void __launch_bounds__(kPieceWarps* kWarp)
    add_pieces_kernel(const __grid_constant__ Jobs jobs) {
  constexpr int kShare = int(ceil_div(kColumnSumPieces, kPieceWarps)),
                kRound = kShare * kPieceWarps;
  __shared__ float sums[kPieceWarps][kWarp];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  int which = 0;
  while (which + 1 < jobs.count && int(blockIdx.x) >= jobs.at[which + 1].first_block) ++which;
  const Job& job = jobs.at[which];
  const int at = (int(blockIdx.x) - job.first_block) * kWarp + lane, width = job.width,
            pieces = job.count;
  float* target = nullptr;
  if (at < width) {
    const int n = at / job.cols;
    float* const of_sum = n == 0   ? job.targets.at[0]
                          : n == 1 ? job.targets.at[1]
                                   : job.targets.at[2];
    target = of_sum ? of_sum + (at - n * job.cols) : nullptr;
  }
  const float before = target && warp == 0 ? *target : 0.0f;
  float sum = 0.0f;
  for (int first = 0; first < pieces; first += kRound) {
    float values[kShare];
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int piece = first + i * kPieceWarps + warp;
      values[i] = target && piece < pieces ? job.pieces[int64_t(piece) * width + at] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kShare; ++i) sum += values[i];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || !target) return;
#pragma unroll
  for (int w = 1; w < kPieceWarps; ++w) sum += sums[w][lane];
  *target = before + sum;
}

void add_now(std::span<const Pieces> all, cudaStream_t stream) {
  Jobs jobs = {};
  int64_t blocks = 0;
  for (const Pieces& pieces : all) {
    const int64_t width = pieces.sums * pieces.cols;
    jobs.at[jobs.count++] = {pieces.at,  int(blocks),      int(pieces.count),
                             int(width), int(pieces.cols), pieces.targets};
    blocks += ceil_div(width, kWarp);
  }
  if (blocks == 0) return;
  add_pieces_kernel<<<unsigned(blocks), kPieceWarps * kWarp, 0, stream>>>(jobs);
  SNUG_CUDA_LAUNCHED("add_pieces");
}

bool meet(const SumTargets& a, const SumTargets& b) {
  return std::ranges::any_of(a.at, [&](const float* target) {
    return target && std::ranges::find(b.at, target) != std::end(b.at);
  });
}

}  // namespace

float* PendingSums::take(size_t bytes, cudaStream_t stream) {
  constexpr size_t kAlign = 256;
  const size_t whole = (bytes + kAlign - 1) / kAlign * kAlign;
  if (whole == 0 || whole > room_.size()) return nullptr;
  if (used_ + whole > room_.size()) finish(stream);
  std::byte* const at = room_.data() + used_;
  used_ += whole;
  return reinterpret_cast<float*>(at);
}

bool PendingSums::has(const float* pieces) const {
  const auto* const at = reinterpret_cast<const std::byte*>(pieces);
  return !room_.empty() && at >= room_.data() && at < room_.data() + room_.size();
}

void PendingSums::add(const Pieces& pieces, cudaStream_t stream) {
  SNUG_CHECK(has(pieces.at));
  // Blocks of one kernel must not add to the same target.
  if (std::ranges::any_of(
          waiting_, [&](const Pieces& other) { return meet(other.targets, pieces.targets); })) {
    add_now(waiting_, stream);
    waiting_.clear();
  }
  waiting_.push_back(pieces);
  if (waiting_.size() == kMost) finish(stream);
}

void PendingSums::finish(cudaStream_t stream) {
  add_now(waiting_, stream);
  waiting_.clear();
  used_ = 0;
}

float* room_for_pieces(PendingSums* pending, size_t bytes, std::span<std::byte> workspace,
                       cudaStream_t stream) {
  if (float* const room = pending ? pending->take(bytes, stream) : nullptr) return room;
  SNUG_CHECK(workspace.size() >= bytes);
  return reinterpret_cast<float*>(workspace.data());
}

void add_pieces(PendingSums* pending, const Pieces& pieces, cudaStream_t stream) {
  if (pending && pending->has(pieces.at)) return pending->add(pieces, stream);
  add_now({&pieces, 1}, stream);
}

}  // namespace snug::cuda
