#include "emulated_gpu/executor.h"

#include <sched.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "emulated_gpu/device.h"
#include "emulated_gpu/fibers.h"
#include "emulated_gpu/stack_switch.h"

namespace emulated {
namespace {

constexpr int kWarp = 32, kGroup = 128, kNamedBarriers = 16;
// Where dynamic shared memory begins: no further aligned than kernels ask for.
constexpr size_t kDynamicAt = 128;

// Copies of so many bytes.
constexpr size_t kCopied = 16;
struct Copy {
  uint32_t to;
  const void* from;
};
struct Copies {
  std::vector<Copy> list;
  std::vector<size_t> ends;  // of batches
};

struct Fiber {
  Stack stack;
  uint3 index = {};
  bool done = false;
  const std::atomic<uint64_t>* waits_for = nullptr;  // to change from `seen`
  uint64_t seen = 0;
  bool looked = false;  // in vain, in its last turn
  void* brought = nullptr;
  Copies under_way;
};

struct Cluster {
  std::vector<std::byte*> shared;  // of each rank
  std::atomic<int> arrived = 0;
  std::atomic<uint64_t> generation = 0;
  int threads = 0;
};

// In which threads of a block take turns, and in which its blocks come: a device promises neither.
struct Order {
  bool backward = false;

  int at(int i, int count) const { return backward ? count - 1 - i : i; }
};
// The next launch's: one or the other as if by chance, but the same in every run of a program.
Order next_order() {
  static std::atomic<uint32_t> launches = 0;
  return {std::popcount(launches++ * 0x9e3779b9u) % 2 == 1};
}

class Block;
thread_local Block* running = nullptr;
alignas(1024) constinit thread_local std::byte shared_memory[kDynamicAt + kMostShared + 1024];

// The fibers of one processor's thread: blocks use them one after the other.
std::vector<std::unique_ptr<Fiber>>& fibers_of_thread() {
  static thread_local std::vector<std::unique_ptr<Fiber>> fibers;
  return fibers;
}

class Block {
 public:
  Block(const Grid& grid, const std::function<void()>& kernel, dim3 at, Order order,
        Cluster* cluster)
      : threads_(int(grid.threads.x * grid.threads.y * grid.threads.z)),
        left_(threads_),
        order_(order),
        kernel_(kernel),
        cluster_(cluster),
        lanes_(size_t((threads_ + kWarp - 1) / kWarp) * kWarp),
        groups_(size_t((threads_ + kGroup - 1) / kGroup)) {
    blockIdx = {at.x, at.y, at.z};
    blockDim = grid.threads;
    gridDim = grid.blocks;
    std::memset(shared_memory, 0xff, kDynamicAt + grid.shared_bytes);  // NaN
    auto& fibers = fibers_of_thread();
    while (int(fibers.size()) < threads_) fibers.push_back(std::make_unique<Fiber>());
    fibers_ = fibers.data();
  }

  void run() {
    running = this;
    for (int i = 0; i < threads_; ++i) begin(i);
    int idle_rounds = 0;
    while (left_ > 0) {
      if (take_turns()) {
        idle_rounds = 0;
      } else if (!cluster_ || ++idle_rounds > kPatience) {
        give_up();
      } else {
        sched_yield();
      }
    }
    running = nullptr;
  }

  // Called by fibers.
  Fiber& fiber() { return *fibers_[current_]; }
  // The next one of the round goes on, or run() where there is none.
  void leave_turn() {
    Fiber& left = fiber();
    somebody_ |= !left.looked;
    switch_stack(left.stack, next_turn() ? fiber().stack : main_);
  }
  int current() const { return current_; }
  int threads_left() const { return left_; }
  int lanes_of(unsigned mask) const {
    const int first = current_ / kWarp * kWarp, there = std::min(kWarp, threads_ - first);
    return std::popcount(there == kWarp ? mask : mask & ((1u << there) - 1));
  }
  // Of a warp's masks that share no lane each has a meeting of its own, at its lowest lane.
  Meeting& warp_meeting(unsigned mask) {
    return lanes_[size_t(current_ / kWarp * kWarp + std::countr_zero(mask))];
  }
  Meeting& group_meeting() { return groups_[size_t(current_ / kGroup)]; }
  Meeting& block_meeting() { return all_; }
  Fiber& fiber_of(int thread) { return *fibers_[thread]; }
  Meeting& named_barrier(int n) { return named_[n]; }
  Cluster* cluster() { return cluster_; }

 private:
  static constexpr int kPatience = 10'000'000;

  void begin(int i) {
    Fiber& fiber = *fibers_[i];
    fiber.index = {unsigned(i) % blockDim.x, unsigned(i) / blockDim.x % blockDim.y,
                   unsigned(i) / (blockDim.x * blockDim.y)};
    fiber.done = fiber.looked = false;
    fiber.waits_for = nullptr;
    fiber.under_way = {};
    fiber.stack.begin([] { running->run_thread(); });
  }

  void run_thread() {
    fiber().stack.arrive();
    kernel_();
    fiber().done = true;
    --left_;
    all_.leave(left_);
    leave_turn();
  }

