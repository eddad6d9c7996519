#include "model/transformer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "graph/backward.h"
#include "model/adapter.h"
#include "ops/activation_traffic.h"
#include "ops/attention.h"
#include "ops/binary_cross_entropy.h"
#include "ops/cached_attention.h"
#include "ops/convert.h"
#include "ops/cross_entropy.h"
#include "ops/dequantize.h"
#include "ops/dropout.h"
#include "ops/end_attention.h"
#include "ops/end_token.h"
#include "ops/fusion.h"
#include "ops/gradient_traffic.h"
#include "ops/mean_pool.h"
#include "ops/quantized_linear.h"
#include "ops/residual_norm.h"
#include "ops/span_loss.h"
#include "ops/squared_error.h"
#include "ops/target_rows.h"
#include "ops/vocabulary_loss.h"

namespace snug {
namespace {

// Options that the head has no use for.
void check_use(const LossOptions& loss, const ModelConfig& config, Head head) {
  const bool one_label = head == Head::kClassifier && config.problem_type() == Problem::kOneLabel;
  if (loss.label_smoothing != 0 && !one_label && head != Head::kTagger) {
    fail(ErrorKind::kUsage,
         "--label-smoothing-factor is for tasks in which each text or token has one class");
  }
  if (loss.weighted && !one_label && head != Head::kTagger) {
    fail(ErrorKind::kUsage,
         "class weights are for tasks in which each text or token has one class");
  }
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, Head head, const Tuning& tuning,
                         WeightNames names)
    : config_(config), head_(head), tuning_(tuning) {
  weight_names_ = std::move(names);
}

void Transformer::begin(Stage stage, int layer) {
  stage_ = stage;
  layer_ = layer;
}

int Transformer::add(Parameter parameter) {
  parameter.stage = stage_;
  parameter.layer = layer_;
  if (tuning_.lora.rank > 0) parameter.trained = parameter.is_head || parameter.is_adapter;
  parameters_.push_back(std::move(parameter));
  return int(parameters_.size()) - 1;
}

int64_t Transformer::largest_product_side() const {
  int64_t most = is_language_model() ? config_.vocab_size : config_.num_labels();
  for (const int64_t side :
       {3 * config_.hidden_size, config_.intermediate_size, int64_t(tuning_.lora.rank)}) {
    most = std::max(most, side);
  }
  return most;
}

int Transformer::add_table(const std::string& name, int64_t rows) {
  return add({.name = name,
              .rows = rows,
              .cols = config_.hidden_size,
              .is_table = true,
              .parts = {{weight_names_.prefix + name, rows}}});
}

int Transformer::add_words(const std::string& name, bool is_factor) {
  const int64_t rows = config_.vocab_size;
  return add({.name = name,
              .rows = rows,
              .cols = config_.hidden_size,
              .is_factor = is_factor,
              .is_table = true,
              .padded_rows = is_factor ? padded_vocabulary(rows) : 0,
              .quantizable = true,
              .parts = {{weight_names_.prefix + name, rows}}});
}

int Transformer::add_vector(const std::string& name, int64_t size, Init init, bool is_factor,
                            bool is_head) {
  return add({.name = name,
              .cols = size,
              .is_vector = true,
              .init = init,
              .decays = false,
              .is_factor = is_factor,
              .is_head = is_head,
              .parts = {{(is_head ? "" : weight_names_.prefix) + name, size}}});
}

LinearSlots Transformer::add_linear(const std::string& name, const LinearShape& shape) {
  return add_joined_linear(name, {name}, shape);
}

LinearSlots Transformer::add_joined_linear(const std::string& name,
                                           const std::vector<std::string>& parts,
                                           const LinearShape& each) {
  const bool out_in = each.layout == WeightLayout::kOutIn;
  SNUG_CHECK(out_in || parts.size() == 1);
  const auto count = int64_t(parts.size());
  const std::string prefix = each.is_head ? "" : weight_names_.prefix;
  Parameter weight{.name = name + ".weight",
                   .rows = out_in ? count * each.out : each.in,
                   .cols = out_in ? each.in : each.out,
                   .init_scale = each.init_scale,
                   .is_factor = true,
                   .is_head = each.is_head,
                   .is_in_out = !out_in,
                   .quantizable = !each.is_head,
                   .parts = {}};
  Parameter bias{.name = name + ".bias",
                 .cols = count * each.out,
                 .is_vector = true,
                 .init = Init::kZeros,
                 .decays = false,
                 .is_factor = true,
                 .is_head = each.is_head,
                 .parts = {}};
  for (const std::string& part : parts) {
    weight.parts.push_back({prefix + part + ".weight", out_in ? each.out : each.in});
    bias.parts.push_back({prefix + part + ".bias", each.out});
  }
  LinearSlots slots{.layout = each.layout};
  slots.weight = add(std::move(weight));
  if (each.has_bias) slots.bias = add(std::move(bias));
  if (tuning_.lora.rank == 0 || each.is_head) return slots;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string last = parts[i].substr(parts[i].rfind('.') + 1);
    linear_names_.insert(last);
    const auto wanted = [&](const std::string& target) {
      return target == "all-linear" || parts[i] == target || parts[i].ends_with("." + target);
    };
    for (const std::string& target : tuning_.lora.targets) {
      if (!wanted(target)) continue;
      adapted_names_.insert(target);
      slots.adapters.push_back(
          add_adapter(prefix + parts[i], each.in, each.out, int64_t(i) * each.out));
      break;
    }
  }
  return slots;
}

LinearSlots Transformer::add_token_head() {
  const bool tagger = head_ == Head::kTagger;
  return add_linear(tagger ? "classifier" : "qa_outputs",
                    {.out = tagger ? config_.num_labels() : kSpanEnds,
                     .in = config_.hidden_size,
                     .is_head = true});
}

// PEFT's: the down-projection begins as PyTorch's Linear does, the up-projection at zero.
AdapterSlots Transformer::add_adapter(const std::string& module, int64_t in, int64_t out,
                                      int64_t first_column) {
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, Init init) {
    return add({.name = name,
                .rows = rows,
                .cols = cols,
                .init = init,
                .is_factor = true,
                .is_adapter = true,
                .parts = {{std::string(kAdapterPrefix) + name, rows}}});
  };
  const int64_t rank = tuning_.lora.rank;
  const int down = matrix(module + ".lora_A.weight", rank, in, Init::kUniform);
  return {down, matrix(module + ".lora_B.weight", out, rank, Init::kZeros), first_column};
}

