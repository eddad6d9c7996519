#include "plan/cost_model.h"

#include <algorithm>
#include <numeric>

#include "plan/planner.h"

namespace snug {
namespace {

// What a device does in a second at BERT's and GPT-2's shapes. The GPU's are an H200's: with them a
// step of BERT-base and -large of 16,384 tokens comes out within a tenth of what it takes. The
// CPU's are two cores with AVX2.
struct Rates {
  double half_flops, float_flops, bytes;
  // A micro-batch reads every weight three times and launches every kernel whatever its size; that
  // costs about as much time as this many tokens. A chunk of a language model's head reads the word
  // table and reads and writes its gradient, and weights that are converted when used are read and
  // written twice: in tokens of the head, and of the whole model.
  double tokens_per_pass, tokens_per_chunk, tokens_per_conversion;
};
constexpr Rates kGpu = {680e12, 45e12, 4e12, 1600, 200, 310};
constexpr Rates kCpu = {100e9, 100e9, 10e9, 24, 10, 310};

// Values of width `hidden` that forward and backward of a layer read and write besides the factors
// of products.
constexpr double kTrafficForward = 34, kTraffic = 100;
// A PCIe 5 bus in both directions together, and a file that the system mostly keeps in its cache.
constexpr double kBusBytesPerSecond = 60e9, kFileBytesPerSecond = 1.5e9;
// One direction of the bus alone, by the engines that copy; and what it takes to start a copy and
// to wait for its end.
constexpr double kCopyBytesPerSecond = 50e9, kCopySeconds = 8e-6;
// A parameter: weight, gradient and moments read, all but the gradient written.
constexpr double kUpdateBytes = 28;

size_t index_of(Part part) {
  return size_t(std::ranges::find(kPartNames, part, &PartName::part) - kPartNames.begin());
}

std::vector<double> layer_shares(const Model& model) {
  std::vector<bool> any(size_t(model.layers())), matrices(any.size());
  bool before = false;  // something is trained before the layers
  for (const Parameter& p : model.parameters()) {
    if (!p.trained) continue;
    before |= p.stage == Stage::kEmbeddings;
    if (p.stage != Stage::kLayer) continue;
    any[size_t(p.layer)] = true;
    if (p.is_factor && !p.is_vector && !p.is_adapter) matrices[size_t(p.layer)] = true;
  }
  std::vector<double> shares;
  for (size_t i = 0; i < any.size(); ++i) {
    before = before || any[i];
    shares.push_back(!before ? Speed::kForwardShare : matrices[i] ? 1.0 : 2 * Speed::kForwardShare);
  }
  return shares;
}

// A classifier's last layer multiplies no token with a weight, or where its weights are not plain,
// only for attention.
double last_layer_share(const Model& model) {
  if (model.head() != Head::kClassifier) return 1.0;
  bool plain = model.config().family != Family::kGpt2;
  for (const Parameter& p : model.parameters()) {
    plain &= p.layer + 1 != model.layers() || !(p.is_adapter || p.quantized);
  }
  return plain ? 0.1 : 0.4;
}

// On average.
double micro_batches(const Workload& workload, int64_t capacity) {
  if (capacity >= workload.step_tokens) return 1;
  const int64_t mean = std::max<int64_t>(1, workload.mean_length);
  if (!workload.lengths_vary()) {
    // Whole texts only: 900 tokens hold one of 512.
    const int64_t texts = std::max<int64_t>(1, capacity / mean);
    return double((workload.batch_size + texts - 1) / texts);
  }
  // Half a text does not fit, and the last micro-batch is half empty.
  const double filled = std::max(double(mean), double(capacity) - 0.5 * double(mean));
  return std::max(1.0, double(mean_step_tokens(workload)) / filled + 0.5);
}

// Bytes of each trained parameter go over the bus, or to a file and back, once an update or once a
// micro-batch.
double offload_seconds(const PlanRequest& request, Offload offload, int64_t capacity,
                       double passes) {
  if (offload == Offload::kNone) return 0;
  const bool cpu = request.device.kind == DeviceKind::kCpu;
  const double parameters = double(trained_count(request.model->parameters())),
               rate = cpu ? kFileBytesPerSecond : kBusBytesPerSecond;
  // Moments, and beside a GPU the weight or its lower half, there and back.
  double bytes = (cpu ? 16 : request.graph.compute == DType::kBF16 ? 20 : 24) * parameters;
  if (offload == Offload::kGradients) {
    double gradients = 4 * parameters;
    for (const Parameter& p : request.model->parameters()) {
      const bool rounded =
          capacity >= request.workload.step_tokens && p.rounds_gradient(request.graph.compute);
      if (rounded) gradients -= 2 * double(p.size());
    }
    // Read for the norm and by the update; stored by each micro-batch, fetched by all but the
    // first.
    bytes += (2 + passes + (passes - 1)) * gradients;
  }
  return bytes / rate;
}

// What recomputed layers keep goes over the bus while other layers are computed: what takes longer
// than they do counts. A CPU waits for its file.
double stowing_seconds(const PlanRequest& request, const Speed& speed, const PlanChoice& choice,
                       double tokens, double passes) {
  if (!choice.activations_outside) return 0;
  const double bytes = tokens * double(request.model->config().hidden_size) *
                       double(dtype_bytes(request.graph.compute));
  const double layer = tokens * speed.token_layer + passes * speed.pass_layer,
               copy = bytes / kCopyBytesPerSecond;
  double seconds = 0;
  for (size_t i = 0; i < speed.shares.size() && i + 1 < choice.recompute.size(); ++i) {
    if (!speed.has_backward(i) || choice.recompute[i + 1] != Parts::all()) continue;
    if (request.device.kind == DeviceKind::kCpu) {
      seconds += 2 * bytes / kFileBytesPerSecond;
      continue;
    }
    const double forward = Speed::kForwardShare * layer,
                 backward = (speed.shares[i] - Speed::kForwardShare) * layer +
                            tokens * speed.recomputing(Parts::all());
    seconds +=
        2 * passes * kCopySeconds + std::max(0.0, copy - forward) + std::max(0.0, copy - backward);
  }
  return seconds;
}

// What layers gave is written once and read in every epoch.
double keeping_seconds(const PlanRequest& request) {
  if (request.graph.kept_layers == 0) return 0;
  const Workload& workload = request.workload;
  const int64_t tokens = mean_step_tokens(workload);
  const Dims step{.tokens = tokens, .sequences = std::min(workload.batch_size, tokens)};
  return double(kept_states(*request.model, request.graph).bytes(step)) *
         (1 + 1 / workload.epochs) / kFileBytesPerSecond;
}

}  // namespace

double Speed::recomputing(const Parts& parts) const {
  double seconds = 0;
  for (size_t i = 0; i < kPartNames.size(); ++i) {
    if (parts.has(kPartNames[i].part)) seconds += again[i];
  }
  // Running the MLP's product again applies the activation too.
  if (parts.has(Part::kMlp) && parts.has(Part::kActivations)) {
    seconds -= again[index_of(Part::kActivations)];
  }
  return seconds;
}

Speed derived_speed(const PlanRequest& request) {
  const Rates& rates = request.device.kind == DeviceKind::kCpu ? kCpu : kGpu;
  const ModelConfig& config = request.model->config();
  const double hidden = double(config.hidden_size), ffn = double(config.intermediate_size),
               value = double(dtype_bytes(request.graph.compute)),
               flops = request.graph.compute == DType::kF32 ? rates.float_flops : rates.half_flops;
  const double seen = double(request.workload.mean_length > 0 ? request.workload.mean_length
                                                              : request.workload.longest);
  // Of a token in forward; backward has twice the products and two and a half times the attention.
  const auto product = [&](double in, double out) { return 2 * in * out / flops; };
  const auto pass = [&](double values) { return values * value / rates.bytes; };
  const double scores = 4 * seen * hidden / flops / (config.family == Family::kGpt2 ? 2 : 1);
  const double products = product(hidden, 4 * hidden) + product(hidden, 2 * ffn);
  const bool trains = request.graph.purpose == Purpose::kTraining;

  Speed speed;
  speed.shares = trains ? layer_shares(*request.model)
                        : std::vector<double>(size_t(request.model->layers()), 1.0);
  speed.last_layer = last_layer_share(*request.model);
  speed.token_layer = (trains ? 3 : 1) * products + (trains ? 3.5 : 1) * scores +
                      pass((trains ? kTraffic : kTrafficForward) * hidden);
  int64_t vocabulary = 0;
  for (const Parameter& p : request.model->parameters()) {
    if (p.is_factor && p.padded_rows > 0) vocabulary = p.rows;
  }
  const int64_t tokens = mean_step_tokens(request.workload);
  const double targets = double(request.workload.dims(tokens).targets) / double(tokens);
  const double head =
      (trains ? 3 : 1) * (product(hidden, double(vocabulary)) + pass(3 * double(vocabulary)));
  speed.token_rest = targets * head + pass(10 * hidden);
  speed.again[index_of(Part::kNorms)] = pass(4 * hidden);
  speed.again[index_of(Part::kActivations)] = pass(2 * ffn);
  speed.again[index_of(Part::kMlp)] = product(hidden, ffn) + pass(hidden + 3 * ffn);
  speed.again[index_of(Part::kAttention)] = product(hidden, 3 * hidden) + scores + pass(9 * hidden);
  speed.again[index_of(Part::kSums)] = product(hidden, hidden) + pass(6 * hidden);
  const double layers = double(config.num_hidden_layers),
               whole = layers * speed.token_layer + speed.token_rest;
  speed.pass_layer = rates.tokens_per_pass * speed.token_layer;
  speed.pass_rest = rates.tokens_per_pass * speed.token_rest;
  speed.chunk = rates.tokens_per_chunk * head;
  double factors = 0, converted = 0;
  for (const Parameter& p : request.model->parameters()) {
    if (!p.trained || !p.is_factor || p.is_vector) continue;
    factors += double(p.size());
    if (!p.splits(request.graph.compute)) converted += double(p.size());
  }
  if (factors > 0) speed.conversion = rates.tokens_per_conversion * whole * converted / factors;
  if (const Model* teacher = trains ? request.model->teacher() : nullptr) {
    PlanRequest forward = request;
    forward.model = teacher;
    forward.graph.purpose = Purpose::kScoring;
    const Speed theirs = derived_speed(forward);
    speed.pass_teacher = teacher->layers() * theirs.pass_layer + theirs.pass_rest;
    speed.token_teacher = teacher->layers() * theirs.token_layer + theirs.token_rest;
  }
  if (trains) {
    speed.update = kUpdateBytes * double(trained_count(request.model->parameters())) / rates.bytes;
  }
  return speed;
}

int64_t mean_step_tokens(const Workload& workload) {
  const int64_t mean = workload.batch_size * workload.mean_length;
  return std::max<int64_t>(
      1, workload.mean_length > 0 ? std::min(mean, workload.step_tokens) : workload.step_tokens);
}

double step_seconds(const PlanRequest& request, const Speed& speed, const PlanChoice& choice,
                    int64_t capacity) {
  const Workload& workload = request.workload;
  const double kept = std::accumulate(speed.shares.begin(),
                                      speed.shares.begin() + request.graph.kept_layers, 0.0),
               layers = std::accumulate(speed.shares.begin(), speed.shares.end(), 0.0) -
                        kept * (1 - 1 / workload.epochs) -
                        speed.shares.back() * (1 - speed.last_layer),
               tokens = double(mean_step_tokens(workload)),
               passes = micro_batches(workload, capacity);
  double seconds = speed.update +
                   passes * (layers * speed.pass_layer + speed.pass_rest + speed.pass_teacher) +
                   tokens * (layers * speed.token_layer + speed.token_rest + speed.token_teacher);
  for (size_t i = 0; i < speed.shares.size() && i + 1 < choice.recompute.size(); ++i) {
    const double share = i + 1 < speed.shares.size() ? 1.0 : speed.last_layer;
    if (speed.has_backward(i)) {
      seconds += share * tokens * speed.recomputing(choice.recompute[i + 1]);
    }
  }
  // Looking embeddings up again is a pass like a norm's.
  if (!choice.recompute.empty() && !choice.recompute[0].none()) seconds += tokens * speed.again[0];
  if (choice.head_chunk > 0) {
    const int64_t targets =
        std::max<int64_t>(1, int64_t(double(workload.dims(int64_t(tokens)).targets) / passes));
    seconds += passes * speed.chunk * double((targets + choice.head_chunk - 1) / choice.head_chunk);
  }
  if (choice.converts_weights) seconds += passes * speed.conversion;
  return seconds + offload_seconds(request, choice.offload, capacity, passes) +
         stowing_seconds(request, speed, choice, tokens, passes) + keeping_seconds(request);
}

}  // namespace snug
