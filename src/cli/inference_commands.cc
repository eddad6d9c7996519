#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <utility>

#include "cli/commands.h"
#include "core/error.h"
#include "core/json.h"

namespace snug {
namespace {

void add_common(CLI::App& command, CommonOptions& options, bool with_label) {
  add_model_flag(command, options);
  add_memory_flags(command, options);
  add_column_flags(command, options, with_label);
  add_long_text_flags(command, options);
}

using Metrics = std::map<std::string, double>;

// Two models side by side.
void show_comparison(const Metrics& result, const Metrics& other, bool json) {
  Metrics difference;
  for (const auto& [name, value] : result) {
    if (other.contains(name)) difference[name] = value - other.at(name);
  }
  if (json) {
    OrderedJson all(result);
    all["compared_with"] = other;
    all["difference"] = difference;
    std::puts(all.dump(2).c_str());
    return;
  }
  std::puts(fmt::format("{:<24}{:>12}{:>15}{:>12}", "", "this model", "compared with", "difference")
                .c_str());
  for (const auto& [name, change] : difference) {
    std::puts(fmt::format("{:<24}{:>12.6g}{:>15.6g}{:>+12.4g}", name, result.at(name),
                          other.at(name), change)
                  .c_str());
  }
}

void add_eval(CLI::App& app) {
  struct Flags {
    EvalOptions options;
    std::string compare_with;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("eval", "measure a trained model on labelled data");
  add_common(*command, flags->options, true);
  add_files_option(*command, spellings("--data,--validation,--validation-file"),
                   flags->options.data,
                   "labelled data, in the formats of snug train, one or several files")
      ->required();
  add_bad_rows_flag(*command, flags->options);
  command
      ->add_option(spellings("--max-eval-samples"), flags->options.max_eval_samples,
                   "the first so many texts alone; 0: all")
      ->capture_default_str();
  command->add_option(
      spellings("--compare-with"), flags->compare_with,
      "measure this model folder too, and show both: what quantisation or training has changed");
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] {
    const Evaluation result = evaluate(flags->options);
    if (!flags->compare_with.empty()) {
      EvalOptions other = flags->options;
      other.model = flags->compare_with;
      return show_comparison(result.metrics, evaluate(other).metrics, flags->json);
    }
    std::fputs((flags->json ? result.to_json() + "\n" : result.to_text()).c_str(), stdout);
  });
}

OrderedJson as_json(const Prediction& prediction) {
  OrderedJson json = OrderedJson::object();
  if (!prediction.id.empty()) json["id"] = prediction.id;
  if (prediction.value) {
    json["value"] = *prediction.value;
  } else if (prediction.entities) {
    json["entities"] = OrderedJson::array();
    for (const EntityPrediction& entity : *prediction.entities) {
      json["entities"].push_back({{"type", entity.type},
                                  {"text", entity.text},
                                  {"start", entity.begin},
                                  {"end", entity.end},
                                  {"score", entity.score}});
    }
    json["words"] = OrderedJson::array();
    for (const auto& [word, tag] : prediction.tags) {
      json["words"].push_back({{"word", word}, {"label", tag}});
    }
  } else if (prediction.answers) {
    json["answer"] = prediction.answers->empty() ? "" : prediction.answers->front().text;
    json["no_answer_score"] = prediction.no_answer_score;
    json["answers"] = OrderedJson::array();
    for (const AnswerPrediction& answer : *prediction.answers) {
      json["answers"].push_back({{"text", answer.text},
                                 {"start", answer.begin},
                                 {"end", answer.end},
                                 {"score", answer.score}});
    }
  } else {
    if (prediction.labels) {
      json["labels"] = *prediction.labels;
    } else {
      json["label"] = prediction.label;
      json["score"] = prediction.score;
    }
    json["scores"] = OrderedJson::object();
    for (const auto& [label, score] : prediction.scores) json["scores"][label] = score;
  }
  return json;
}

// One line, or where there are entities one for each.
std::string as_text(const Prediction& prediction) {
  if (prediction.value) return fmt::format("{:.6g}", *prediction.value);
  if (prediction.labels) return fmt::format("{}", fmt::join(*prediction.labels, ","));
  if (prediction.answers) {
    if (prediction.answers->empty()) return "(no answer)";
    const AnswerPrediction& best = prediction.answers->front();
    return fmt::format("{}\t{}\t{}\t{:.4f}", best.text, best.begin, best.end, best.score);
  }
  if (prediction.entities) {
    std::string lines;
    for (const EntityPrediction& entity : *prediction.entities) {
      lines += fmt::format("{}\t{}\t{}\t{}\t{:.4f}\n", entity.type, entity.text, entity.begin,
                           entity.end, entity.score);
    }
    return lines;  // an empty line ends a text
  }
  return fmt::format("{}\t{:.4f}", prediction.label, prediction.score);
}

void add_input(CLI::App& command, InferenceOptions& options) {
  command.add_option("--input", options.input,
                     "texts: .jsonl, .csv, .tsv, .txt (a text a line); tagged words: as snug eval "
                     "takes them; questions: SQuAD's .json; - is standard input");
  command.add_option("--text,--question", options.text, "one text, or question, instead of a file");
  command.add_option(spellings("--text-pair,--context"), options.text_pair,
                     "the second text that goes with it: where the answer is");
}

void add_predict(CLI::App& app) {
  struct Flags {
    InferenceOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "predict", "what a trained model says about texts: labels, a number, entities, answers");
  add_common(*command, flags->options, false);
  add_input(*command, flags->options);
  command
      ->add_option(spellings("--n-best-size"), flags->options.n_best_size,
                   "qa: answers for each question")
      ->capture_default_str();
  command
      ->add_option(spellings("--max-answer-length"), flags->options.max_answer_length,
                   "qa: tokens of the longest answer")
      ->capture_default_str();
  command->add_flag(spellings("--version-2-with-negative"), flags->options.version_2_with_negative,
                    "qa: there may be no answer");
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] {
    // A file gives a list inside the one object.
    const bool list = flags->json && !flags->options.text;
    // Begun by the first prediction: whoever fails before it has written nothing.
    const char* const begin = "{\"predictions\": [\n";
    const char* before = begin;
    predict(flags->options, [&](const Prediction& prediction) {
      if (list) std::fputs(before, stdout);
      before = ",\n";
      if (flags->json) {
        std::fputs(as_json(prediction).dump().c_str(), stdout);
      } else {
        std::puts(as_text(prediction).c_str());
      }
    });
    if (list && before == begin) std::fputs(begin, stdout);
    if (flags->json) std::puts(list ? "\n]}" : "");
  });
}