void Transformer::finish_table() {
  for (const std::string& target :
       tuning_.lora.rank > 0 ? tuning_.lora.targets : std::vector<std::string>()) {
    if (adapted_names_.contains(target)) continue;
    throw Error(ErrorKind::kUsage,
                fmt::format("--lora-target-modules {}: the model has no such layer", target),
                fmt::format("there are {}, and all-linear", fmt::join(linear_names_, ", ")));
  }
  freeze(parameters_, tuning_.freeze);
  choose_quantized(parameters_, config_, tuning_);
}

NormSlots Transformer::add_norm(const std::string& name, bool is_head) {
  const int gamma = add_vector(name + ".weight", config_.hidden_size, Init::kOnes, false, is_head);
  return {gamma, add_vector(name + ".bias", config_.hidden_size, Init::kZeros, false, is_head)};
}

Activation activation_of(HiddenAct act) {
  switch (act) {
    case HiddenAct::kGelu:
      return Activation::kGelu;
    case HiddenAct::kGeluTanh:
      return Activation::kGeluTanh;
    case HiddenAct::kRelu:
      return Activation::kRelu;
  }
  return Activation::kGelu;
}

StepGraph Transformer::build(const GraphOptions& options) const {
  Graph graph;
  GraphWriter writer(*this, options, graph);
  return complete(writer);
}

StepGraph Transformer::complete(GraphWriter& writer) const {
  check_use(writer.options().loss, config_, head_);
  const Forward end = forward(writer);
  if (writer.options().purpose == Purpose::kEmbedding) return writer.embedding(end.x);
  if (writer.is_prefix()) return writer.prefix(end.x);
  return is_language_model() ? writer.language(end) : writer.scores(end.x);
}

GraphWriter::GraphWriter(const Transformer& model, const GraphOptions& options, Graph& graph,
                         Place place)
    : model_(model),
      options_(options),
      training_(options.purpose == Purpose::kTraining),
      graph_(graph),
      place_(std::move(place)),
      first_segment_(graph.segments().size()) {}

// Segments have the same numbers as in a graph of all layers, which is what the choice of
// recomputation counts by.
ValueId GraphWriter::given_states() {
  begin_segment("embeddings");
  for (int i = 0; i < first_layer(); ++i) begin_segment(fmt::format("layer.{}", i));
  given_ = graph_.add_value(place_.prefix + "kept", kept_states(model_, options_));
  graph_.give(given_);
  return given_;
}

