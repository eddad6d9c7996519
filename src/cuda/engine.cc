#include "cuda/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/progress.h"
#include "cuda/check.h"
#include "cuda/kernels.h"
#include "ops/convert.h"

namespace snug::cuda {
namespace {

constexpr size_t kUpdateSlots = 2;

float to_float(const std::byte* at, DType dtype) {
  uint16_t half = 0;
  float single = 0;
  switch (dtype) {
    case DType::kBF16:
      std::memcpy(&half, at, 2);
      return bfloat16_to_float(half);
    case DType::kF16:
      std::memcpy(&half, at, 2);
      return half_to_float(half);
    default:
      std::memcpy(&single, at, 4);
      return single;
  }
}

// Where products count, for as long as this lives.
class CountersInUse {
 public:
  CountersInUse(Products& products, GraphCounters& counters) : products_(products) {
    products_.set_counters(&counters);
  }
  ~CountersInUse() { products_.set_counters(nullptr); }
  CountersInUse(const CountersInUse&) = delete;

 private:
  Products& products_;
};

}  // namespace

CudaEngine::CudaEngine(const Model& model, const Plan& plan, uint64_t seed, const Gpu& gpu,
                       Products& products)
    : Engine(model, plan),
      gpu_(gpu),
      products_(products),
      seed_(seed),
      arena_(plan.arena_bytes, gpu.stream()),
      tables_(device_tables(plan.capacity, model.parameters(), plan.scoring != nullptr)),
      counters_({table<std::byte>(tables_.counters), kCounterBytes}),
      pending_({table<std::byte>(tables_.sums), tables_.sum_bytes}),
      outside_(plan.layout.outside_bytes, gpu.stream()),
      copies_(plan.layout.stowed.size()),
      converted_(arena_, plan.compute == DType::kF32 ? DType::kBF16 : plan.compute) {
  const bool training = plan.scoring != nullptr;
  device_batch_ = {.dims = {},
                   .ids = table<int32_t>(tables_.ids),
                   .positions = table<int32_t>(tables_.positions),
                   .type_ids = table<int32_t>(tables_.type_ids),
                   .row_of = table<int32_t>(tables_.row_of),
                   .starts = table<int32_t>(tables_.starts),
                   .labels = table<int32_t>(tables_.labels),
                   .samples = table<uint64_t>(tables_.samples),
                   .target_rows = table<int32_t>(tables_.target_rows),
                   .target_ids = table<int32_t>(tables_.target_ids),
                   .by_id = table<int32_t>(tables_.by_id)};
  make_slots();
  const auto clear = [&] {
    SNUG_CUDA(cudaMemsetAsync(arena_.base(), 0, plan.arena_bytes, gpu.stream()));
  };
  clear();  // no tokens are there
  const CountersInUse counters(products_, counters_);
  capture(step_, *plan.step, plan.step_memory, training);
  if (training) capture(scoring_, *plan.scoring, plan.scoring_memory, false);
  if (plan.prefix) capture(prefix_, *plan.prefix, plan.prefix_memory, false);
  clear();  // what timing has left; zeros where parameters are padded, which nobody writes
  if (training) fill_chunks();
  SNUG_CUDA(cudaStreamSynchronize(gpu.stream()));
}

CudaEngine::~CudaEngine() {
  cudaStreamSynchronize(gpu_.stream());
  for (const Program* program : {&step_, &scoring_, &prefix_}) {
    for (const Captured& captured : program->buckets) cudaGraphExecDestroy(captured.graph);
  }
  for (const UploadSlot& slot : uploads_) cudaEventDestroy(slot.done);
  for (const UpdateSlot& slot : updates_) cudaEventDestroy(slot.done);
}

void CudaEngine::make_slots() {
  const auto make_event = [](cudaEvent_t& event) {
    SNUG_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  };
  const size_t states = plan_.prefix ? states_desc().bytes(plan_.capacity) : 0;
  for (size_t i = 0; i < kUploadSlots; ++i) {
    uploads_.push_back({PinnedBuffer(align_up(tables_.end_of_batch) + states)});
    make_event(uploads_.back().done);
  }
  for (size_t i = 0; i < kUpdateSlots; ++i) {
    updates_.push_back({PinnedBuffer(sizeof(UpdateFactors) + sizeof(UpdateResult) + 64)});
    make_event(updates_.back().done);
  }
}

void CudaEngine::fill_chunks() {
  const UpdateFacts facts{.optimizer = plan_.optimizer,
                          .compute = plan_.compute,
                          .arena = reinterpret_cast<int64_t>(arena_.base()),
                          .outside = reinterpret_cast<int64_t>(outside_.base())};
  const std::vector<UpdateChunk> chunks = update_chunks(model_.parameters(), plan_.layout, facts);
  SNUG_CHECK(chunks.size() == tables_.chunk_count);
  arena_.write(plan_.layout.tables.offset + tables_.chunks, std::as_bytes(std::span(chunks)));
  update_tensors_ = update_tensors(model_.parameters(), plan_.layout, facts);
}

void CudaEngine::launch_nodes(Program& program, const Dims& dims, const StepContext& context) {
  device_batch_.dims = dims;
  program.executor->for_each(dims, [&](const Executor::Placed& node) {
    launcher_of(node.op)(node.op, {.in = node.in,
                                   .out = node.out,
                                   .workspace = node.workspace,
                                   .batch = &device_batch_,
                                   .state = table<StepState>(tables_.state),
                                   .step = &context,
                                   .only_pass = plan_.only_pass(),
                                   .dying = node.dying,
                                   .outside = outside_.base(),
                                   .layout = &plan_.layout,
                                   .stream = gpu_.stream(),
                                   .products = &products_,
                                   .pending = &pending_,
                                   .copies = &copies_});
  });
  pending_.finish(gpu_.stream());
}

void CudaEngine::capture(Program& program, const StepGraph& graph, const MemoryPlan& memory,
                         bool training) {
  program.source = &graph;
  program.executor = std::make_unique<Executor>(graph.graph, memory, plan_.layout, arena_.base());
  const StepContext context{.seed = seed_, .training = training};
  const std::vector<int64_t> sizes = bucket_sizes(plan_.workload, plan_.capacity.tokens);
  Progress progress("preparing the GPU", sizes.size(), "buckets");
  for (const int64_t tokens : sizes) {
    const Dims dims{
        .tokens = tokens,
        .sequences = plan_.capacity.sequences,
        .longest = plan_.capacity.longest,
        .targets = std::min(plan_.capacity.targets, plan_.workload.dims(tokens).targets),
        .label_words = plan_.capacity.label_words};
    products_.set_timing({.free_factors = true, .long_runs = tokens == sizes.back()});
    // Loads kernels and times products, which a capture cannot.
    launch_nodes(program, dims, context);
    products_.set_timing({});
    cudaGraph_t recorded = nullptr;
    counters_.begin();
    SNUG_CUDA(cudaStreamBeginCapture(gpu_.stream(), cudaStreamCaptureModeThreadLocal));
    launch_nodes(program, dims, context);
    SNUG_CUDA(cudaStreamEndCapture(gpu_.stream(), &recorded));
    counters_.hoist_clears(recorded);
    Captured captured{tokens, nullptr};
    SNUG_CUDA(cudaGraphInstantiate(&captured.graph, recorded, 0));
    program.buckets.push_back(captured);
    SNUG_CUDA(cudaGraphDestroy(recorded));
    SNUG_CUDA(cudaGraphUpload(captured.graph, gpu_.stream()));
    progress.update(program.buckets.size());
  }
}

void CudaEngine::upload(const Program& program, const Batch& batch, float loss_scale) {
  const Dims &dims = batch.dims, &capacity = plan_.capacity;
  SNUG_CHECK(dims.tokens <= capacity.tokens && dims.sequences <= capacity.sequences &&
             dims.longest <= capacity.longest && dims.targets <= capacity.targets &&
             dims.label_words == capacity.label_words);
  UploadSlot& slot = uploads_[next_upload_];
  next_upload_ = (next_upload_ + 1) % uploads_.size();
  SNUG_CUDA(cudaEventSynchronize(slot.done));
  std::byte* const to = slot.buffer.data();
  const auto copy = [&](size_t offset, const auto* from, int64_t count) {
    if (from != nullptr) std::memcpy(to + offset, from, size_t(count) * sizeof(*from));
  };
  const StepState state{int32_t(dims.tokens), int32_t(dims.sequences), int32_t(dims.targets),
                        loss_scale, std::max(0, passes_ - 1)};
  copy(tables_.state, &state, 1);
  copy(tables_.ids, batch.ids, dims.tokens);
  copy(tables_.positions, batch.positions, dims.tokens);
  copy(tables_.type_ids, batch.type_ids, dims.tokens);
  copy(tables_.row_of, batch.row_of, dims.tokens);
  copy(tables_.starts, batch.starts, dims.sequences + 1);
  copy(tables_.labels, batch.labels, dims.sequences * dims.label_words);
  copy(tables_.samples, batch.samples, dims.sequences);
  copy(tables_.target_rows, batch.target_rows, dims.targets);
  copy(tables_.target_ids, batch.target_ids, dims.targets);
  auto* const starts = reinterpret_cast<int32_t*>(to + tables_.starts);
  std::fill(starts + dims.sequences + 1, starts + capacity.sequences + 1, int32_t(dims.tokens));
  auto* const labels = reinterpret_cast<int32_t*>(to + tables_.labels);
  std::fill(labels + dims.sequences * dims.label_words,
            labels + capacity.sequences * capacity.label_words, -1);
  // Tokens by id: the gradient of the word table adds up each row's tokens in this order.
  sort_keys_.resize(size_t(dims.tokens));
  for (int64_t t = 0; t < dims.tokens; ++t) {
    sort_keys_[size_t(t)] = uint64_t(uint32_t(batch.ids[t])) << 32 | uint64_t(t);
  }
  std::sort(sort_keys_.begin(), sort_keys_.end());
  auto* const by_id = reinterpret_cast<int32_t*>(to + tables_.by_id);
  for (size_t i = 0; i < sort_keys_.size(); ++i) by_id[i] = int32_t(uint32_t(sort_keys_[i]));
  SNUG_CUDA(cudaMemcpyAsync(table<std::byte>(tables_.state), to, tables_.end_of_batch,
                            cudaMemcpyHostToDevice, gpu_.stream()));
  if (program.source->given != kNoValue) upload_states(program, slot, dims);
  SNUG_CUDA(cudaEventRecord(slot.done, gpu_.stream()));
}

// Rows behind the micro-batch's are zero: kernels of a larger bucket read them.
void CudaEngine::upload_states(const Program& program, const UploadSlot& slot, const Dims& dims) {
  auto* const to = static_cast<std::byte*>(program.executor->tensor(program.source->given).data);
  const size_t bytes = states_desc().bytes(dims), all = states_desc().bytes(plan_.capacity);
  SNUG_CUDA(cudaMemcpyAsync(to, states_in(slot), bytes, cudaMemcpyHostToDevice, gpu_.stream()));
  SNUG_CUDA(cudaMemsetAsync(to + bytes, 0, all - bytes, gpu_.stream()));
}

void CudaEngine::replay(const Program& program, const Batch& batch, float loss_scale) {
  upload(program, batch, loss_scale);
  const auto bucket =
      std::ranges::lower_bound(program.buckets, batch.dims.tokens, {}, &Captured::tokens);
  SNUG_CUDA(cudaGraphLaunch(bucket->graph, gpu_.stream()));
  last_ = &program;
  last_dims_ = batch.dims;
}

void CudaEngine::begin(double targets) {
  target_share_ = 1.0f / float(targets);
  passes_ = 0;
}

void CudaEngine::accumulate(const Batch& micro_batch) {
  ++passes_;
  SNUG_CHECK(passes_ == 1 || !plan_.only_pass());
  replay(step_, micro_batch, target_share_ * (scales_loss() ? float(loss_scale_.scale) : 1.0f));
}

UpdateArguments CudaEngine::update_arguments() const {
  return {.optimizer = plan_.optimizer,
          .arena = nullptr,  // chunks hold addresses, in the arena and outside
          .copy_dtype = plan_.compute,
          .chunks = table<UpdateChunk>(tables_.chunks),
          .chunk_count = int64_t(tables_.chunk_count),
          .tensors = update_tensors_,
          .factors = table<UpdateFactors>(tables_.factors),
          .loss = step_.executor->scalar(step_.source->loss),
          .result = table<UpdateResult>(tables_.result),
          .partials = table<double>(tables_.partials),
          .seen = table<uint8_t>(tables_.seen)};
}

void CudaEngine::update(const OptimizerStep& given, double max_gradient_norm) {
  const ArenaLayout& layout = plan_.layout;
  if (passes_ == 0) {  // a step of examples without tokens
    SNUG_CUDA(cudaMemsetAsync(arena_.base() + layout.gradients.offset, 0, layout.gradients.bytes,
                              gpu_.stream()));
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      const ParameterPlace& place = layout.parameters[i];
      if (place.outside_gradient == kNoOffset) continue;
      const bool rounded = place.gradient_form == GradientForm::kRounded;
      SNUG_CUDA(cudaMemsetAsync(outside_.base() + place.outside_gradient, 0,
                                fp32_bytes(i) / (rounded ? 2 : 1), gpu_.stream()));
    }
  }
  OptimizerStep step = given;
  if (scales_loss()) step.gradient_scale = 1.0 / loss_scale_.scale;
  const UpdateFactors factors = update_factors(plan_.optimizer, step, max_gradient_norm);
  UpdateSlot& slot = updates_[next_update_];
  SNUG_CHECK(running_.size() < updates_.size());
  running_.push_back(next_update_);
  next_update_ = (next_update_ + 1) % updates_.size();
  if (fresh_state_) {
    SNUG_CUDA(cudaMemsetAsync(table<uint8_t>(tables_.seen), given.step == 1 ? 0 : 0xff,
                              tables_.chunk_count * kSeenBytes, gpu_.stream()));
    fresh_state_ = false;
  }
  std::memcpy(slot.buffer.data(), &factors, sizeof(factors));
  SNUG_CUDA(cudaMemcpyAsync(table<UpdateFactors>(tables_.factors), slot.buffer.data(),
                            sizeof(factors), cudaMemcpyHostToDevice, gpu_.stream()));
  launch_update(update_arguments(), gpu_.stream());
  SNUG_CUDA(cudaMemcpyAsync(slot.buffer.data() + sizeof(factors),
                            table<UpdateResult>(tables_.result), sizeof(UpdateResult),
                            cudaMemcpyDeviceToHost, gpu_.stream()));
  SNUG_CUDA(cudaEventRecord(slot.done, gpu_.stream()));
}

