#include "model/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "model/model.h"
#include "model/weight_files.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";

// Kinds of LoRA whose weights mean something else than scale * b a.
void refuse_other_kinds(const Json& json, const std::string& origin) {
  const auto refuse_if = [&](const char* name, bool wrong) {
    if (wrong) {
      fail(ErrorKind::kInput, "{}: {} is {}, which snug does not know", origin, name,
           json.at(name).dump());
    }
  };
  for (const char* name : {"use_dora", "use_rslora", "use_qalora"}) {
    refuse_if(name, json.contains(name) && json[name] == true);
  }
  for (const char* name : {"rank_pattern", "alpha_pattern"}) {
    refuse_if(name, json.contains(name) && !json[name].empty());
  }
  refuse_if("bias", json.contains("bias") && json["bias"] != "none");
  refuse_if("peft_type", json.value("peft_type", "LORA") != "LORA");
}

// PEFT's name of what the head is for; it has none for masked language models.
OrderedJson task_type(Head head) {
  switch (head) {
    case Head::kClassifier:
      return "SEQ_CLS";
    case Head::kTagger:
      return "TOKEN_CLS";
    case Head::kSpans:
      return "QUESTION_ANS";
    case Head::kCausalLm:
      return "CAUSAL_LM";
    case Head::kMaskedLm:
    case Head::kNone:
      break;
  }
  return nullptr;
}

fs::path base_folder(const fs::path& folder, const std::string& stated) {
  const fs::path path = stated;
  return path.is_relative() && !fs::exists(path) && fs::exists(folder / path) ? folder / path
                                                                              : path;
}

}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kAdapterConfig, error);
}

AdapterFolder::AdapterFolder(const fs::path& folder) : file_(folder / kAdapterWeights) {
  const std::string origin = (folder / kAdapterConfig).string();
  const Json json = parse_json(read_small_file(folder / kAdapterConfig), origin);
  try {
    refuse_other_kinds(json, origin);
    spec_.rank = json.at("r");
    spec_.alpha = json.at("lora_alpha");
    in_out_ = json.value("fan_in_fan_out", false);
    base_ = base_folder(folder, json.at("base_model_name_or_path"));
  } catch (const Json::exception&) {
    fail(ErrorKind::kInput, "{}: expected \"r\", \"lora_alpha\" and \"base_model_name_or_path\"",
         origin);
  }
  if (spec_.rank < 1 || spec_.rank > 65536) {
    fail(ErrorKind::kInput, "{}: r is {}, expected at least 1", origin, spec_.rank);
  }
  std::set<std::string> paired;
  for (const TensorEntry& tensor : file_.tensors()) {
    std::string name = tensor.name;
    if (!name.starts_with(kAdapterPrefix)) {
      fail(ErrorKind::kInput, "{}: tensor \"{}\" does not begin with \"{}\"", file_.path().string(),
           name, kAdapterPrefix);
    }
    name = name.substr(kAdapterPrefix.size());
    if (name.ends_with(kA)) {
      const std::string module = name.substr(0, name.size() - kA.size());
      const TensorEntry* const b =
          file_.find(std::string(kAdapterPrefix) + module + std::string(kB));
      const bool fits = b != nullptr && tensor.shape.size() == 2 && b->shape.size() == 2 &&
                        tensor.shape[0] == spec_.rank && b->shape[1] == spec_.rank;
      if (!fits) {
        fail(ErrorKind::kInput, "{}: {} has no lora_A and lora_B of rank {}", file_.path().string(),
             module, spec_.rank);
      }
      pairs_.push_back({module + ".weight", &tensor, b});
      paired.insert(b->name);
    } else if (!name.ends_with(kB)) {
      replacements_.push_back(tensor);
      replacements_.back().name = name;
    }
  }
  for (const TensorEntry& tensor : file_.tensors()) {
    if (tensor.name.ends_with(kB) && !paired.contains(tensor.name)) {
      fail(ErrorKind::kInput, "{}: \"{}\" has no lora_A", file_.path().string(), tensor.name);
    }
  }
}

