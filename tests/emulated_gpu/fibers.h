// The threads of a block as fibers of one thread of the processor: they take turns, each until it
// has to wait for others. So every kernel runs as it is written, with its barriers, its exchanges
// between lanes and its warps that do different work.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace emulated {

// Of the thread that is running.
int thread_number();  // in its block
inline int lane_number() { return thread_number() % 32; }

// Lets others run until the word has another value.
void wait_for_change(const std::atomic<uint64_t>& word);
// Lets others run once: for who looks again and again whether what it waits for has come.
void look_again_later();

// Where `expected` threads meet, over and over.
class Meeting {
 public:
  void join(int expected) {
    if (!is_last(expected)) return wait_for_change(generation_);
    release();
  }
  // The last to come does what all do together.
  template <class Work>
  void join(int expected, const Work& work) {
    if (!is_last(expected)) return wait_for_change(generation_);
    work();
    release();
  }
  // Without waiting.
  void come(int expected) {
    if (is_last(expected)) release();
  }
  // Fewer are expected than when those who wait here came.
  void leave(int expected) {
    if (arrived_ > 0 && arrived_ == expected) release();
  }

 private:
  bool is_last(int expected) { return ++arrived_ == expected; }
  void release() {
    arrived_ = 0;
    generation_.fetch_add(1, std::memory_order_release);
  }

  int arrived_ = 0;
  std::atomic<uint64_t> generation_ = 0;
};

// Of the running thread's warp, for lanes with this mask; of its warpgroup; of its block.
Meeting& warp_meeting(unsigned mask);
Meeting& warpgroup_meeting();
Meeting& block_meeting();
Meeting& named_barrier(int barrier);
// How many of a mask's lanes, or of the block's threads, there are.
int lanes_of(unsigned mask);
int threads_left();

// What a thread brings to a meeting, for who does the work there.
void bring(void* own);
void* brought_by(int thread);

// What some threads from `first` on do together: work(of), with of(i) what the i-th has brought.
template <class Own, class Work>
void together(Meeting& meeting, int expected, int first, Own& own, const Work& work) {
  bring(&own);
  meeting.join(expected, [&] {
    work([&](int i) -> Own& { return *static_cast<Own*>(brought_by(first + i)); });
  });
}
template <class Own, class Work>
void in_warp(unsigned mask, Own& own, const Work& work) {
  together(warp_meeting(mask), lanes_of(mask), thread_number() / 32 * 32, own, work);
}
template <class Own, class Work>
void in_warpgroup(Own& own, const Work& work) {
  together(warpgroup_meeting(), 128, thread_number() / 128 * 128, own, work);
}

// Until all threads of all blocks of the cluster have come.
void meet_cluster();

// Shared memory.

// What kernels declare as extern __shared__.
std::byte* dynamic_shared();
inline constexpr int kMostShared = 233472;  // bytes of it: 228 KiB
// Addresses of shared memory are distances from this byte, whatever was declared.
std::byte* shared_base();
template <class T = std::byte>
T* shared_at(uint32_t address) {
  return reinterpret_cast<T*>(shared_base() + int32_t(address));
}
std::byte* shared_base_of(uint32_t rank);  // of a block of the cluster

// Copies to shared memory that are under way: they are done as late as they may be.
void begin_copy(uint32_t to, const void* from);  // of 16 bytes; zeros where `from` is null
void end_copies();
void finish_copies(int pending);

}  // namespace emulated
