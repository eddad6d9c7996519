// Stacks that take turns. Switching keeps what a function call keeps, and nothing else: no system
// call as ucontext's.
#pragma once

#include <cstddef>

namespace emulated {

class Stack {
 public:
  Stack() = default;  // for who is already on one
  ~Stack();
  Stack(const Stack&) = delete;

  // The next switch to it calls `entry`, which first calls arrive(), and must never return.
  void begin(void (*entry)());
  void arrive();

 private:
  friend void switch_stack(Stack& from, Stack& to);

  void* memory_ = nullptr;   // of its own, once begun
  void* pointer_ = nullptr;  // where it was left
  // For AddressSanitizer.
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* shadow_ = nullptr;
};

// Returns when some stack of this thread switches back.
void switch_stack(Stack& from, Stack& to);

}  // namespace emulated