ValueId GraphWriter::add_parameter(int slot, const TensorDesc& desc) {
  const Parameter& p = model_.parameters()[size_t(slot)];
  return graph_.add_parameter(place_.prefix + p.name, desc, place_.first_slot + slot,
                              training_ && p.trained);
}

ValueId GraphWriter::parameter(int slot) {
  const Parameter& p = model_.parameters()[size_t(slot)];
  const auto [found, fresh] = parameters_.try_emplace({slot, DType::kF32}, kNoValue);
  if (fresh) found->second = add_parameter(slot, {.rows = p.rows, .cols = p.cols});
  return found->second;
}

GraphWriter::Matrix GraphWriter::quantized(int slot) {
  const Parameter& p = model_.parameters()[size_t(slot)];
  const auto [found, fresh] = quantized_.try_emplace(slot);
  if (fresh) {
    const int64_t channels =
        options_.compute == DType::kF32 && !p.is_in_out ? p.rows : p.channels();
    found->second.values =
        add_parameter(slot, {.dtype = DType::kI8, .rows = channels, .cols = p.inputs()});
    found->second.scales = graph_.add_scales(place_.prefix + p.name + ".scales", {.cols = channels},
                                             place_.first_slot + slot);
  }
  return found->second;
}

GraphWriter::Matrix GraphWriter::words(int slot) {
  return model_.parameters()[size_t(slot)].quantized ? quantized(slot) : Matrix{parameter(slot)};
}

ValueId GraphWriter::dequantized(int slot) {
  const auto [found, fresh] = converted_.try_emplace({slot, graph_.segments().size()}, kNoValue);
  if (fresh) {
    const auto [matrix, scales] = quantized(slot);
    TensorDesc desc = graph_.value(matrix).desc;
    desc.dtype = options_.compute;
    found->second = graph_.add_value(graph_.value(matrix).name + " (dequantized)", desc);
    graph_.add_node(dequantize(), {matrix, scales}, {found->second});
  }
  return found->second;
}

ValueId GraphWriter::factor(int slot) {
  const Parameter& p = model_.parameters()[size_t(slot)];
  if (p.quantized) return dequantized(slot);
  const TensorDesc desc{.dtype = options_.compute, .rows = p.occupied_rows(), .cols = p.cols};
  const DType stored = stored_type(p);
  if (stored != options_.compute) {
    const auto [found, fresh] = converted_.try_emplace({slot, graph_.segments().size()}, kNoValue);
    if (fresh) {
      const ValueId exact =
          add_parameter(slot, {.dtype = stored, .rows = desc.rows, .cols = p.cols});
      found->second = graph_.add_copy(p.name + " (converted)", desc, exact);
      graph_.add_node(convert(), {exact}, {found->second});
    }
    return found->second;
  }
  if (options_.compute == DType::kF32) return parameter(slot);
  const auto [found, fresh] = parameters_.try_emplace({slot, options_.compute}, kNoValue);
  if (fresh) found->second = add_parameter(slot, desc);
  return found->second;
}

DType GraphWriter::stored_type(const Parameter& p) const {
  if (options_.bf16_weights && p.trained && p.is_matrix()) return DType::kBF16;
  const bool converts = options_.converts_weights && p.trained && !p.is_vector;
  return converts && !p.splits(options_.compute) ? DType::kF32 : options_.compute;
}

ValueId GraphWriter::linear(const std::string& name, const LinearSlots& slots,
                            Activation activation, ValueId x) {
  const Rows rows = graph_.value(x).desc.rows_are;
  const ValueId b = slots.bias < 0 ? kNoValue : factor(slots.bias);
  const bool is_quantized = model_.parameters()[size_t(slots.weight)].quantized;
  const Matrix w = is_quantized ? quantized(slots.weight) : Matrix{factor(slots.weight)};
  const TensorDesc weight = graph_.value(w.values).desc;
  const int64_t out =
      is_quantized || slots.layout == WeightLayout::kOutIn ? weight.rows : weight.cols;
  const ValueId y = value(name, rows, out);
  std::vector<ValueId> inputs = {x, w.values}, outputs = {y};
  if (is_quantized) inputs.push_back(w.scales);
  inputs.push_back(b);
  if (keeps_pre_activation(activation)) outputs.push_back(saved(name + ".pre", rows, out));
  Adapters adapters;
  for (const AdapterSlots& adapter : slots.adapters) {
    adapters.first_columns.push_back(adapter.first_column);
    adapters.scale = float(model_.tuning().lora.scale());
    inputs.push_back(adapter_input(adapter, x));
    inputs.push_back(factor(adapter.up));
  }
  const OpPtr op =
      is_quantized
          ? quantized_linear({.activation = activation, .adapters = adapters})
          : snug::linear({.activation = activation, .layout = slots.layout, .adapters = adapters});
  graph_.add_node(op, std::move(inputs), std::move(outputs));
  return y;
}

