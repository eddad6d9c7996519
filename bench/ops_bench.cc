// Operators at BERT-base's shapes: 1,024 tokens as 8 x 128 and 768 tokens as 32 x 24, dropout on,
// forward and backward. GFLOP/s for what multiplies matrices, GB/s of tensor traffic for what moves
// memory.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/products.h"
#include "ops/quantize.h"
#include "ops/quantized_products.h"
#include "ops/residual_norm.h"
#include "optim/adamw.h"

namespace snug {
namespace {

constexpr int64_t kHidden = 768, kFfn = 3072, kHeads = 12, kVocab = 30522;

// Sequences of one length, and values on the heap; backward nodes are recorded so that they can be
// timed.
class Bench : public GradientWriter {
 public:
  Bench(int64_t sequences, int64_t length) {
    const int64_t tokens = sequences * length;
    for (int64_t t = 0; t < tokens; ++t) {
      ids_.push_back(int32_t(t * 7919 % kVocab)), positions_.push_back(int32_t(t % length));
      types_.push_back(int32_t(t % 2)), row_of_.push_back(int32_t(t / length));
    }
    for (int64_t s = 0; s <= sequences; ++s) {
      starts_.push_back(int32_t(s * length)), samples_.push_back(uint64_t(s));
    }
    batch_ = {.dims = {tokens, sequences, length},
              .ids = ids_.data(),
              .positions = positions_.data(),
              .type_ids = types_.data(),
              .row_of = row_of_.data(),
              .starts = starts_.data(),
              .labels = nullptr,
              .samples = samples_.data()};
  }
  int64_t tokens() const { return batch_.dims.tokens; }

  ValueId value(int64_t rows, int64_t cols) {
    values_.push_back({std::vector<float>(size_t(rows * cols)), rows, cols});
    const ValueId id = ValueId(values_.size() - 1);
    refill(id);
    return id;
  }
  void refill(ValueId id) {
    std::minstd_rand random{unsigned(id)};
    for (float& v : values_[size_t(id)].data) v = float(random() % 2001) / 1000.0f - 1.0f;
  }
  Node node(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
    return {std::move(op), std::move(inputs), std::move(outputs)};
  }
  std::vector<Node> backward_nodes(const Node& forward) {
    backward_.clear();
    forward.op->backward(forward, *this);
    return backward_;
  }
  void run(const Node& node) {
    std::vector<Tensor> in, out;
    for (ValueId v : node.inputs) in.push_back(tensor(v));
    for (ValueId v : node.outputs) out.push_back(tensor(v));
    const size_t bytes = node.op->workspace_bytes(
        {.dims = batch_.dims, .device = {.threads = omp_get_max_threads()}, .in = {}, .out = {}});
    workspace_.resize(std::max(workspace_.size(), bytes));
    node.op->run({in, out, workspace_, &batch_, &step_});
  }

  ValueId gradient_of(ValueId y) override { return gradient(y); }
  Target gradient_for(ValueId x) override { return {gradient(x), tensor(x).rows != tokens()}; }
  ValueId saved(ValueId v) override { return v; }
  void emit(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) override {
    backward_.push_back({std::move(op), std::move(inputs), std::move(outputs)});
  }

 private:
  struct Held {
    std::vector<float> data;
    int64_t rows, cols;
  };
  Tensor tensor(ValueId v) {
    if (v == kNoValue) return {};
    Held& held = values_[size_t(v)];
    return {held.data.data(), DType::kF32, held.rows, held.cols};
  }
  ValueId gradient(ValueId v) {
    if (!gradients_.count(v)) {
      gradients_[v] = value(values_[size_t(v)].rows, values_[size_t(v)].cols);
    }
    return gradients_[v];
  }