  // A round: a turn for each fiber that need not wait. False: nobody got on.
  bool take_turns() {
    somebody_ = false;
    turns_ = 0;
    if (next_turn()) switch_stack(main_, fiber().stack);
    return somebody_;
  }
  // False: the round is over.
  bool next_turn() {
    while (turns_ < threads_) {
      current_ = order_.at(turns_++, threads_);
      Fiber& fiber = this->fiber();
      if (fiber.done) continue;
      if (fiber.waits_for) {
        if (fiber.waits_for->load(std::memory_order_acquire) == fiber.seen) continue;
        fiber.waits_for = nullptr;
      }
      fiber.looked = false;
      threadIdx = fiber.index;
      return true;
    }
    return false;
  }

  [[noreturn]] void give_up() {
    std::fprintf(stderr, "emulated GPU: %d of %d threads of block (%u, %u) wait for ever:", left_,
                 threads_, blockIdx.x, blockIdx.y);
    for (int i = 0; i < threads_; ++i) {
      if (!fibers_[i]->done) std::fprintf(stderr, " %d", i);
    }
    std::fprintf(stderr, "\n");
    std::abort();
  }

  int threads_, left_, current_ = 0;
  Order order_;
  // Of this round:
  int turns_ = 0;
  bool somebody_ = false;  // got on
  const std::function<void()>& kernel_;
  Cluster* cluster_;
  std::vector<Meeting> lanes_, groups_;
  Meeting all_, named_[kNamedBarriers];
  std::unique_ptr<Fiber>* fibers_ = nullptr;
  Stack main_;
};

dim3 place(const Grid& grid, unsigned block) {
  return {block % grid.blocks.x, block / grid.blocks.x % grid.blocks.y,
          block / (grid.blocks.x * grid.blocks.y)};
}

}  // namespace

void run(const Grid& grid, const std::function<void()>& kernel) {
  const Order order = next_order();
  const int size = int(grid.cluster.x),
            clusters = int(grid.blocks.x * grid.blocks.y * grid.blocks.z) / size;
  if (size == 1) {
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < clusters; ++i) {
      Block(grid, kernel, place(grid, unsigned(order.at(i, clusters))), order, nullptr).run();
    }
    return;
  }
  // A cluster's blocks run at the same time.
  for (int i = 0; i < clusters; ++i) {
    const unsigned first = unsigned(order.at(i, clusters) * size);
    Cluster cluster;
    cluster.shared.resize(size_t(size));
    cluster.threads = size * int(grid.threads.x);
    std::atomic<int> next = 0, ready = 0;
#pragma omp parallel num_threads(size)
    {
      const int rank = next++;
      cluster.shared[size_t(rank)] = shared_base();
      Block block(grid, kernel, place(grid, first + unsigned(rank)), order, &cluster);
      for (++ready; ready < size;) sched_yield();
      block.run();
    }
  }
}

int thread_number() { return running->current(); }
void wait_for_change(const std::atomic<uint64_t>& word) {
  Fiber& fiber = running->fiber();
  fiber.seen = word.load(std::memory_order_relaxed);
  fiber.waits_for = &word;
  running->leave_turn();
}
void look_again_later() {
  running->fiber().looked = true;
  running->leave_turn();
}
Meeting& warp_meeting(unsigned mask) { return running->warp_meeting(mask); }
Meeting& warpgroup_meeting() { return running->group_meeting(); }
Meeting& block_meeting() { return running->block_meeting(); }
Meeting& named_barrier(int barrier) { return running->named_barrier(barrier); }
void bring(void* own) { running->fiber().brought = own; }
void* brought_by(int thread) { return running->fiber_of(thread).brought; }
int lanes_of(unsigned mask) { return running->lanes_of(mask); }
int threads_left() { return running->threads_left(); }

void meet_cluster() {
  Cluster& cluster = *running->cluster();
  const uint64_t generation = cluster.generation.load();
  if (++cluster.arrived == cluster.threads) {
    cluster.arrived = 0;
    ++cluster.generation;
    return;
  }
  Fiber& fiber = running->fiber();
  fiber.seen = generation;
  fiber.waits_for = &cluster.generation;
  running->leave_turn();
}

std::byte* shared_base() { return shared_memory; }
std::byte* dynamic_shared() { return shared_memory + kDynamicAt; }
std::byte* shared_base_of(uint32_t rank) { return running->cluster()->shared[rank]; }

void begin_copy(uint32_t to, const void* from) {
  running->fiber().under_way.list.push_back({to, from});
}
void end_copies() {
  Copies& copies = running->fiber().under_way;
  copies.ends.push_back(copies.list.size());
}
void finish_copies(int pending) {
  auto& [copies, ends] = running->fiber().under_way;
  const int done = int(ends.size()) - pending;
  if (done <= 0) return;
  const size_t end = ends[size_t(done - 1)];
  for (size_t i = 0; i < end; ++i) {
    if (copies[i].from) {
      std::memcpy(shared_at(copies[i].to), copies[i].from, kCopied);
    } else {
      std::memset(shared_at(copies[i].to), 0, kCopied);
    }
  }
  copies.erase(copies.begin(), copies.begin() + ptrdiff_t(end));
  ends.erase(ends.begin(), ends.begin() + done);
  for (size_t& later : ends) later -= end;
}

}  // namespace emulated

constinit thread_local uint3 threadIdx = {}, blockIdx = {};
constinit thread_local dim3 blockDim = {}, gridDim = {};
