#include "plan/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace snug {
namespace {

// Buckets are multiples of this: whole tiles of the matrix products.
constexpr int64_t kBucketStep = 128;
constexpr int64_t kMostBuckets = 20;

// What the driver takes after the arena: code of kernels at their first launch, which is 2 MiB or,
// where products are timed, up to 8, and up to 12 where they are large; and for each captured
// graph, per operator, and more where copies run beside kernels. By these, plans of BERT-base and
// -large and of GPT-2 355M and 1.5B on an H200, with 1 to 20 buckets, took 0.2 to 33 MiB less than
// planned, up to 1.75 % where most of a plan is on the host, else up to 1 %.
constexpr uint64_t loaded_later_bytes(int64_t tokens) {
  constexpr int64_t kSmall = 2048, kBytesPerToken = 1 << 10, kMost = 6 << 20;
  return (8 << 20) + uint64_t(std::clamp((tokens - kSmall) * kBytesPerToken, int64_t{0}, kMost));
}
constexpr uint64_t kGraphBytesPerNode = 3520, kBranchedBytesPerNode = 4300,
                   kBranchBytes = 640 << 10;

// Room for sums over rows that wait to be added together: a layer's or more. The small
// micro-batches of small budgets, which are slow for other reasons, have none.
constexpr size_t pending_sum_bytes(int64_t tokens) {
  constexpr int64_t kSmall = 512, kBytesPerToken = 16 << 10, kMost = 16 << 20;
  return size_t(std::clamp((tokens - kSmall) * kBytesPerToken, int64_t{0}, kMost));
}

// The overhead was measured on the H200 (132 multiprocessors); it grows with their number, so the
// others are estimates.
struct Card {
  const char* name;
  uint64_t memory_mib;
  int multiprocessors;
  bool has_bf16;
};
constexpr double kOverheadMibPerMultiprocessor = 530.0 / 132.0;
constexpr std::array kCards = {Card{"t4", 15360, 40, false},
                               Card{"rtx2080ti", 11264, 68, false},
                               Card{"rtx3060-12gb", 12288, 28, true},
                               Card{"rtx3070", 8192, 46, true},
                               Card{"rtx3090", 24576, 82, true},
                               Card{"rtx4060-8gb", 8188, 24, true},
                               Card{"rtx4060ti-16gb", 16380, 34, true},
                               Card{"rtx4090", 24564, 128, true},
                               Card{"l4", 23034, 58, true},
                               Card{"a10", 23028, 72, true},
                               Card{"a100-40gb", 40960, 108, true},
                               Card{"a100-80gb", 81920, 108, true},
                               Card{"h100-80gb", 81559, 132, true},
                               Card{"h200", 143156, 132, true}};

GpuProfile read_profile(const std::string& file) {
  const Json json = parse_json(read_small_file(file), file);
  GpuProfile profile;
  try {
    profile = {.name = json.at("name"),
               .memory_bytes = json.at("memory_bytes"),
               .overhead_bytes = json.at("overhead_bytes"),
               .has_bf16 = json.value("bf16", true)};
  } catch (const Json::exception&) {
    fail(ErrorKind::kInput,
         "{}: a device profile has \"name\", \"memory_bytes\" and \"overhead_bytes\"", file);
  }
  return profile;
}

}  // namespace