void add_embed(CLI::App& app) {
  const auto options = std::make_shared<InferenceOptions>();
  CLI::App* command =
      app.add_subcommand("embed", "one vector per text, as JSON lines {\"embedding\": [...]}");
  add_common(*command, *options, false);
  add_input(*command, *options);
  command->add_option("--pooling", options->pooling, "mean of all tokens, or cls: the first")
      ->capture_default_str();
  command->add_flag("--normalize,!--no-normalize", options->normalize, "scale to length one [on]");
  command->add_flag_callback(
      "--json", [] {}, "accepted; the output is always JSON lines");
  command->callback([options] {
    fmt::memory_buffer line;
    embed(*options, [&line](const std::vector<float>& embedding) {
      line.clear();
      fmt::format_to(std::back_inserter(line), "{{\"embedding\": [");
      for (size_t i = 0; i < embedding.size(); ++i) {
        fmt::format_to(std::back_inserter(line), "{}{}", i > 0 ? ", " : "", embedding[i]);
      }
      fmt::format_to(std::back_inserter(line), "]}}\n");
      std::fwrite(line.data(), 1, line.size(), stdout);
    });
  });
}

// Fails at once where nobody reads any more: there is no use in writing on.
void show(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  fail(ErrorKind::kStorage, "cannot write to standard output");
}

