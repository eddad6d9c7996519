// How calls fail. Each host thread remembers its last error. Some errors stay: that there is no
// device, and, once work has failed on it, that.
#pragma once

#include "emulated_gpu/runtime.h"

namespace emulated {

// cudaSuccess where there is none.
cudaError_t lasting_error();

// Work whose turn it is, be it a stream's or a graph's.
cudaError_t do_now(const std::function<void()>& work);

// A call's result: a lasting error, or what it says itself.
template <class Call>
cudaError_t answer(const Call& call) {
  const cudaError_t lasting = lasting_error();
  return remember(lasting != cudaSuccess ? lasting : call());
}

}  // namespace emulated
