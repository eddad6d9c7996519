// A library that the CUDA driver loads into a process (CUDA_INJECTION64_PATH) and that makes it
// fail in mid-run: when the file $CUDA_FAULT appears, a kernel that traps is started in the
// process's own context, and every call behind it returns that error.
#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace {

constexpr const char* kTrap =
    ".version 6.3\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".visible .entry fault() { trap; ret; }\n";

// The driver's functions are looked up: it is there wherever it loads this library, but not where
// this is built.
#define DRIVER(name) reinterpret_cast<decltype(&(name))>(dlsym(driver, #name))

void fail_when_there(const std::string& path) {
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  const bool started = DRIVER(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS &&
                       DRIVER(cuCtxSetCurrent)(context) == CUDA_SUCCESS &&
                       DRIVER(cuModuleLoadData)(&module, kTrap) == CUDA_SUCCESS &&
                       DRIVER(cuModuleGetFunction)(&kernel, module, "fault") == CUDA_SUCCESS &&
                       DRIVER(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                              nullptr) == CUDA_SUCCESS;
  if (!started) std::fprintf(stderr, "cuda_fault: the kernel that traps could not be started\n");
}

}  // namespace

extern "C" int InitializeInjection() {
  if (const char* path = std::getenv("CUDA_FAULT")) {
    std::thread(fail_when_there, std::string(path)).detach();
  }
  return 1;
}
