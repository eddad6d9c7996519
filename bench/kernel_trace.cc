// A library that the CUDA driver loads into a process (CUDA_INJECTION64_PATH) and that writes to
// the file $KERNEL_TRACE when each kernel, copy and fill ran, those of graphs included. One line
// each: name, begin and length in nanoseconds.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Span {
  std::string name;
  uint64_t begin = 0, end = 0;
};

std::mutex guard;
std::vector<Span> spans;

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  constexpr size_t kBytes = 8 << 20, kAlign = 64;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlign, kBytes));
  *bytes = kBytes;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard lock(guard);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    const auto add = [&](const auto& activity, const char* name) {
      spans.push_back({name, activity.start, activity.end});
    };
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        add(kernel, kernel.name);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        add(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record), "copy");
        break;
      case CUPTI_ACTIVITY_KIND_MEMSET:
        add(*reinterpret_cast<const CUpti_ActivityMemset4*>(record), "fill");
        break;
      default:
        break;
    }
  }
  std::free(buffer);
}

void write() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(guard);
  FILE* const out = std::fopen(std::getenv("KERNEL_TRACE"), "w");
  if (out == nullptr) return;
  for (const Span& span : spans) {
    std::fprintf(out, "%s\t%llu\t%llu\n", span.name.c_str(),
                 static_cast<unsigned long long>(span.begin),
                 static_cast<unsigned long long>(span.end - span.begin));
  }
  std::fclose(out);
}

}  // namespace

extern "C" int InitializeInjection() {
  constexpr uint32_t kFlushMilliseconds = 200;  // at exit the context may be gone
  if (std::getenv("KERNEL_TRACE") == nullptr) return 1;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    cuptiActivityEnable(kind);
  }
  cuptiActivityFlushPeriod(kFlushMilliseconds);
  std::atexit(write);
  return 1;
}
