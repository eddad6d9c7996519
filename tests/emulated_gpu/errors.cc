#include "emulated_gpu/errors.h"

#include <algorithm>
#include <iterator>

namespace emulated {
namespace {

constexpr struct {
  cudaError_t error;
  const char* text;
} kTexts[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge,
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit,
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent,
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread,
     "attempt to terminate a thread-local capture sequence from another thread"},
};

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t failed_work = cudaSuccess;
long work_count = 0;

}  // namespace

cudaError_t remember(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

cudaError_t lasting_error() {
  if (device().driver / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  if (device().count == 0) return cudaErrorNoDevice;
  return failed_work;
}

cudaError_t do_now(const std::function<void()>& work) {
  if (failed_work != cudaSuccess) return failed_work;
  if (++work_count == device().failing_work) return failed_work = cudaErrorLaunchFailure;
  work();
  return cudaSuccess;
}

}  // namespace emulated

const char* cudaGetErrorString(cudaError_t error) {
  const auto* const found =
      std::ranges::find(emulated::kTexts, error, [](const auto& entry) { return entry.error; });
  return found == std::end(emulated::kTexts) ? "unrecognized error code" : found->text;
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = cudaPeekAtLastError();
  emulated::last_error = cudaSuccess;
  return status;
}

cudaError_t cudaPeekAtLastError() {
  return emulated::failed_work != cudaSuccess ? emulated::failed_work : emulated::last_error;
}
