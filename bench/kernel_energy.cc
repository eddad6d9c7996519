// A library that the CUDA driver loads into a process (CUDA_INJECTION64_PATH) and that writes to
// the file $KERNEL_ENERGY what each kind of kernel of a step takes when it runs alone, over and
// over: time and energy by the driver's counter. From the 60th launch of a graph to the 120th it
// measures the steps themselves ("step"); then it takes the kernels of the last step's graphs
// apart by their names, runs those of one name in their order for a while ("graph": all of them),
// and ends the process. One line each: name, kernels a step, microseconds and millijoules a step;
// names that take next to nothing of a step are left out.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// The driver's functions are looked up: it is there wherever it loads this library, but not where
// this is built.
void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
#define DRIVER(name) reinterpret_cast<decltype(&(name))>(dlsym(driver, #name))

void check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "kernel_energy: %s failed\n", what);
  std::_Exit(1);
}
#define CALL(name, ...) check(DRIVER(name)(__VA_ARGS__) == CUDA_SUCCESS, #name)

// The card's energy counter in millijoules, by the driver's management library.
class EnergyCounter {
 public:
  EnergyCounter() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    check(library != nullptr, "dlopen(libnvidia-ml.so.1)");
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto handle = reinterpret_cast<int (*)(unsigned, void**)>(
        dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    read_ = reinterpret_cast<int (*)(void*, unsigned long long*)>(
        dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    check(init && handle && read_ && init() == 0 && handle(0, &device_) == 0, "NVML");
  }
  unsigned long long read() const {
    unsigned long long value = 0;
    check(read_(device_, &value) == 0, "nvmlDeviceGetTotalEnergyConsumption");
    return value;
  }

 private:
  int (*read_)(void*, unsigned long long*) = nullptr;
  void* device_ = nullptr;
};

// The counter and the clock at once. To read the counter takes milliseconds, and it moves only some
// ten times a second.
struct Reading {
  unsigned long long millijoules = 0;
  Clock::time_point time;