// Files of a bare model lack the first part of the names.
const AdapterFolder::Pair* AdapterFolder::find(std::string_view weight) const {
  const auto found = std::ranges::find_if(pairs_, [&](const Pair& pair) {
    return pair.weight == weight ||
           std::string_view(pair.weight).substr(pair.weight.find('.') + 1) == weight;
  });
  return found == pairs_.end() ? nullptr : &*found;
}

void AdapterFolder::add_to(const TensorEntry& weight, uint64_t first,
                           std::span<float> values) const {
  const Pair* const pair = find(weight.name);
  if (pair == nullptr || values.empty()) return;
  const auto rank = size_t(spec_.rank), in = size_t(pair->a->shape[1]),
             out = size_t(pair->b->shape[0]);
  const size_t rows = in_out_ ? in : out, cols = in_out_ ? out : in;
  if (weight.shape != std::vector<int64_t>{int64_t(rows), int64_t(cols)}) {
    fail(ErrorKind::kInput,
         "{}: the adapter of \"{}\" is for a weight of [{}, {}], the model's is {}",
         file_.path().string(), weight.name, rows, cols, format_shape(weight.shape));
  }
  std::vector<float> a(rank * in), b(out * rank);
  file_.read_as_f32(*pair->a, 0, a);
  file_.read_as_f32(*pair->b, 0, b);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t row = size_t(first + i) / cols, col = size_t(first + i) % cols;
    const size_t o = in_out_ ? col : row, k = in_out_ ? row : col;
    double sum = 0;
    for (size_t r = 0; r < rank; ++r) sum += double(b[o * rank + r]) * double(a[r * in + k]);
    values[i] += float(spec_.scale() * sum);
  }
}

namespace {

// Heads are trained whole. PEFT knows them by the first part of their names behind the model's
// prefix.
std::string module_of(const Parameter& parameter, const Model& model) {
  std::string name = parameter.parts[0].name;
  if (name.starts_with(model.weight_names().prefix)) {
    name = name.substr(model.weight_names().prefix.size());
  }
  return name.substr(0, name.find('.'));
}

std::set<std::string> whole_modules(const Model& model) {
  std::set<std::string> whole;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.trained && !parameter.is_adapter) whole.insert(module_of(parameter, model));
  }
  return whole;
}

// PEFT takes all-linear alone, not in a list, and would then look for layers by rules of its own:
// the layers that have adapters are named, by the last parts of their names.
std::vector<std::string> target_modules(const Model& model) {
  const std::vector<std::string>& asked = model.tuning().lora.targets;
  if (std::ranges::find(asked, "all-linear") == asked.end()) return asked;
  std::set<std::string> names;
  for (const Parameter& parameter : model.parameters()) {
    if (!parameter.is_adapter || !parameter.name.ends_with(kA)) continue;
    const std::string module = parameter.name.substr(0, parameter.name.size() - kA.size());
    names.insert(module.substr(module.rfind('.') + 1));
  }
  return {names.begin(), names.end()};
}

// The last layer of a masked language model in transformers. Its weight is the table of words and
// its bias has another name too, so that the files of models, snug's among them, need not have
// either under this one.
struct TiedLayer {
  std::string name, bias;
};
TiedLayer tied_layer(Family family) {
  switch (family) {
    case Family::kBert:
      return {"cls.predictions.decoder", "cls.predictions.bias"};
    case Family::kRoberta:
      return {"lm_head.decoder", "lm_head.bias"};
    case Family::kDistilBert:
      return {"vocab_projector", "vocab_projector.bias"};
    case Family::kGpt2:
      break;
  }
  return {};
}

// A tensor to be written, by its name in the model, and where its values come from.
struct Source {
  std::string name;
  std::vector<int64_t> shape;
  std::function<void(uint64_t first, std::span<float> values)> read;