  std::vector<int32_t> ids_, positions_, types_, row_of_, starts_;
  std::vector<uint64_t> samples_;
  Batch batch_;
  StepContext step_ = {.seed = 42, .training = true};
  std::vector<Held> values_;
  std::map<ValueId, ValueId> gradients_;
  std::vector<Node> backward_;
  std::vector<std::byte> workspace_;
};

enum class Direction { kForward, kBackward };

void time_node(benchmark::State& state, Bench& bench, const Node& node, Direction direction) {
  bench.run(node);
  const std::vector<Node> nodes =
      direction == Direction::kForward ? std::vector{node} : bench.backward_nodes(node);
  for (auto _ : state) {
    for (const Node& n : nodes) bench.run(n);
  }
}

void count_flops(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
void count_bytes(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void linear_case(benchmark::State& state, Direction direction, Activation activation) {
  Bench bench(state.range(0), state.range(1));
  const int64_t in = state.range(2), out = state.range(3), tokens = bench.tokens();
  Node node = bench.node(linear({activation}),
                         {bench.value(tokens, in), bench.value(out, in), bench.value(1, out)},
                         {bench.value(tokens, out)});
  if (keeps_pre_activation(activation)) node.outputs.push_back(bench.value(tokens, out));
  time_node(state, bench, node, direction);
  count_flops(state, 2.0 * double(tokens) * double(in) * double(out) *
                         (direction == Direction::kForward ? 1 : 2));
}

// With int8 weights; backward is that of fp32 weights.
void quantized_linear_case(benchmark::State& state, Activation activation) {
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const auto values = [](int64_t count) {
    std::minstd_rand random{7};
    std::vector<float> floats(static_cast<size_t>(count));
    for (float& v : floats) v = float(random() % 2001) / 1000.0f - 1.0f;
    return floats;
  };
  const std::vector<float> x = values(rows * in), w = values(out * in), b = values(out);
  std::vector<float> y(size_t(rows * out)), scales(b.size());
  std::vector<int8_t> quantized(w.size());
  quantize_rows(w.data(), out, in, quantized.data(), scales.data());
  std::vector<std::byte> workspace(quantized_product_workspace(in, omp_get_max_threads()));
  for (auto _ : state) {
    quantized_product_nt({rows, in, out}, x.data(), {quantized.data(), scales.data()},
                         {.bias = b.data(), .activation = activation, .y = y.data()}, workspace);
  }
  count_flops(state, 2.0 * double(rows) * double(in) * double(out));
}

// What linear adds to its products: the bias and GELU pass forward, the in-place gradient and bias
// sums backward.
void epilogue_case(benchmark::State& state, Direction direction) {
  Bench bench(state.range(0), state.range(1));
  const int64_t tokens = bench.tokens();
  Node node = bench.node(linear({Activation::kGelu}),
                         {bench.value(tokens, 1), bench.value(kFfn, 1), bench.value(1, kFfn)},
                         {bench.value(tokens, kFfn), bench.value(tokens, kFfn)});
  bench.run(node);
  if (direction == Direction::kBackward) node = bench.backward_nodes(node)[0];
  for (auto _ : state) {
    state.PauseTiming();  // backward works in place: again and again, the gradient would decay into
                          // slow denormals
    bench.refill(node.inputs[0]);
    state.ResumeTiming();
    bench.run(node);
  }
  count_bytes(state, 12.0 * double(tokens * kFfn));
}

void attention_case(benchmark::State& state, Direction direction) {
  Bench bench(state.range(0), state.range(1));
  const int64_t tokens = bench.tokens(), dim = state.range(2), heads = kHidden / dim;
  const Node node =
      bench.node(attention({.heads = heads, .head_dim = dim, .dropout = 0.1f, .site = 1}),
                 {bench.value(tokens, 3 * kHidden)},
                 {bench.value(tokens, kHidden), bench.value(tokens, heads)});
  time_node(state, bench, node, direction);
  count_flops(state, double(tokens * state.range(1) * kHidden) *
                         (direction == Direction::kForward ? 4 : 10));
}

void residual_norm_case(benchmark::State& state, Direction direction) {
  Bench bench(state.range(0), state.range(1));
  const int64_t tokens = bench.tokens();
  const Node node = bench.node(
      residual_norm({.hidden = kHidden, .dropout = 0.1f, .site = 1}),
      {bench.value(tokens, kHidden), bench.value(tokens, kHidden), bench.value(1, kHidden),
       bench.value(1, kHidden)},
      {bench.value(tokens, kHidden), bench.value(tokens, kHidden), bench.value(tokens, 2)});
  time_node(state, bench, node, direction);
  count_bytes(state, 4.0 * double(tokens * kHidden) * (direction == Direction::kForward ? 4 : 6));
}

void embedding_case(benchmark::State& state, Direction direction) {
  Bench bench(state.range(0), state.range(1));
  const int64_t tokens = bench.tokens();
  const Node node =
      bench.node(embedding({.hidden = kHidden, .dropout = 0.1f, .site = 1}),
                 {bench.value(kVocab, kHidden), bench.value(512, kHidden), bench.value(2, kHidden),
                  bench.value(1, kHidden), bench.value(1, kHidden)},
                 {bench.value(tokens, kHidden), bench.value(tokens, 2)});
  time_node(state, bench, node, direction);
  count_bytes(state, 4.0 * double(tokens * kHidden) * (direction == Direction::kForward ? 2 : 6));
}

void adamw_case(benchmark::State& state) {
  const size_t n = size_t(state.range(0));
  std::vector<float> w(n, 1.0f), g(n, 0.5f), m(n), v(n);
  for (auto _ : state) adamw(w, g, m, v, {.weight_decay = 0.01, .step = 3});
  count_bytes(state, 28.0 * double(n));
}

void sum_of_squares_case(benchmark::State& state) {
  const std::vector<float> g(size_t(state.range(0)), 0.5f);
  for (auto _ : state) benchmark::DoNotOptimize(sum_of_squares(g));
  count_bytes(state, 4.0 * double(g.size()));
}

void both_directions(const std::string& name, void (*body)(benchmark::State&, Direction),
                     const std::vector<std::vector<int64_t>>& cases) {
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    const std::string full = name + (direction == Direction::kForward ? "/forward" : "/backward");
    auto* const registered = benchmark::RegisterBenchmark(full.c_str(), body, direction);
    registered->UseRealTime()->Unit(benchmark::kMillisecond);
    for (const auto& arguments : cases) registered->Args(arguments);
  }
}

void register_all() {
  const std::vector<std::vector<int64_t>> batches = {{8, 128}, {32, 24}};
  both_directions("linear_none",
                  [](benchmark::State& s, Direction d) { linear_case(s, d, Activation::kNone); },
                  {{8, 128, kHidden, 3 * kHidden},
                   {8, 128, kHidden, kHidden},
                   {8, 128, kFfn, kHidden},
                   {32, 24, kHidden, 3 * kHidden}});
  both_directions("linear_gelu",
                  [](benchmark::State& s, Direction d) { linear_case(s, d, Activation::kGelu); },
                  {{8, 128, kHidden, kFfn}, {32, 24, kHidden, kFfn}});
  const auto register_quantized = [](const char* name, Activation activation,
                                     const std::vector<std::vector<int64_t>>& cases) {
    auto* const registered = benchmark::RegisterBenchmark(name, quantized_linear_case, activation);
    registered->UseRealTime()->Unit(benchmark::kMillisecond);
    for (const auto& arguments : cases) registered->Args(arguments);
  };
  register_quantized("quantized_linear_none", Activation::kNone,
                     {{1024, kHidden, 3 * kHidden},
                      {1024, kHidden, kHidden},
                      {1024, kFfn, kHidden},
                      {1, kHidden, 3 * kHidden}});
  register_quantized("quantized_linear_gelu", Activation::kGelu,
                     {{1024, kHidden, kFfn}, {768, kHidden, kFfn}});
  both_directions("linear_epilogue_gelu", epilogue_case, batches);
  both_directions(
      "attention", attention_case,
      {{8, 128, 64}, {32, 24, 64}, {2, 512, 64}, {8, 128, 32}, {32, 24, 32}, {2, 512, 32}});
  both_directions("residual_norm", residual_norm_case, batches);
  both_directions("embedding", embedding_case, batches);
  benchmark::RegisterBenchmark("adamw", adamw_case)
      ->Arg(23440896)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("sum_of_squares", sum_of_squares_case)
      ->Arg(23440896)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  snug::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