// What an adapter's up-projection is applied to.
ValueId GraphWriter::adapter_input(const AdapterSlots& slots, ValueId x) {
  const LoraSpec& lora = model_.tuning().lora;
  const std::string& name = model_.parameters()[size_t(slots.down)].name;
  const TensorDesc desc = graph_.value(x).desc;
  ValueId dropped = x;
  if (training_ && lora.dropout > 0) {
    dropped = value(name + ".dropped", desc.rows_are, desc.cols);
    graph_.add_node(
        snug::dropout(
            {.p = float(lora.dropout), .site = adapter_site(slots.down), .rows = desc.rows_are}),
        {x}, {dropped});
  }
  const ValueId u = value(name + ".out", desc.rows_are, lora.rank);
  graph_.add_node(snug::linear({}), {dropped, factor(slots.down), kNoValue}, {u});
  return u;
}

GraphWriter::Normed GraphWriter::residual_norm(const std::string& name, const NormSlots& slots,
                                               const DropoutPlace& dropped, ValueId x,
                                               ValueId residual, bool sum_goes_on) {
  const int64_t hidden = config().hidden_size;
  const Rows rows = graph_.value(x).desc.rows_are;
  const ValueId y = value(name, rows, hidden);
  const ValueId sum =
      sum_goes_on ? value(name + ".sum", rows, hidden) : saved(name + ".sum", rows, hidden);
  graph_.add_node(snug::residual_norm({.hidden = hidden,
                                       .eps = float(config().layer_norm_eps),
                                       .dropout = float(dropped.rate),
                                       .site = dropped.site,
                                       .rows = rows}),
                  {x, residual, parameter(slots.gamma), parameter(slots.beta)},
                  {y, sum, statistics(name + ".stats", rows, 2)});
  return {y, sum};
}

ValueId GraphWriter::layer_norm(const std::string& name, const NormSlots& slots, ValueId x) {
  const Rows rows = graph_.value(x).desc.rows_are;
  const ValueId y = value(name, rows, config().hidden_size);
  graph_.add_node(
      snug::layer_norm({.hidden = config().hidden_size, .eps = float(config().layer_norm_eps)}),
      {x, parameter(slots.gamma), parameter(slots.beta)},
      {y, statistics(name + ".stats", rows, 2)});
  return y;
}

ValueId GraphWriter::attention(const std::string& name, uint32_t site, ValueId qkv, bool causal) {
  const int64_t hidden = config().hidden_size, heads = config().num_attention_heads;
  const ValueId context = tokens(name + ".context", hidden);
  if (options_.purpose == Purpose::kGeneration) {
    const ValueId cache = value(name + ".cache", Rows::kCache, 2 * hidden);
    graph_.hold(cache);
    graph_.add_node(
        cached_attention({.heads = heads, .head_dim = hidden / heads, .context = options_.context}),
        {qkv}, {context, cache});
    return context;
  }
  graph_.add_node(snug::attention({.heads = heads,
                                   .head_dim = hidden / heads,
                                   .dropout = float(config().attention_dropout),
                                   .site = site,
                                   .causal = causal}),
                  {qkv}, {context, statistics(name + ".lse", Rows::kTokens, heads)});
  return context;
}

bool GraphWriter::sees_one_row(int layer) const {
  return model_.head() == Head::kClassifier && layer + 1 == model_.layers() &&
         options_.purpose != Purpose::kEmbedding;
}