  size_t elements() const {
    return size_t(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  }
};

// What is frozen of heads: in modules that are trained in part, and what was made new for this run.
void add_frozen_parts(std::vector<Source>& sources, const Model& model,
                      const ParameterMemory& memory, const WeightFolder& base) {
  const std::set<std::string> whole = whole_modules(model);
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const Parameter& p = model.parameters()[i];
    if (p.trained || !p.is_head) continue;
    if (!whole.contains(module_of(p, model)) && base.find(p.parts[0].name) != nullptr) continue;
    SNUG_CHECK(p.parts.size() == 1 && !p.quantized);
    sources.push_back(
        {p.parts[0].name,
         p.is_vector ? std::vector<int64_t>{p.cols} : std::vector<int64_t>{p.rows, p.cols},
         [block = memory(i)](uint64_t first, std::span<float> values) {
           block.read(first * sizeof(float), std::as_writable_bytes(values));
         }});
  }
}

void add_tied_layer(std::vector<Source>& sources, const Model& model, const WeightFolder& base) {
  const auto [layer, bias] = tied_layer(model.config().family);
  if (model.head() != Head::kMaskedLm ||
      !whole_modules(model).contains(layer.substr(0, layer.find('.')))) {
    return;
  }
  if (layer + ".bias" != bias) {
    Source same = *std::ranges::find(sources, bias, &Source::name);
    same.name = layer + ".bias";
    sources.push_back(std::move(same));
  }
  const Parameter& words = *std::ranges::find_if(
      model.parameters(), [](const Parameter& p) { return p.is_table && p.is_factor; });
  std::string name = words.parts[0].name;
  if (base.find(name) == nullptr) {
    name = name.substr(model.weight_names().prefix.size());  // a bare model's
  }
  sources.push_back({layer + ".weight",
                     {words.rows, words.cols},
                     [&base, name](uint64_t first, std::span<float> values) {
                       base.read_as_f32(name, first, values);
                     }});
}

}  // namespace

std::string describe_adapter(const Model& model, const std::filesystem::path& base) {
  const LoraSpec& spec = model.tuning().lora;
  const OrderedJson none = nullptr;
  const std::set<std::string> whole = whole_modules(model);
  const OrderedJson json = {{"peft_type", "LORA"},
                            {"task_type", task_type(model.head())},
                            {"base_model_name_or_path", base.string()},
                            {"r", spec.rank},
                            {"lora_alpha", spec.alpha},
                            {"lora_dropout", spec.dropout},
                            {"target_modules", target_modules(model)},
                            {"modules_to_save", whole.empty() ? none : OrderedJson(whole)},
                            {"fan_in_fan_out", model.weight_names().in_out},
                            {"bias", "none"},
                            {"inference_mode", true},
                            {"init_lora_weights", true}};
  return json.dump(2) + "\n";
}

void complete_adapter(const fs::path& folder, const Model& model, const ParameterMemory& memory,
                      const WeightFolder& base) {
  const SafetensorsFile trained(folder / kAdapterWeights);
  std::vector<Source> sources;
  for (const TensorEntry& tensor : trained.tensors()) {
    sources.push_back({tensor.name.substr(kAdapterPrefix.size()), tensor.shape,
                       [&trained, &tensor](uint64_t first, std::span<float> values) {
                         trained.read_as_f32(tensor, first, values);
                       }});
  }
  add_frozen_parts(sources, model, memory, base);
  add_tied_layer(sources, model, base);
  if (sources.size() == trained.tensors().size()) return;
  std::vector<TensorEntry> entries;
  for (const Source& source : sources) {
    entries.push_back({std::string(kAdapterPrefix) + source.name, DType::kF32, source.shape});
  }
  SafetensorsWriter writer(folder / kAdapterWeights, entries);
  std::vector<float> buffer(kPieceBytes / sizeof(float));
  for (size_t i = 0; i < sources.size(); ++i) {
    in_pieces(sources[i].elements(), std::span(buffer), [&](size_t first, std::span<float> piece) {
      sources[i].read(first, piece);
      writer.write(entries[i].name, piece);
    });
  }
  writer.commit();
}

}  // namespace snug
