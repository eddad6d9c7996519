#include "cuda/platform.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/process_memory.h"
#include "core/progress.h"
#include "cuda/engine.h"

namespace snug::cuda {
namespace {

class CudaPlatform : public Platform {
 public:
  explicit CudaPlatform(const PlatformOptions& options)
      : gpu_(options.device),
        context_bytes_(gpu_.process_bytes()),
        products_(gpu_, options.cache_folder, options.allow_tf32) {}

  std::string name() const override { return gpu_.name(); }

  std::vector<std::pair<std::string, std::string>> facts() const override {
    const DeviceMemory memory = gpu_.memory();
    return {{"GPU",
             fmt::format("{}, compute capability {}.{}, {} multiprocessors", gpu_.model(),
                         gpu_.capability() / 10, gpu_.capability() % 10, gpu_.multiprocessors())},
            {"driver, CUDA, cuBLASLt", gpu_.versions() + fmt::format(", {}", cublasLtGetVersion())},
            {"memory of the GPU", format_bytes(memory.total_bytes)},
            {"held by other processes", format_bytes(gpu_.neighbours_bytes())},
            {"CUDA context", format_bytes(context_bytes_)},
            {"cuBLASLt",
             format_bytes(gpu_.process_bytes() - std::min(gpu_.process_bytes(), context_bytes_))},
            {"most an arena can have", format_bytes(memory.total_bytes - memory.used_bytes)},
            {"precision", gpu_.has_bf16() ? "fp32, bf16, fp16" : "fp32, fp16"}};
  }

  DType compute_type(const std::string& precision) const override {
    if (precision == "fp32") return DType::kF32;
    if (precision == "fp16") return DType::kF16;
    if (precision == "auto") return gpu_.has_bf16() ? DType::kBF16 : DType::kF32;
    if (precision != "bf16") {
      fail(ErrorKind::kUsage, "--precision is \"{}\", expected auto, fp32, bf16 or fp16",
           precision);
    }
    if (!gpu_.has_bf16()) {
      throw Error(ErrorKind::kDevice,
                  fmt::format("{} ({}) does not compute in bf16", gpu_.model(), gpu_.name()),
                  "--precision fp16 or fp32 works on it");
    }
    return DType::kBF16;
  }

  uint64_t budget(const std::optional<uint64_t>& asked_bytes) const override {
    const uint64_t total = gpu_.memory().total_bytes, held = gpu_.neighbours_bytes();
    const uint64_t usable = total - std::min(total, held);
    if (!asked_bytes) return usable;
    if (*asked_bytes > total) {
      throw Error(ErrorKind::kBudget,
                  fmt::format("--memory {} is more than {} has: {}", format_bytes(*asked_bytes),
                              gpu_.name(), format_bytes(total)),
                  "leave --memory out to use all that is free");
    }
    if (*asked_bytes > usable) {
      warn(fmt::format("other processes hold {} of {}'s {}: planning for {}", format_bytes(held),
                       gpu_.name(), format_bytes(total), format_bytes(usable)));
    }
    return std::min(*asked_bytes, usable);
  }

  void warm_up() override {}

  void complete(PlanRequest& request) override {
    complete_for_gpu(request, gpu_.process_bytes());
    request.process.host_bytes = peak_resident_bytes();
  }

  std::unique_ptr<Engine> make_engine(const Model& model, const Plan& plan,
                                      uint64_t seed) override {
    return std::make_unique<CudaEngine>(model, plan, seed, gpu_, products_);
  }

  uint64_t peak_bytes() const override { return gpu_.process_bytes(); }

 private:
  Gpu gpu_;
  uint64_t context_bytes_;
  Products products_;
};

}  // namespace

std::unique_ptr<Platform> open_platform(const PlatformOptions& options) {
  return std::make_unique<CudaPlatform>(options);
}

}  // namespace snug::cuda