  static Reading now() {
    static const EnergyCounter counter;
    return {counter.read(), Clock::now()};
  }
  // Since then, for each of so many.
  void write_since(FILE* out, const std::string& name, size_t kernels, size_t times) const {
    const Reading end = now();
    std::fprintf(out, "%s\t%zu\t%.2f\t%.3f\n", name.c_str(), kernels,
                 std::chrono::duration<double>(end.time - time).count() / double(times) * 1e6,
                 double(end.millijoules - millijoules) / double(times));
    std::fflush(out);
  }
};

constexpr size_t kFirstLaunch = 60, kLastLaunch = 120;
std::map<CUgraphExec, CUgraph> graphs;  // as they were instantiated
std::vector<CUgraphExec> launched;
Reading first;
bool busy = false;  // with calls of its own

struct Kind {
  size_t kernels = 0;
  std::vector<CUgraphExec> parts;  // one for each graph of a step, in order
};

std::vector<CUgraphNode> nodes_of(CUgraph graph) {
  size_t count = 0;
  CALL(cuGraphGetNodes, graph, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  CALL(cuGraphGetNodes, graph, nodes.data(), &count);
  return nodes;
}

CUgraphNodeType type_of(CUgraphNode node) {
  CUgraphNodeType type;
  CALL(cuGraphNodeGetType, node, &type);
  return type;
}

CUDA_KERNEL_NODE_PARAMS kernel_of(CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS params;
  CALL(cuGraphKernelNodeGetParams_v2, node, &params);
  return params;
}

std::string name_of(const CUDA_KERNEL_NODE_PARAMS& kernel) {
  const char* name = nullptr;
  if (kernel.func != nullptr) {
    CALL(cuFuncGetName, &name, kernel.func);
  } else {
    CALL(cuKernelGetName, &name, kernel.kern);
  }
  return name;
}

// The graph's kernels of one name one behind the other; an empty name stands for all. Before them
// what the graph fills, since some kernels count from there.
CUgraphExec part_of(CUgraph graph, const std::string& name, CUcontext context, size_t& kernels) {
  CUgraph part = nullptr;
  CALL(cuGraphCreate, &part, 0);
  CUgraphNode last = nullptr;
  const auto behind = [&](auto add) {
    CUgraphNode node = nullptr;
    add(&node, last != nullptr ? &last : nullptr, size_t(last != nullptr));
    last = node;
  };
  const std::vector<CUgraphNode> nodes = nodes_of(graph);
  for (const CUgraphNode& node : nodes) {
    if (type_of(node) != CU_GRAPH_NODE_TYPE_MEMSET) continue;
    CUDA_MEMSET_NODE_PARAMS fill;
    CALL(cuGraphMemsetNodeGetParams, node, &fill);
    behind([&](CUgraphNode* added, const CUgraphNode* from, size_t count) {
      CALL(cuGraphAddMemsetNode, added, part, from, count, &fill, context);
    });
  }
  for (const CUgraphNode& node : nodes) {
    if (type_of(node) != CU_GRAPH_NODE_TYPE_KERNEL) continue;
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(node);
    if (!name.empty() && name_of(kernel) != name) continue;
    behind([&](CUgraphNode* added, const CUgraphNode* from, size_t count) {
      CALL(cuGraphAddKernelNode_v2, added, part, from, count, &kernel);
      CALL(cuGraphKernelNodeCopyAttributes, *added, node);
    });
    ++kernels;
  }
  CUgraphExec exec = nullptr;
  CALL(cuGraphInstantiateWithFlags, &exec, part, 0);
  return exec;
}

void measure() {
  constexpr double kWarmSeconds = 0.3, kSeconds = 1.4, kShortSeconds = 0.01, kLittleSeconds = 1e-4;
  FILE* const out = std::fopen(std::getenv("KERNEL_ENERGY"), "w");
  check(out != nullptr, "opening the file");
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CALL(cuCtxGetCurrent, &context);
  CALL(cuCtxSynchronize);
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  // The graphs of the last step: what was launched since the last one was launched before.
  std::vector<CUgraphExec> step;
  for (size_t i = launched.size() - 1; i-- > 0 && launched[i] != launched.back();) {
    step.insert(step.begin(), launched[i]);
  }
  step.push_back(launched.back());
  first.write_since(out, "step", 0, (kLastLaunch - kFirstLaunch) / step.size());
  std::map<std::string, Kind> kinds;
  kinds[""];
  for (const CUgraphExec exec : step) {
    for (const CUgraphNode& node : nodes_of(graphs.at(exec))) {
      if (type_of(node) == CU_GRAPH_NODE_TYPE_KERNEL) kinds[name_of(kernel_of(node))];
    }
  }
  for (auto& [name, kind] : kinds) {
    for (const CUgraphExec exec : step) {
      const size_t before = kind.kernels;
      const CUgraphExec part = part_of(graphs.at(exec), name, context, kind.kernels);
      if (kind.kernels > before) kind.parts.push_back(part);
    }
  }
  const auto run_for = [&](const Kind& kind, double seconds) {
    const auto begin = Clock::now();
    size_t times = 0;
    while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
      for (int i = 0; i < 8; ++i, ++times) {
        for (const CUgraphExec part : kind.parts) CALL(cuGraphLaunch, part, stream);
      }
      CALL(cuStreamSynchronize, stream);
    }
    return times;
  };
  for (const auto& [name, kind] : kinds) {
    run_for(kinds[""], 0.05);  // numbers as in a step
    if (double(run_for(kind, kShortSeconds)) > kShortSeconds / kLittleSeconds) continue;
    run_for(kind, kWarmSeconds);
    const Reading begin = Reading::now();
    const size_t times = run_for(kind, kSeconds);
    begin.write_since(out, name.empty() ? "graph" : name, kind.kernels, times);
  }
  std::fclose(out);
}

void CUPTIAPI on_call(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (busy) return;
  // What all functions of these names begin with.
  struct Instantiate {
    CUgraphExec* exec;
    CUgraph graph;
  };
  if (call.callbackSite == CUPTI_API_EXIT &&
      std::strncmp(call.functionName, "cuGraphInstantiate", 18) == 0) {
    const auto& params = *static_cast<const Instantiate*>(call.functionParams);
    busy = true;
    CALL(cuGraphClone, &graphs[*params.exec], params.graph);
    busy = false;
  } else if (call.callbackSite == CUPTI_API_ENTER &&
             std::strncmp(call.functionName, "cuGraphLaunch", 13) == 0) {
    launched.push_back(*static_cast<const CUgraphExec*>(call.functionParams));
    if (launched.size() == kFirstLaunch) first = Reading::now();
    if (launched.size() < kLastLaunch) return;
    busy = true;
    measure();
    std::_Exit(0);
  }
}

}  // namespace

extern "C" int InitializeInjection() {
  if (std::getenv("KERNEL_ENERGY") == nullptr) return 1;
  CUpti_SubscriberHandle subscriber;
  check(cuptiSubscribe(&subscriber, on_call, nullptr) == CUPTI_SUCCESS &&
            cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS,
        "CUPTI");
  return 1;
}
