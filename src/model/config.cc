#include "model/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace snug {
namespace {

constexpr int64_t kMaxLabels = 1'000'000;
constexpr int64_t kDefaultLabels = 2;  // transformers'

struct ActivationName {
  std::string_view name;
  HiddenAct activation;
};
// The first name of an activation is the one written.
constexpr ActivationName kActivations[] = {{"gelu", HiddenAct::kGelu},
                                           {"gelu_new", HiddenAct::kGeluTanh},
                                           {"gelu_pytorch_tanh", HiddenAct::kGeluTanh},
                                           {"relu", HiddenAct::kRelu}};

struct IntegerField {
  const char* name;
  int64_t ModelConfig::*member;
  int64_t min, max;
  bool required;  // the others keep the family's default, which is transformers'
};
constexpr IntegerField kEncoderIntegers[] = {
    {"vocab_size", &ModelConfig::vocab_size, 1, 10'000'000, true},
    {"hidden_size", &ModelConfig::hidden_size, 1, 65'536, true},
    {"num_hidden_layers", &ModelConfig::num_hidden_layers, 1, 1'000, true},
    {"num_attention_heads", &ModelConfig::num_attention_heads, 1, 1'024, true},
    {"intermediate_size", &ModelConfig::intermediate_size, 1, 1'048'576, true},
    {"max_position_embeddings", &ModelConfig::max_position_embeddings, 1, 1'000'000, true},
    {"type_vocab_size", &ModelConfig::type_vocab_size, 1, 1'024, false},
    {"pad_token_id", &ModelConfig::pad_token_id, 0, 10'000'000, false}};
constexpr IntegerField kDistilBertIntegers[] = {
    {"vocab_size", &ModelConfig::vocab_size, 1, 10'000'000, true},
    {"dim", &ModelConfig::hidden_size, 1, 65'536, true},
    {"n_layers", &ModelConfig::num_hidden_layers, 1, 1'000, true},
    {"n_heads", &ModelConfig::num_attention_heads, 1, 1'024, true},
    {"hidden_dim", &ModelConfig::intermediate_size, 1, 1'048'576, true},
    {"max_position_embeddings", &ModelConfig::max_position_embeddings, 1, 1'000'000, true},
    {"pad_token_id", &ModelConfig::pad_token_id, 0, 10'000'000, false}};
constexpr IntegerField kGpt2Integers[] = {
    {"vocab_size", &ModelConfig::vocab_size, 1, 10'000'000, true},
    {"n_embd", &ModelConfig::hidden_size, 1, 65'536, true},
    {"n_layer", &ModelConfig::num_hidden_layers, 1, 1'000, true},
    {"n_head", &ModelConfig::num_attention_heads, 1, 1'024, true},
    {"n_inner", &ModelConfig::intermediate_size, 1, 1'048'576, false},
    {"n_positions", &ModelConfig::max_position_embeddings, 1, 1'000'000, true}};

struct RealField {
  const char* name;
  double ModelConfig::*member;
  double min, below;
};
constexpr RealField kEncoderReals[] = {
    {"hidden_dropout_prob", &ModelConfig::hidden_dropout, 0, 1},
    {"attention_probs_dropout_prob", &ModelConfig::attention_dropout, 0, 1},
    {"initializer_range", &ModelConfig::initializer_range, 0, 100},
    {"layer_norm_eps", &ModelConfig::layer_norm_eps, 1e-30, 1}};
constexpr RealField kDistilBertReals[] = {
    {"dropout", &ModelConfig::hidden_dropout, 0, 1},
    {"attention_dropout", &ModelConfig::attention_dropout, 0, 1},
    {"qa_dropout", &ModelConfig::answer_dropout, 0, 1},
    {"initializer_range", &ModelConfig::initializer_range, 0, 100}};
constexpr RealField kGpt2Reals[] = {{"embd_pdrop", &ModelConfig::embedding_dropout, 0, 1},
                                    {"resid_pdrop", &ModelConfig::hidden_dropout, 0, 1},
                                    {"attn_pdrop", &ModelConfig::attention_dropout, 0, 1},
                                    {"initializer_range", &ModelConfig::initializer_range, 0, 100},
                                    {"layer_norm_epsilon", &ModelConfig::layer_norm_eps, 1e-30, 1}};

// How a family writes its configuration.
struct FamilyNames {
  Family family;
  // The last: null where it has none.
  const char *model_type, *class_prefix, *activation, *classifier_dropout;
  std::span<const IntegerField> integers;
  std::span<const RealField> reals;
};
constexpr FamilyNames kFamilies[] = {
    {Family::kBert, "bert", "Bert", "hidden_act", "classifier_dropout", kEncoderIntegers,
     kEncoderReals},
    {Family::kRoberta, "roberta", "Roberta", "hidden_act", "classifier_dropout", kEncoderIntegers,
     kEncoderReals},
    {Family::kDistilBert, "distilbert", "DistilBert", "activation", "seq_classif_dropout",
     kDistilBertIntegers, kDistilBertReals},
    {Family::kGpt2, "gpt2", "GPT2", "activation_function", nullptr, kGpt2Integers, kGpt2Reals}};

constexpr const char* kFamilyList = "\"bert\", \"roberta\", \"distilbert\", \"gpt2\"";

const FamilyNames& names_of(Family family) {
  return *std::ranges::find(kFamilies, family, &FamilyNames::family);
}

// One value as it may stand in a message.
std::string shown(const Json& value) {
  constexpr size_t kMaxShown = 80;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
}

// The way of quantisation that snug has.
constexpr const char* kQuantization = "snug_int8";

struct ProblemName {
  Problem problem;
  const char* name;
};
constexpr ProblemName kProblems[] = {{Problem::kOneLabel, "single_label_classification"},
                                     {Problem::kManyLabels, "multi_label_classification"},
                                     {Problem::kNumbers, "regression"}};

class ConfigReader {
 public:
  ConfigReader(const Json& document, std::string_view origin)
      : document_(document), origin_(origin) {}

  ModelConfig read() {
    read_architectures();
    names_ = &names_of(read_family());
    const Family family = names_->family;
    std::vector<std::string> architectures = std::move(config_.architectures);
    config_ = default_config(family);
    config_.architectures = std::move(architectures);
    check_unsupported();
    for (const IntegerField& field : names_->integers) read_integer(field);
    for (const RealField& field : names_->reals) read_real(field);
    if (family != Family::kGpt2) config_.embedding_dropout = config_.hidden_dropout;
    if (config_.intermediate_size == 0) config_.intermediate_size = 4 * config_.hidden_size;
    read_eos();
    if (const Json* tied = value_of("tie_word_embeddings")) {
      config_.tie_word_embeddings = *tied != false;
    }
    read_quantization();
    read_classifier_dropout();
    read_activation();
    check_sizes();
    read_problem_type();
    read_labels();
    return std::move(config_);
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: {}", origin_, fmt::format(format, std::forward<Args>(args)...)));
  }

  // transformers writes null where it means "not set".
  const Json* value_of(const char* name) const {
    const auto value = document_.find(name);
    return value == document_.end() || value->is_null() ? nullptr : &*value;
  }

  std::string string_of(const char* name) const {
    const Json* value = value_of(name);
    if (value == nullptr) return {};
    if (!value->is_string()) bad("{} is {}, expected a string", name, shown(*value));
    return value->get<std::string>();
  }

  void read_quantization() {
    const Json* quantization = value_of("quantization_config");
    if (quantization == nullptr) return;
    const Json method =
        quantization->is_object() ? quantization->value("quant_method", Json()) : Json();
    if (method != kQuantization) {
      bad("quantization_config.quant_method is {}, supported: \"{}\" (snug quantize); use the "
          "original model",
          shown(method), kQuantization);
    }
    config_.quantized = true;
  }

  Family read_family() const {
    const std::string type = string_of("model_type");
    if (!type.empty()) {
      if (const auto family = find_family(type)) return *family;
      bad("model_type is {}, supported: {}", shown(Json(type)), kFamilyList);
    }
    // BERT's own first configurations name neither; other families of that time name their
    // architecture.
    if (config_.architectures.empty()) {
      if (document_.contains("sinusoidal_pos_embds")) return Family::kDistilBert;
      return document_.contains("n_embd") ? Family::kGpt2 : Family::kBert;
    }
    const std::string& first = config_.architectures[0];
    for (const FamilyNames& names : kFamilies) {
      if (first.starts_with(names.class_prefix)) return names.family;
    }
    bad("architectures names {} and model_type is missing, supported: {}", shown(Json(first)),
        kFamilyList);
  }

  // Some files list several; the first is the one that ends a text.
  void read_eos() {
    const Json* value = value_of("eos_token_id");
    if (value == nullptr) return;
    if (value->is_array() && !value->empty()) value = &value->front();
    const bool in_range = value->is_number_integer() && *value >= 0 && *value < config_.vocab_size;
    if (in_range) config_.eos_token_id = value->get<int64_t>();
  }

  void read_architectures() {
    const Json* names = value_of("architectures");
    if (names == nullptr) return;
    if (!names->is_array()) bad("architectures is {}, expected an array of strings", shown(*names));
    for (const Json& name : *names) {
      if (!name.is_string()) bad("architectures has {}, expected strings", shown(name));
      config_.architectures.push_back(name.get<std::string>());
    }
  }

  // What would change the computation in a way snug does not compute.
  void check_unsupported() const {
    if (const std::string kind = string_of("position_embedding_type");
        !kind.empty() && kind != "absolute") {
      bad("position_embedding_type is {}, supported: \"absolute\"", shown(Json(kind)));
    }
    for (const char* name : {"is_decoder", "add_cross_attention", "is_encoder_decoder"}) {
      const Json* value = value_of(name);
      if (value == nullptr || *value == false ||
          (names_->family == Family::kGpt2 && name == std::string_view("is_decoder"))) {
        continue;
      }
      bad("{} is {}, expected false: models of an encoder and a decoder are not supported", name,
          shown(*value));
    }
    const auto must_be = [&](const char* name, bool expected) {
      const Json* value = value_of(name);
      if (value != nullptr && *value != expected) {
        bad("{} is {}, supported: {}", name, shown(*value), expected);
      }
    };
    must_be("scale_attn_weights", true);
    must_be("scale_attn_by_inverse_layer_idx", false);
    if (const Json* pruned = value_of("pruned_heads"); pruned != nullptr && !pruned->empty()) {
      bad("pruned_heads is not empty: models with pruned heads are not supported");
    }
  }

  void read_integer(const IntegerField& field) {
    const Json* value = value_of(field.name);
    if (value == nullptr) {
      if (field.required) {
        bad("{} is missing, expected an integer from {} to {}", field.name, field.min, field.max);
      }
      return;
    }
    const bool in_range = value->is_number_integer() && *value >= field.min && *value <= field.max;
    if (!in_range) {
      bad("{} is {}, expected an integer from {} to {}", field.name, shown(*value), field.min,
          field.max);
    }
    config_.*field.member = value->get<int64_t>();
  }

  std::optional<double> real_of(const char* name, double min, double below) const {
    const Json* value = value_of(name);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : NAN;
    if (!(number >= min && number < below)) {
      bad("{} is {}, expected a number from {} to below {}", name, shown(*value), min, below);
    }
    return number;
  }

  void read_real(const RealField& field) {
    if (const auto number = real_of(field.name, field.min, field.below)) {
      config_.*field.member = *number;
    }
  }

  void read_classifier_dropout() {
    if (names_->classifier_dropout == nullptr) return;
    if (const auto rate = real_of(names_->classifier_dropout, 0, 1)) {
      config_.classifier_dropout = rate;
    }
  }

  void read_activation() {
    const std::string name = string_of(names_->activation);
    if (name.empty()) return;
    const auto known = std::ranges::find(kActivations, name, &ActivationName::name);
    if (known == std::end(kActivations)) {
      bad("{} is {}, supported: gelu, gelu_new, gelu_pytorch_tanh, relu", names_->activation,
          shown(Json(name)));
    }
    config_.hidden_act = known->activation;
  }

  void check_sizes() const {
    if (config_.hidden_size % config_.num_attention_heads != 0) {
      const auto name_of = [&](int64_t ModelConfig::*member) {
        return std::ranges::find(names_->integers, member, &IntegerField::member)->name;
      };
      bad("{} {} is not divisible by {} {}", name_of(&ModelConfig::hidden_size),
          config_.hidden_size, name_of(&ModelConfig::num_attention_heads),
          config_.num_attention_heads);
    }
    if (config_.max_length() < 1) {
      bad("max_position_embeddings is {}, expected more than pad_token_id {} + 1",
          config_.max_position_embeddings, config_.pad_token_id);
    }
    if (config_.pad_token_id >= config_.vocab_size) {
      bad("pad_token_id is {}, expected less than vocab_size {}", config_.pad_token_id,
          config_.vocab_size);
    }
  }

  void read_problem_type() {
    const std::string type = string_of("problem_type");
    if (type.empty()) return;
    for (const ProblemName& known : kProblems) {
      if (type == known.name) {
        config_.problem = known.problem;
        return;
      }
    }
    bad("problem_type is {}, expected single_label_classification, multi_label_classification or "
        "regression",
        shown(Json(type)));
  }

  void read_labels() {
    const Json* names = object_of("id2label");
    const Json* ids = object_of("label2id");
    if (names != nullptr) {
      labels_from_names(*names);
    } else if (ids != nullptr) {
      labels_from_ids(*ids);
    }
    if (ids != nullptr) check_ids(*ids);
    read_num_labels(names != nullptr || ids != nullptr);
  }

  const Json* object_of(const char* name) const {
    const Json* value = value_of(name);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) bad("{} is {}, expected an object", name, shown(*value));
    if (value->size() > size_t(kMaxLabels)) {
      bad("{} has {} entries, expected at most {}", name, value->size(), kMaxLabels);
    }
    return value;
  }

  void place_label(const char* field, size_t id, size_t count, const std::string& label) {
    config_.labels.resize(count);
    if (id >= count) bad("{} has id {}, expected 0 to {} without gaps", field, id, count - 1);
    config_.labels[id] = label;
  }

  void labels_from_names(const Json& names) {
    for (const auto& [key, label] : names.items()) {
      size_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || key != std::to_string(id)) {
        bad("id2label has key {}, expected an id", shown(Json(key)));
      }
      if (!label.is_string()) {
        bad("id2label gives id {} the label {}, expected a string", key, shown(label));
      }
      place_label("id2label", id, names.size(), label.get<std::string>());
    }
    std::vector<std::string> sorted = config_.labels;
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
      bad("id2label has the label {} twice", shown(Json(*twice)));
    }
  }

  size_t checked_id(const std::string& label, const Json& id) const {
    if (!id.is_number_unsigned()) {
      bad("label2id gives {} the id {}, expected an integer", shown(Json(label)), shown(id));
    }
    return id.get<size_t>();
  }

  void labels_from_ids(const Json& ids) {
    for (const auto& [label, id] : ids.items()) {
      place_label("label2id", checked_id(label, id), ids.size(), label);
    }
  }

  // Both tables must say the same; this also finds one id given to two labels.
  void check_ids(const Json& ids) const {
    if (ids.size() != config_.labels.size()) {
      bad("id2label has {} labels, label2id has {}", config_.labels.size(), ids.size());
    }
    for (const auto& [label, value] : ids.items()) {
      const size_t id = checked_id(label, value);
      const bool known = id < config_.labels.size();
      if (known && config_.labels[id] == label) continue;
      bad("label2id gives {} the id {}, but that id is {}", shown(Json(label)), id,
          known ? shown(Json(config_.labels[id])) : "not in id2label");
    }
  }

  void read_num_labels(bool named) {
    const Json* value = value_of("num_labels");
    if (value == nullptr) {
      // transformers leaves its default out of the file; a model without such a head has no classes
      // at all.
      const Head head = head_of(config_);
      if (!named && (head == Head::kClassifier || head == Head::kTagger)) {
        number_labels(kDefaultLabels);
      }
      return;
    }
    if (!value->is_number_integer() || *value < 1 || *value > kMaxLabels) {
      bad("num_labels is {}, expected an integer from 1 to {}", shown(*value), kMaxLabels);
    }
    const auto count = value->get<int64_t>();
    if (!named) {
      number_labels(count);
    } else if (count != config_.num_labels()) {
      bad("num_labels is {}, but {} labels are named", count, config_.num_labels());
    }
  }

  void number_labels(int64_t count) {
    for (int64_t id = 0; id < count; ++id) config_.labels.push_back(fmt::format("LABEL_{}", id));
  }

  const Json& document_;
  std::string_view origin_;
  const FamilyNames* names_ = nullptr;
  ModelConfig config_;
};

void write_labels(const ModelConfig& config, Head head, Json& document) {
  if (head == Head::kClassifier) {
    document["problem_type"] =
        std::ranges::find(kProblems, config.problem_type(), &ProblemName::problem)->name;
  } else {
    document.erase("problem_type");
  }
  Json id2label = Json::object(), label2id = Json::object();
  for (size_t id = 0; id < config.labels.size(); ++id) {
    id2label[std::to_string(id)] = config.labels[id];
    label2id[config.labels[id]] = id;
  }
  document["id2label"] = std::move(id2label);
  document["label2id"] = std::move(label2id);
  document.erase("num_labels");  // follows from the labels
}

// gelu_new and gelu_pytorch_tanh are one function: a name that still says the same stays.
void write_activation(const ModelConfig& config, Json& document) {
  Json& name = document[names_of(config.family).activation];
  const auto is_current = [&](const ActivationName& known) {
    return known.activation == config.hidden_act && name == known.name;
  };
  if (std::ranges::any_of(kActivations, is_current)) return;
  name = std::ranges::find(kActivations, config.hidden_act, &ActivationName::activation)->name;
}

}  // namespace

ModelConfig default_config(Family family) {
  ModelConfig config;
  config.family = family;
  if (family == Family::kRoberta) config.pad_token_id = 1;
  if (family == Family::kDistilBert) {
    config.type_vocab_size = 0;
    config.classifier_dropout = 0.2;
    config.answer_dropout = 0.1;
  }
  if (family == Family::kGpt2) {
    config.type_vocab_size = 0;
    config.pad_token_id = -1;
    config.hidden_act = HiddenAct::kGeluTanh;
    config.layer_norm_eps = 1e-5;
  }
  return config;
}

std::string_view model_type(Family family) { return names_of(family).model_type; }

std::optional<Family> find_family(std::string_view type) {
  const auto found = std::ranges::find(kFamilies, type, &FamilyNames::model_type);
  return found == std::end(kFamilies) ? std::nullopt : std::optional(found->family);
}

std::string architecture(Family family, Head head) {
  const std::string prefix = names_of(family).class_prefix;
  switch (head) {
    case Head::kNone:
      return prefix + "Model";
    case Head::kClassifier:
      return prefix + "ForSequenceClassification";
    case Head::kTagger:
      return prefix + "ForTokenClassification";
    case Head::kSpans:
      return prefix + "ForQuestionAnswering";
    case Head::kCausalLm:
      return prefix + "LMHeadModel";
    case Head::kMaskedLm:
      return prefix + "ForMaskedLM";
  }
  return prefix;
}

Head head_of(const ModelConfig& config) {
  for (const std::string& name : config.architectures) {
    for (const Head head :
         {Head::kClassifier, Head::kTagger, Head::kSpans, Head::kCausalLm, Head::kMaskedLm}) {
      if (name == architecture(config.family, head)) return head;
    }
  }
  return Head::kNone;
}

ModelConfig parse_config(std::string_view text, std::string_view origin) {
  const Json document = parse_json(text, origin);
  if (!document.is_object()) {
    fail(ErrorKind::kInput, "{}: is {}, expected a JSON object", origin, shown(document));
  }
  ModelConfig config = ConfigReader(document, origin).read();
  config.raw = text;
  return config;
}

std::filesystem::path config_path(const std::filesystem::path& folder) {
  const std::filesystem::path own = folder / "bert_config.json", usual = folder / "config.json";
  std::error_code error;
  return !std::filesystem::exists(usual, error) && std::filesystem::exists(own, error) ? own
                                                                                       : usual;
}

ModelConfig load_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = config_path(folder);
  return parse_config(read_small_file(path), path.string());
}

std::string to_json(const ModelConfig& config, Head head) {
  Json document = config.raw.empty() ? Json::object() : parse_json(config.raw, "config.json");
  const FamilyNames& names = names_of(config.family);
  for (const IntegerField& field : names.integers) document[field.name] = config.*field.member;
  for (const RealField& field : names.reals) document[field.name] = config.*field.member;
  if (names.classifier_dropout != nullptr) {
    document[names.classifier_dropout] =
        config.classifier_dropout ? Json(*config.classifier_dropout) : Json();
  }
  write_activation(config, document);
  document["model_type"] = names.model_type;
  document["architectures"] = {architecture(config.family, head)};
  // transformers 5 reads dtype, earlier ones torch_dtype.
  document["dtype"] = document["torch_dtype"] = "float32";
  if (config.quantized) {
    document["quantization_config"] = {{"quant_method", kQuantization}};
  } else {
    document.erase("quantization_config");
  }
  // transformers gives an answer's head as many outputs as there are labels.
  if (head == Head::kSpans) {
    for (const char* field : {"id2label", "label2id", "num_labels", "problem_type"}) {
      document.erase(field);
    }
  }
  // transformers looks for the last token that is no padding, and without an id for padding takes
  // one text at a time.
  const bool looks_for_padding = config.family == Family::kGpt2 && head == Head::kClassifier;
  if (looks_for_padding && config.eos_token_id &&
      document.value("pad_token_id", Json()).is_null()) {
    document["pad_token_id"] = *config.eos_token_id;
  }
  const bool has_labels = head == Head::kClassifier || head == Head::kTagger;
  if (has_labels && !config.labels.empty()) write_labels(config, head, document);
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace snug