StepResult CudaEngine::finish() {
  SNUG_CHECK(!running_.empty());
  const UpdateSlot& slot = updates_[running_.front()];
  running_.pop_front();
  SNUG_CUDA(cudaEventSynchronize(slot.done));
  UpdateResult raw;
  std::memcpy(&raw, slot.buffer.data() + sizeof(UpdateFactors), sizeof(raw));
  StepResult result{raw.loss, raw.gradient_norm, raw.applied != 0};
  if (scales_loss()) {
    result.loss /= loss_scale_.scale;
    loss_scale_.after_step(result.applied);
    result.skipped = !result.applied && !loss_scale_.hopeless();
  }
  return result;
}

std::span<const std::byte> CudaEngine::run_prefix(const Batch& micro_batch) {
  replay(prefix_, micro_batch, 1.0f);
  const std::span<std::byte> states = given_states(micro_batch.dims);
  const Tensor result = prefix_.executor->tensor(prefix_.source->result);
  arena_.read(size_t(static_cast<std::byte*>(result.data) - arena_.base()), states);
  return states;
}

// In the slot that the next upload takes.
std::span<std::byte> CudaEngine::given_states(const Dims& dims) {
  const UploadSlot& slot = uploads_[next_upload_];
  SNUG_CUDA(cudaEventSynchronize(slot.done));
  return {states_in(slot), states_desc().bytes(dims)};
}