// One text is shown as it is written, several at the end. Nothing is shown before the model writes:
// what is wrong with flags, files or memory has been said by then.
void run_generate(const GenerateOptions& options, bool json) {
  const bool live = !json && options.prompts.size() == 1 && options.num_return == 1;
  std::string unshown = live ? options.prompts[0] : "";
  const GenerateSummary summary = generate(options, [&](size_t, const std::string& piece) {
    if (live) show(std::exchange(unshown, "") + piece);
  });
  if (json) {
    summary.write_json(show);
    return show("\n");
  }
  if (live) {
    show(unshown + "\n");
  } else {
    for (const GeneratedText& text : summary.texts) {
      show(fmt::format("{}{}\n---\n", text.prompt, text.text));
    }
  }
  std::fputs(fmt::format("{} tokens, {:.0f} tokens/s\n", summary.tokens, summary.tokens_per_second)
                 .c_str(),
             stderr);
}

void add_generate(CLI::App& app) {
  struct Flags {
    GenerateOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("generate", "write on from a prompt with a causal language model");
  GenerateOptions& o = flags->options;
  add_model_flag(*command, o);
  add_memory_flags(*command, o);
  const auto take_all = CLI::MultiOptionPolicy::TakeAll;
  command->add_option("--prompt", o.prompts, "what to go on from; may be given several times")
      ->expected(1)
      ->multi_option_policy(take_all);
  command->add_option(
      "--input", o.input,
      "a file of prompts: .txt (one a line), .jsonl, .csv, .tsv; - is standard input");
  command->add_option(spellings("--text-column"), o.text_column,
                      "column of the prompt in --input [usual names]");
  command->add_option(spellings("--max-new-tokens"), o.max_new_tokens,
                      "tokens to write at most [generation_config.json's, or 100]");
  command->add_option("--temperature", o.temperature,
                      "below 1 is bolder, above 1 wilder; 0: always the most likely token "
                      "[generation_config.json's, or 1]");
  command->add_flag_callback(
      "--greedy", [&o] { o.temperature = 0; }, "the same as --temperature 0");
  command->add_option(
      spellings("--top-k"), o.top_k,
      "draw from the so many most likely tokens; 0: from all [generation_config.json's, or 50]");
  command->add_option(spellings("--top-p"), o.top_p,
                      "draw from the most likely tokens that have this probability together "
                      "[generation_config.json's, or 1]");
  command->add_option(spellings("--repetition-penalty"), o.repetition_penalty,
                      "above 1: tokens that are there become less likely "
                      "[generation_config.json's, or 1]");
  command->add_option("--stop", o.stop, "a text that ends the writing; may be given several times")
      ->expected(1)
      ->multi_option_policy(take_all);
  command->add_option("--seed", o.seed, "of the draws")->capture_default_str();
  command
      ->add_option(spellings("--num-return,--num-return-sequences"), o.num_return,
                   "texts for each prompt")
      ->capture_default_str();
  command
      ->add_option(spellings("--batch-size"), o.batch_size,
                   "texts written at once, memory allowing")
      ->capture_default_str();
  command->add_flag("--sliding", o.sliding,
                    "go on beyond the model's positions, forgetting the older half of the text");
  command->add_flag(spellings("--ignore-eos"), o.ignore_eos,
                    "write on behind the end-of-text token");
  command->add_flag("--json", flags->json, "one JSON object on standard output");
  command->callback([flags] { run_generate(flags->options, flags->json); });
}

}  // namespace

void add_inference_commands(CLI::App& app) {
  add_eval(app);
  add_predict(app);
  add_embed(app);
  add_generate(app);
}

}  // namespace snug
