#include "train/platform.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/process_memory.h"
#include "core/progress.h"
#include "core/threads.h"
#include "ops/products.h"
#include "plan/gpu.h"
#include "runtime/cpu_engine.h"
#include "train/rehearsal.h"
#ifdef SNUG_WITH_CUDA
#include "cuda/gpu.h"
#include "cuda/platform.h"
#endif

namespace snug {
namespace {

// Heap growth that no table counts: log lines, stacks, pieces of files. Measured with the smallest
// and the largest models of the tests; generous, because it is the only figure that is not derived.
constexpr uint64_t kSlackBytes = 768 << 10;

// The pages by which two starts of one program differ: which of the program's own are mapped
// depends on what the system has in its cache. A budget is accepted this much below the printed
// minimum and not further.
constexpr uint64_t kStartTolerance = 640 << 10;

class CpuPlatform : public Platform {
 public:
  CpuPlatform(int threads, std::filesystem::path scratch) : scratch_(std::move(scratch)) {
    settle_allocator();
    set_num_threads(threads);
  }

  std::string name() const override { return "cpu"; }

  std::vector<std::pair<std::string, std::string>> facts() const override {
    const auto limit = cgroup_limit_bytes();
    return {{"threads", std::to_string(num_threads())},
            {"memory this process can use", format_bytes(usable_memory_bytes())},
            {"limit of the container", limit ? format_bytes(*limit) : "none"},
            {"occupied by snug itself", format_bytes(resident_bytes())}};
  }

  DType compute_type(const std::string& precision) const override {
    if (precision == "auto" || precision == "fp32") return DType::kF32;
    fail(ErrorKind::kUsage, "--precision {}: on the CPU there is fp32", precision);
  }

  uint64_t budget(const std::optional<uint64_t>& asked_bytes) const override {
    const uint64_t usable = usable_memory_bytes();
    return std::min(asked_bytes.value_or(usable), usable);
  }

  void warm_up() override { rehearse(); }

  void complete(PlanRequest& request) override {
    warm_up_products_for(request.model->largest_product_side(), request.workload.step_tokens);
    const Overhead overhead = measure_overhead();
    request.device = {.kind = DeviceKind::kCpu, .threads = num_threads()};
    request.process.overhead_bytes = overhead.bytes;
    request.process.startup_peak_bytes = overhead.startup_peak_bytes;
    request.process.slack_bytes = [](const Dims&) { return kSlackBytes; };
    request.process.tolerance_bytes = kStartTolerance;
  }

  std::unique_ptr<Engine> make_engine(const Model& model, const Plan& plan,
                                      uint64_t seed) override {
    trim_allocator();  // of the graphs that the planner has looked at
    return std::make_unique<CpuEngine>(model, plan, seed, scratch_);
  }

  uint64_t peak_bytes() const override { return peak_resident_bytes(); }

 private:
  // Takes a tenth of a second and more; a refusal looks at many plans.
  void warm_up_products_for(int64_t largest_side, int64_t rows) {
    if (largest_side <= largest_side_ && rows <= rows_) return;
    largest_side_ = std::max(largest_side, largest_side_);
    rows_ = std::max(rows, rows_);
    warm_up_products(largest_side_, rows_);
  }

  std::filesystem::path scratch_;
  int64_t largest_side_ = 0, rows_ = 0;  // of products that have been warmed up
};

// A GPU that is only described: enough to plan for.
class ProfilePlatform : public Platform {
 public:
  explicit ProfilePlatform(const std::string& profile) : profile_(find_gpu_profile(profile)) {
    settle_allocator();
  }

  std::string name() const override { return profile_.name; }
  std::vector<std::pair<std::string, std::string>> facts() const override {
    return {{"memory of the GPU", format_bytes(profile_.memory_bytes)},
            {"context and libraries, estimated", format_bytes(profile_.overhead_bytes)}};
  }
  DType compute_type(const std::string& precision) const override {
    if (precision == "fp32" || (precision == "auto" && !profile_.has_bf16)) return DType::kF32;
    if (precision == "fp16") return DType::kF16;
    if (profile_.has_bf16) return DType::kBF16;
    fail(ErrorKind::kDevice, "{} does not compute in {}", profile_.name, precision);
  }
  uint64_t budget(const std::optional<uint64_t>& asked_bytes) const override {
    if (asked_bytes && *asked_bytes > profile_.memory_bytes) {
      fail(ErrorKind::kBudget, "--memory {} is more than {} has: {}", format_bytes(*asked_bytes),
           profile_.name, format_bytes(profile_.memory_bytes));
    }
    return asked_bytes.value_or(profile_.memory_bytes);
  }
  void warm_up() override {}
  void complete(PlanRequest& request) override {
    complete_for_gpu(request, profile_.overhead_bytes);
    request.process.host_bytes = peak_resident_bytes();
  }
  std::unique_ptr<Engine> make_engine(const Model&, const Plan&, uint64_t) override {
    fail(ErrorKind::kUsage,
         "--device-profile {}: a card that is not here can be planned for, not run on",
         profile_.name);
  }
  uint64_t peak_bytes() const override { return 0; }

 private:
  GpuProfile profile_;
};

}  // namespace

std::unique_ptr<Platform> open_platform(const CommonOptions& options) {
  if (!options.device_profile.empty()) {
    return std::make_unique<ProfilePlatform>(options.device_profile);
  }
#ifdef SNUG_WITH_CUDA
  const bool gpu = options.device == "auto" ? cuda::has_gpu() : options.device != "cpu";
  if (!gpu) return std::make_unique<CpuPlatform>(options.threads, cache_folder(options));
  settle_allocator();
  set_num_threads(options.threads);
  return cuda::open_platform({.device = options.device == "auto" ? "cuda" : options.device,
                              .cache_folder = cache_folder(options),
                              .allow_tf32 = options.tf32});
#else
  if (options.device == "cpu" || options.device == "auto") {
    return std::make_unique<CpuPlatform>(options.threads, cache_folder(options));
  }
  throw Error(options.device.rfind("cuda", 0) == 0 ? ErrorKind::kDevice : ErrorKind::kUsage,
              fmt::format("--device {}: this snug was built for the CPU alone", options.device),
              "make cuda builds the one for NVIDIA GPUs");
#endif
}

std::filesystem::path cache_folder(const CommonOptions& options) {
  if (!options.cache_dir.empty()) return options.cache_dir;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache) {
    return std::filesystem::path(cache) / "snug";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home) {
    return std::filesystem::path(home) / ".cache/snug";
  }
  return std::filesystem::temp_directory_path() / "snug-cache";
}

}  // namespace snug