void CudaEngine::score(const Batch& micro_batch) {
  replay(plan_.scoring ? scoring_ : step_, micro_batch, 1.0f);
}

double CudaEngine::take_loss() {
  const Program& program = plan_.scoring ? scoring_ : step_;
  double sum = 0;
  const size_t offset = size_t(
      reinterpret_cast<std::byte*>(program.executor->scalar(program.source->loss)) - arena_.base());
  arena_.read(offset, std::as_writable_bytes(std::span(&sum, 1)));
  SNUG_CUDA(cudaMemsetAsync(arena_.base() + offset, 0, sizeof(double), gpu_.stream()));
  return sum;
}

std::span<const float> CudaEngine::result() {
  SNUG_CHECK(last_ != nullptr);
  const Tensor tensor = last_->executor->tensor(last_->source->result);
  const TensorDesc& desc = last_->source->graph.value(last_->source->result).desc;
  const size_t count = size_t(desc.row_count(last_dims_) * tensor.cols),
               size = dtype_bytes(tensor.dtype);
  std::vector<std::byte> raw(count * size);
  arena_.read(size_t(static_cast<std::byte*>(tensor.data) - arena_.base()), raw);
  result_.resize(count);
  for (size_t i = 0; i < count; ++i) result_[i] = to_float(raw.data() + i * size, tensor.dtype);
  return result_;
}

void CudaEngine::weights_changed() {
  fresh_state_ = true;
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    const ParameterPlace& place = plan_.layout.parameters[i];
    const bool away = place.outside_weight != kNoOffset;
    if ((place.weight == kNoOffset && !away) || place.copy == kNoOffset || place.split) continue;
    const Parameter& parameter = model_.parameters()[i];
    std::byte* const exact =
        away ? outside_.base() + place.outside_weight : arena_.base() + place.weight;
    const Tensor from{exact, DType::kF32, parameter.rows, parameter.cols};
    const Tensor to{arena_.base() + place.copy, plan_.compute, parameter.rows, parameter.cols};
    launch(Convert(),
           {.in = {&from, 1}, .out = {&to, 1}, .workspace = {}, .stream = gpu_.stream()});
  }
}

}  // namespace snug::cuda