DeviceTables device_tables(const Dims& capacity, const ParameterTable& parameters, bool training) {
  DeviceTables t;
  const auto take = [&](size_t& at, size_t bytes) {
    at = t.bytes;
    t.bytes += align_up(bytes);
  };
  const auto tokens = size_t(capacity.tokens), sequences = size_t(capacity.sequences);
  take(t.state, sizeof(StepState));
  for (size_t* array : {&t.ids, &t.positions, &t.type_ids, &t.row_of, &t.by_id}) {
    take(*array, tokens * sizeof(int32_t));
  }
  take(t.starts, (sequences + 1) * sizeof(int32_t));
  take(t.labels, sequences * size_t(capacity.label_words) * sizeof(int32_t));
  take(t.samples, sequences * sizeof(uint64_t));
  for (size_t* array : {&t.target_rows, &t.target_ids}) {
    take(*array, size_t(capacity.targets) * sizeof(int32_t));
  }
  t.end_of_batch = t.bytes;
  take(t.counters, kCounterBytes);
  if (!training) return t;
  t.chunk_count = update_chunk_count(parameters);
  take(t.chunks, t.chunk_count * sizeof(UpdateChunk));
  take(t.factors, sizeof(UpdateFactors));
  take(t.result, sizeof(UpdateResult));
  take(t.partials, kNormPartials * sizeof(double));
  take(t.seen, t.chunk_count * kSeenBytes);
  t.sum_bytes = pending_sum_bytes(capacity.tokens);
  take(t.sums, t.sum_bytes);
  return t;
}

std::vector<int64_t> bucket_sizes(int64_t capacity) {
  const auto round_up = [](int64_t n, int64_t step) { return (n + step - 1) / step * step; };
  const int64_t step = round_up((capacity + kMostBuckets - 1) / kMostBuckets, kBucketStep);
  std::vector<int64_t> sizes;
  for (int64_t size = step; size < capacity; size += step) sizes.push_back(size);
  sizes.push_back(capacity);
  return sizes;
}

std::vector<int64_t> bucket_sizes(const Workload& workload, int64_t capacity) {
  if (workload.target_rule == TargetRule::kLastToken) {
    const int64_t texts = workload.dims(capacity).sequences;
    return texts < capacity ? std::vector<int64_t>{texts, capacity}
                            : std::vector<int64_t>{capacity};
  }
  if (workload.one_size) return {capacity};
  const int64_t text = workload.longest;
  const bool alike = 10 * workload.mean_length >= 9 * text && text >= kBucketStep &&
                     capacity < text * kMostBuckets;
  if (!alike) return bucket_sizes(capacity);
  std::vector<int64_t> sizes;
  for (int64_t size = text; size < capacity; size += text) sizes.push_back(size);
  sizes.push_back(capacity);
  return sizes;
}

GpuProfile find_gpu_profile(const std::string& name_or_file) {
  for (const Card& card : kCards) {
    if (name_or_file != card.name) continue;
    return {.name = card.name,
            .memory_bytes = card.memory_mib << 20,
            .overhead_bytes = uint64_t(kOverheadMibPerMultiprocessor * card.multiprocessors) << 20,
            .has_bf16 = card.has_bf16};
  }
  if (std::filesystem::exists(name_or_file)) return read_profile(name_or_file);
  std::vector<std::string> names;
  for (const Card& card : kCards) names.emplace_back(card.name);
  throw Error(
      ErrorKind::kUsage,
      fmt::format("--device-profile {}: neither a card snug knows nor a file", name_or_file),
      fmt::format("there are {}", fmt::join(names, ", ")));
}

void complete_for_gpu(PlanRequest& request, uint64_t overhead_bytes) {
  request.device = {.kind = DeviceKind::kCuda};
  ProcessFacts& process = request.process;
  process.overhead_bytes = overhead_bytes;
  process.slack_bytes = [](const Dims& capacity) { return loaded_later_bytes(capacity.tokens); };
  process.launch_bytes = [workload = request.workload](const Dims& capacity, size_t nodes,
                                                       bool branches) {
    const uint64_t graph =
        branches ? kBranchedBytesPerNode * nodes + kBranchBytes : kGraphBytesPerNode * nodes;
    return graph * bucket_sizes(workload, capacity.tokens).size();
  };
  process.tolerance_bytes = kGpuGranule;
  process.arena_granule = kGpuGranule;
  process.table_bytes = [model = request.model,
                         training =
                             request.graph.purpose == Purpose::kTraining](const Dims& capacity) {
    return device_tables(capacity, model->parameters(), training).bytes;
  };
}

}  // namespace snug
