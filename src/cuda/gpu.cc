#include "cuda/gpu.h"

#include <dlfcn.h>

#include <charconv>
#include <memory>

#include "core/error.h"
#include "core/progress.h"
#include "cuda/check.h"

namespace snug::cuda {
namespace {

constexpr int kLeastCapability = 75;

// The management library counts memory without creating a context. It comes with the driver, never
// with the toolkit, so it is looked up at run time; where it is missing the neighbours' share reads
// as zero.
class ManagementLibrary {
 public:
  ManagementLibrary() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    load(init_, "nvmlInit_v2");
    load(handle_, "nvmlDeviceGetHandleByPciBusId_v2");
    load(memory_, "nvmlDeviceGetMemoryInfo_v2");
    load(shutdown_, "nvmlShutdown");
    ready_ = init_ && handle_ && memory_ && shutdown_ && init_() == 0;
  }
  ~ManagementLibrary() {
    if (ready_) shutdown_();
    if (library_ != nullptr) ::dlclose(library_);
  }
  ManagementLibrary(const ManagementLibrary&) = delete;

  uint64_t used_bytes(const char* pci_bus_id) const {
    void* device = nullptr;
    MemoryInfo info;
    if (!ready_ || handle_(pci_bus_id, &device) != 0 || memory_(device, &info) != 0) return 0;
    return info.used;
  }

 private:
  struct MemoryInfo {  // nvmlMemory_v2_t: `used` without what the driver keeps for itself
    unsigned version = unsigned(sizeof(MemoryInfo)) | 2u << 24;
    unsigned long long total = 0, reserved = 0, free = 0, used = 0;
  };
  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }

  void* library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*handle_)(const char*, void**) = nullptr;
  int (*memory_)(void*, MemoryInfo*) = nullptr;
  int (*shutdown_)() = nullptr;
};

int parse_ordinal(const std::string& name) {
  if (name == "cuda") return 0;
  int ordinal = -1;
  const char* const end = name.data() + name.size();
  if (name.rfind("cuda:", 0) == 0) {
    const auto [at, error] = std::from_chars(name.data() + 5, end, ordinal);
    if (error == std::errc() && at == end && ordinal >= 0) return ordinal;
  }
  fail(ErrorKind::kUsage, "--device is \"{}\", expected cpu, cuda or cuda:N", name);
}

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  if (status == cudaErrorNoDevice) return 0;
  if (status == cudaErrorInsufficientDriver) {
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    if (driver == 0) {
      throw Error(ErrorKind::kDevice, "no NVIDIA driver is installed here",
                  "--device cpu works without one");
    }
    throw Error(
        ErrorKind::kDevice,
        fmt::format("the NVIDIA driver is too old: it knows CUDA {}.{}, this program needs {}.{}",
                    driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10),
        "install a newer driver, or use --device cpu");
  }
  fail_call("cudaGetDeviceCount", cudaGetErrorString(status));
}

}  // namespace

void fail_call(const char* call, const char* reason) {
  fail(ErrorKind::kDevice, "CUDA: {}: {}", call, reason);
}

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

Gpu::Gpu(const std::string& name) : ordinal_(parse_ordinal(name)) {
  const int count = device_count();
  if (count == 0) {
    throw Error(ErrorKind::kDevice, "there is no NVIDIA GPU here", "use --device cpu");
  }
  if (ordinal_ >= count) {
    fail(ErrorKind::kDevice, "--device {}: there {} only {} GPU{} here, numbered from 0", name,
         count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
  }
  cudaDeviceProp properties{};
  SNUG_CUDA(cudaGetDeviceProperties(&properties, ordinal_));
  model_ = properties.name;
  capability_ = properties.major * 10 + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  if (capability_ < kLeastCapability) {
    fail(ErrorKind::kDevice, "{} has compute capability {}.{}, snug needs {}.{} or newer", model_,
         properties.major, properties.minor, kLeastCapability / 10, kLeastCapability % 10);
  }
  char bus_id[32] = {};
  SNUG_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal_));
  neighbours_bytes_ = ManagementLibrary().used_bytes(bus_id);
  const cudaError_t context = cudaSetDevice(ordinal_);
  if (context == cudaErrorMemoryAllocation) {
    throw Error(
        ErrorKind::kBudget,
        fmt::format(
            "other processes hold {} of {}'s {}: not even CUDA's own context fits beside them",
            format_bytes(neighbours_bytes_), this->name(), format_bytes(properties.totalGlobalMem)),
        "wait for them, choose another GPU, or use --device cpu");
  }
  check(context, "cudaSetDevice");
  SNUG_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Gpu::~Gpu() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

std::string Gpu::name() const { return fmt::format("cuda:{}", ordinal_); }

std::string Gpu::versions() const {
  int runtime = 0, driver = 0;
  SNUG_CUDA(cudaRuntimeGetVersion(&runtime));
  SNUG_CUDA(cudaDriverGetVersion(&driver));
  return fmt::format("{}.{}, {}.{}", driver / 1000, driver % 1000 / 10, runtime / 1000,
                     runtime % 1000 / 10);
}

DeviceMemory Gpu::memory() const {
  size_t free = 0, total = 0;
  SNUG_CUDA(cudaMemGetInfo(&free, &total));
  return {total, total - free};
}

uint64_t Gpu::process_bytes() const {
  const uint64_t used = memory().used_bytes;
  return used - std::min(used, neighbours_bytes_);
}

DeviceLimits device_limits() {
  int device = 0, major = 0, minor = 0, multiprocessors = 0, shared_bytes = 0;
  SNUG_CUDA(cudaGetDevice(&device));
  SNUG_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  SNUG_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  SNUG_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  SNUG_CUDA(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return {10 * major + minor, multiprocessors, size_t(shared_bytes)};
}

}  // namespace snug::cuda
