#include <fmt/format.h>

#include <cstdio>
#include <map>

#include "cli/commands.h"
#include "core/json.h"
#include "core/progress.h"
#include "model/config.h"
#include "model/weight_files.h"
#include "train/platform.h"

namespace snug {
namespace {

void add_init(CLI::App& app) {
  const auto options = std::make_shared<InitOptions>();
  CLI::App* command =
      app.add_subcommand("init", "a fresh model folder with a vocabulary learned from your text");
  command->add_option(spellings("--model-type"), options->model_type, "bert, roberta or gpt2")
      ->capture_default_str();
  command
      ->add_option(spellings("--train,--train-file"), options->train,
                   "text to learn the vocabulary from")
      ->required();
  command->add_option(spellings("--text-column"), options->text_column,
                      "column of the text [usual names]");
  command->add_flag_callback(
      spellings("--no-header"), [options] { options->header = false; }, "the first line is data");
  command->add_option(spellings("--vocab-size"), options->vocab_size, "tokens")
      ->capture_default_str();
  command->add_option(spellings("--hidden-size"), options->hidden_size, "width")
      ->capture_default_str();
  command->add_option(spellings("--num-hidden-layers"), options->num_hidden_layers, "layers")
      ->capture_default_str();
  command->add_option(spellings("--num-attention-heads"), options->num_attention_heads, "heads")
      ->capture_default_str();
  command->add_option(spellings("--intermediate-size"), options->intermediate_size,
                      "[four times the width]");
  command
      ->add_option(spellings("--max-position-embeddings"), options->max_position_embeddings,
                   "longest text in tokens")
      ->capture_default_str();
  command->add_flag("!--cased", options->lowercase,
                    "bert: keep upper case and accents; the others always do");
  command->add_option("--seed", options->seed, "of the weights")->capture_default_str();
  command->add_option(spellings("--output-dir"), options->output_dir, "the new folder")->required();
  command->callback([options] { init_model(*options); });
}

void add_merge(CLI::App& app) {
  const auto options = std::make_shared<MergeOptions>();
  CLI::App* command = app.add_subcommand(
      "merge", "add an adapter to the model it belongs to: a plain model folder");
  command
      ->add_option("--adapter", options->adapter,
                   "folder of adapters, as snug train --lora-rank or PEFT write it")
      ->required();
  command->add_option("--model", options->model,
                      "the model it belongs to [the one its configuration names]");
  command->add_option(spellings("--output-dir"), options->output_dir, "the new folder")->required();
  command->callback([options] { merge_adapter(*options); });
}

void add_quantize(CLI::App& app) {
  struct Flags {
    QuantizeOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "quantize", "a model folder whose large matrices are int8: a quarter of fp32");
  command
      ->add_option(spellings("--model,--model-name-or-path"), flags->options.model,
                   "Hugging Face model folder")
      ->required();
  command->add_option(spellings("--output-dir"), flags->options.output_dir, "the new folder")
      ->required();
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] {
    const QuantizeSummary summary = quantize(flags->options);
    const double share = double(summary.bytes) / double(summary.fp32_bytes);
    if (flags->json) {
      const OrderedJson json = {{"original_bytes", summary.original_bytes},
                                {"fp32_bytes", summary.fp32_bytes},
                                {"bytes", summary.bytes},
                                {"share_of_fp32", share}};
      std::puts(json.dump(2).c_str());
      return;
    }
    std::puts(fmt::format("{} of weights became {}, {:.1f} % of fp32\nwhat that costs: snug eval "
                          "--model {} --compare-with {} --data FILE",
                          format_bytes(summary.original_bytes), format_bytes(summary.bytes),
                          100 * share, flags->options.output_dir, flags->options.model)
                  .c_str());
  });
}

void add_inspect(CLI::App& app) {
  struct Flags {
    std::string folder;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "inspect", "architecture, parameters, data types and bytes of a model folder");
  command->add_option("folder", flags->folder, "Hugging Face model folder")->required();
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] {
    const ModelConfig config = load_config(flags->folder);
    const WeightFolder files(flags->folder);
    uint64_t elements = 0;
    std::map<std::string, uint64_t> dtypes;
    for (const std::string_view name : files.names()) {
      const TensorEntry& tensor = *files.find(name);
      dtypes[std::string(dtype_name(tensor.dtype))] += tensor.bytes();
      const bool scales = config.quantized && name.ends_with("_scale");
      if ((is_float(tensor.dtype) && !scales) || tensor.dtype == DType::kI8) {
        elements += tensor.elements();
      }
    }
    const OrderedJson json = {{"model_type", model_type(config.family)},
                              {"architectures", config.architectures},
                              {"layers", config.num_hidden_layers},
                              {"hidden_size", config.hidden_size},
                              {"attention_heads", config.num_attention_heads},
                              {"intermediate_size", config.intermediate_size},
                              {"vocab_size", config.vocab_size},
                              {"max_length", config.max_length()},
                              {"labels", config.labels},
                              {"quantized", config.quantized ? "int8" : "no"},
                              {"tensors", files.names().size()},
                              {"parameters", elements},
                              {"bytes", files.tensor_bytes()},
                              {"bytes_by_dtype", dtypes}};
    if (flags->json) {
      std::puts(json.dump(2).c_str());
      return;
    }
    for (const auto& [name, value] : json.items()) {
      std::puts(fmt::format("{:<18}{}", name, value.dump()).c_str());
    }
  });
}

void add_doctor(CLI::App& app) {
  struct Flags {
    CommonOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("doctor", "device, memory, libraries and the limits that apply");
  command
      ->add_option("--device", flags->options.device,
                   "cpu, cuda, cuda:N; auto: a GPU where this snug can use one")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] {
    const auto platform = open_platform(flags->options);
    OrderedJson report = {{"version", SNUG_VERSION}, {"device", platform->name()}};
    for (const auto& [name, value] : platform->facts()) report[name] = value;
    if (flags->json) {
      std::puts(report.dump(2).c_str());
      return;
    }
    for (const auto& [name, value] : report.items()) {
      std::puts(fmt::format("{:<30}{}", name, value.get<std::string>()).c_str());
    }
  });
}

}  // namespace

void add_model_commands(CLI::App& app) {
  add_init(app);
  add_merge(app);
  add_quantize(app);
  add_inspect(app);
  add_doctor(app);
}

}  // namespace snug
