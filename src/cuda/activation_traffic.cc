// ops/activation_traffic.h on the device: copies of a whole bucket, padding and all, so that what
// comes back is what was there.
#include "ops/activation_traffic.h"

#include "cuda/copy_stream.h"
#include "cuda/kernels.h"

namespace snug::cuda {
namespace {

std::byte* place(const Launch& call, int slot) {
  return call.outside + call.layout->stowed[size_t(slot)];
}

size_t bytes_of(const Tensor& tensor) { return size_t(tensor.size()) * dtype_bytes(tensor.dtype); }

}  // namespace

void launch(const StowActivation& op, const Launch& call) {
  const Tensor& value = call.in[0];
  call.copies->start(size_t(op.slot),
                     {.to = place(call, op.slot), .from = value.data, .bytes = bytes_of(value)},
                     call.stream);
}

void launch(const FetchActivation& op, const Launch& call) {
  const Tensor& value = call.out[0];
  call.copies->start(size_t(op.slot),
                     {.to = value.data, .from = place(call, op.slot), .bytes = bytes_of(value)},
                     call.stream);
}

void launch(const AwaitActivation& op, const Launch& call) {
  call.copies->await(size_t(op.slot), call.stream);
}

}  // namespace snug::cuda