GraphWriter::EndRows GraphWriter::end_rows(const std::string& name, uint32_t site,
                                           const LinearSlots& qkv, End end, ValueId residual,
                                           ValueId x) {
  const int64_t hidden = config().hidden_size, heads = config().num_attention_heads;
  const bool is_plain = end == End::kFirst && residual == x && qkv.layout == WeightLayout::kOutIn &&
                        qkv.adapters.empty() && !model_.parameters()[size_t(qkv.weight)].quantized;
  const ValueId ends = end_token(name + ".ends", end, residual);
  if (!is_plain) {
    const ValueId context = attention(name, site, linear(name + ".qkv", qkv, Activation::kNone, x),
                                      /*causal=*/end == End::kLast);
    return {ends, end_token(name + ".context.ends", end, context)};
  }
  const ValueId context = value(name + ".context", Rows::kSequences, hidden);
  const auto kept = [&](const char* what, Rows rows, int64_t cols) {
    return graph_.add_value(place_.prefix + name + what, {.rows_are = rows, .cols = cols});
  };
  graph_.add_node(
      end_attention({.heads = heads,
                     .head_dim = hidden / heads,
                     .dropout = float(config().attention_dropout),
                     .site = site}),
      {x, ends, factor(qkv.weight), factor(qkv.bias)},
      {context, value(name + ".queries", Rows::kSequences, hidden),
       kept(".probabilities", Rows::kTokens, heads),
       kept(".means", Rows::kSequences, heads * hidden), kept(".kept", Rows::kSequences, heads)});
  return {ends, context};
}

ValueId GraphWriter::pool(ValueId x) {
  if (options_.pooling == Pooling::kFirstToken) return end_token("first", End::kFirst, x);
  const ValueId pooled = value("pooled", Rows::kSequences, config().hidden_size);
  graph_.add_node(mean_pool(), {x}, {pooled});
  return pooled;
}

ValueId GraphWriter::end_token(const std::string& name, End end, ValueId x) {
  if (graph_.value(x).desc.rows_are == Rows::kSequences) return x;
  const ValueId y = value(name, Rows::kSequences, config().hidden_size);
  graph_.add_node(snug::end_token(end), {x}, {y});
  return y;
}

ValueId GraphWriter::dropout(const std::string& name, double rate, uint32_t site, ValueId x) {
  const TensorDesc desc = graph_.value(x).desc;
  const ValueId y = value(name, desc.rows_are, desc.cols);
  graph_.add_node(snug::dropout({.p = float(rate), .site = site, .rows = desc.rows_are}), {x}, {y});
  return y;
}

ValueId GraphWriter::target_rows(ValueId x) {
  const ValueId y = value("targets", Rows::kTargets, graph_.value(x).desc.cols);
  graph_.add_node(snug::target_rows(), {x}, {y});
  return y;
}

ValueId GraphWriter::token_logits(const LinearSlots& slots, double dropout_rate, uint32_t site,
                                  ValueId x) {
  if (model_.head() == Head::kTagger) x = target_rows(x);
  if (model_.head() == Head::kTagger || dropout_rate > 0) {
    x = dropout("dropped", dropout_rate, site, x);
  }
  return linear("logits", slots, Activation::kNone, x);
}

StepGraph GraphWriter::embedding(ValueId x) { return finish(kNoValue, pool(x)); }

OpPtr GraphWriter::loss_of(int64_t outputs) const {
  if (model_.head() == Head::kSpans) return span_loss();
  if (model_.head() == Head::kClassifier) {
    switch (config().problem_type()) {
      case Problem::kOneLabel:
        break;
      case Problem::kManyLabels:
        return binary_cross_entropy({.classes = outputs});
      case Problem::kNumbers:
        return squared_error({.numbers = outputs});
    }
  }
  CrossEntropySpec spec{.classes = outputs,
                        .smoothing = options_.loss.label_smoothing,
                        .weighted = options_.loss.weighted};
  if (model_.head() == Head::kTagger) spec.rows = Rows::kTargets;
  if (teaching_) spec.distillation = teaching_->distillation;
  return cross_entropy(spec);
}

StepGraph GraphWriter::scores(ValueId logits) {
  const TensorDesc desc = graph_.value(logits).desc;
  const ValueId loss = graph_.add_scalar("loss", DType::kF64);
  ValueId gradient = kNoValue;
  if (training_) {
    gradient = value("d(logits)", desc.rows_are, desc.cols);
    graph_.seed_gradient(logits, gradient);
  }
  std::vector<ValueId> inputs = {logits};
  if (teaching_) inputs.push_back(teaching_->forward.x);
  graph_.add_node(loss_of(desc.cols), std::move(inputs), {loss, gradient});
  return finish(loss, logits);
}

