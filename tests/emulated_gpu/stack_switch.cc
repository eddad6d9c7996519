#include "emulated_gpu/stack_switch.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "the emulated GPU switches stacks on x86-64 alone"
#endif

// void emulated_switch(void** from, void* to)
asm(R"(
.text
.globl emulated_switch
.type emulated_switch, @function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulated_switch, .-emulated_switch
)");
extern "C" void emulated_switch(void** from, void* to);

namespace emulated {
namespace {

// Kernels keep what are registers on a GPU on it; sanitizers put gaps between.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 512 << 10;
#else
constexpr size_t kStackBytes = 80 << 10;
#endif
constexpr int kKeptRegisters = 6;
// Stacks begin at different lines of their pages: at the same, they would all want the same few
// places in the processor's caches.
constexpr size_t kLine = 64, kLines = 256;

#ifdef __SANITIZE_ADDRESS__
thread_local Stack* left_last = nullptr;
#endif

}  // namespace

Stack::~Stack() {
  if (memory_ != nullptr) munmap(memory_, kStackBytes);
}

void Stack::begin(void (*entry)()) {
  if (memory_ == nullptr) {
    memory_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) std::abort();
    static thread_local size_t count = 0;
    bottom_ = memory_;
    size_ = kStackBytes - count++ % kLines * kLine;
  }
  shadow_ = nullptr;
  // As a call leaves it: behind the address to return to, which nobody does, aligned to 16 bytes.
  void** top = reinterpret_cast<void**>(static_cast<char*>(memory_) + size_) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  pointer_ = top - kKeptRegisters;
}

void switch_stack(Stack& from, Stack& to) {
#ifdef __SANITIZE_ADDRESS__
  left_last = &from;
  __sanitizer_start_switch_fiber(&from.shadow_, to.bottom_, to.size_);
#endif
  emulated_switch(&from.pointer_, to.pointer_);
  from.arrive();
}

void Stack::arrive() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(shadow_, &left_last->bottom_, &left_last->size_);
#endif
}

}  // namespace emulated