StepGraph GraphWriter::language(const Forward& forward) {
  const auto [x, weight, bias] = forward;
  const int64_t vocabulary = config().vocab_size;
  if (options_.purpose == Purpose::kLogits || options_.purpose == Purpose::kGeneration) {
    const ValueId logits = linear("logits", {.weight = weight, .bias = bias}, Activation::kNone, x);
    if (options_.purpose == Purpose::kLogits) return finish(kNoValue, logits);
    const ValueId next = graph_.add_value("next", {.rows_are = Rows::kTargets, .cols = 2});
    std::vector<ValueId> outputs = {next};
    if (options_.sample.repetition_penalty != 1.0f) {
      outputs.push_back(graph_.add_value(
          "seen", {.dtype = DType::kU8, .rows_are = Rows::kSequences, .cols = vocabulary}));
      graph_.hold(outputs.back());
    }
    SampleSpec spec = options_.sample;
    spec.vocabulary = vocabulary;
    graph_.add_node(sample(spec), {logits}, std::move(outputs));
    return finish(kNoValue, next);
  }
  const ValueId loss = graph_.add_scalar("loss", DType::kF64);
  VocabularyLossSpec spec{
      .chunk = options_.head_chunk, .vocabulary = vocabulary, .with_gradient = training_};
  std::vector<ValueId> inputs = {x, factor(weight), bias < 0 ? kNoValue : factor(bias)};
  if (teaching_) {
    spec.distillation = teaching_->distillation;
    const auto& [taught, taught_weight, taught_bias] = teaching_->forward;
    GraphWriter& teacher = *teaching_->writer;
    inputs.insert(inputs.end(), {taught, teacher.factor(taught_weight),
                                 taught_bias < 0 ? kNoValue : teacher.factor(taught_bias)});
  }
  graph_.add_node(vocabulary_loss(spec), std::move(inputs), {loss});
  return finish(loss, kNoValue);
}

StepGraph GraphWriter::finish(ValueId loss, ValueId result) {
  if (result != kNoValue) graph_.keep(result);
  if (training_) {
    Recomputation recompute(first_segment_);
    recompute.insert(recompute.end(), options_.recompute.begin(), options_.recompute.end());
    append_backward(graph_, recompute);
    fuse_bias_gradients(graph_);
    fuse_activation_gradients(graph_);
    keep_slopes(graph_);
    if (options_.activations_outside) move_activations_outside(graph_, recompute);
    if (options_.gradients_outside) {
      move_gradients_outside(graph_, [&](int slot) {
        return options_.only_pass &&
               model_.parameters()[size_t(slot)].rounds_gradient(options_.compute);
      });
    }
  }
  return {std::move(graph_), given_, loss, result};
}

// PEFT's choice.
static std::vector<std::string> default_targets(Family family) {
  switch (family) {
    case Family::kGpt2:
      return {"c_attn"};
    case Family::kDistilBert:
      return {"q_lin", "v_lin"};
    case Family::kBert:
    case Family::kRoberta:
      return {"query", "value"};
  }
  return {};
}

std::unique_ptr<Transformer> make_transformer(const ModelConfig& config, Head head,
                                              const Tuning& asked) {
  Tuning tuning = asked;
  if (tuning.lora.targets.empty()) tuning.lora.targets = default_targets(config.family);
  return config.family == Family::kGpt2 ? make_gpt2(config, head, tuning)
                                        : make_encoder(config, head, tuning);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Head head, const Tuning& tuning) {
  return make_transformer(config, head, tuning);
}

int frozen_layers(const Model& model) {
  int layers = model.layers();
  for (const Parameter& p : model.parameters()) {
    if (p.trained && p.stage == Stage::kEmbeddings) return 0;
    if (p.trained && p.stage == Stage::kLayer) layers = std::min(layers, p.layer);
  }
  return layers;
}

TensorDesc kept_states(const Model& model, const GraphOptions& options) {
  const bool one_row = options.kept_layers == model.layers() && model.head() == Head::kClassifier;
  return {.dtype = options.compute,
          .rows_are = one_row ? Rows::kSequences : Rows::kTokens,
          .cols = model.config().hidden_size};
}

int64_t label_words(const ModelConfig& config, Head head, const LossOptions& loss) {
  if (head == Head::kSpans) return kSpanEnds;
  if (head == Head::kTagger) {
    return CrossEntropySpec{
        .classes = config.num_labels(), .rows = Rows::kTargets, .weighted = loss.weighted}
        .label_words();
  }
  if (head != Head::kClassifier) return 1;
  switch (config.problem_type()) {
    case Problem::kOneLabel:
      break;
    case Problem::kManyLabels:
      return BinaryCrossEntropySpec{config.num_labels()}.label_words();
    case Problem::kNumbers:
      return SquaredErrorSpec{config.num_labels()}.label_words();
  }
  return CrossEntropySpec{.weighted = loss.weighted}.label_words();
}

}  // namespace snug
