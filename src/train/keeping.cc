#include "train/keeping.h"

#include <fmt/format.h>

#include <limits>

#include "core/error.h"
#include "core/progress.h"

namespace snug {
namespace {

bool has_dropout(const ModelConfig& config) {
  return config.embedding_dropout > 0 || config.hidden_dropout > 0 || config.attention_dropout > 0;
}

uint64_t free_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  // Taking the room will say what is wrong.
  return error ? std::numeric_limits<uint64_t>::max() : space.available;
}

}  // namespace

Keeping find_keeping(const TrainingJob& job, const PlanRequest& request) {
  const std::string& flag = job.options.keep_frozen;
  if (flag != "auto" && flag != "on" && flag != "off") {
    fail(ErrorKind::kUsage, "--keep-frozen is \"{}\", expected auto, on or off", flag);
  }
  if (flag == "off") return {};
  const bool demanded = flag == "on";
  const int layers = frozen_layers(*job.model);
  if (layers == 0) {
    if (!demanded) return {};
    throw Error(ErrorKind::kUsage,
                "--keep-frozen on: the first layer or something before it is trained, so there is "
                "nothing to keep",
                "--freeze embeddings,layers.0-3 or --freeze all-but-head leaves layers in front of "
                "what is trained");
  }
  if (job.task == Task::kMlm) {
    if (!demanded) return {};
    throw Error(ErrorKind::kUsage,
                "--keep-frozen on: mlm masks other words in every epoch, so frozen layers never "
                "give the same twice",
                "leave it out");
  }
  Keeping keeping{.layers = layers, .drops_less = has_dropout(job.model->config())};
  if (keeping.drops_less && !demanded) {
    return {.why_not = fmt::format("what {} frozen layers give, since their dropout changes it "
                                   "each time; --keep-frozen on leaves that out",
                                   layers)};
  }
  GraphOptions graph = request.graph;
  graph.kept_layers = layers;
  keeping.size = {.states = kept_states(*job.model, graph),
                  .rows = job.train->rows(),
                  .tokens = job.train->tokens()};
  const std::filesystem::path folder = cache_folder(job.options);
  const uint64_t bytes = keeping.size.file_bytes(), free = free_bytes(folder);
  if (demanded && bytes > free) {
    throw Error(ErrorKind::kStorage,
                fmt::format("{}: --keep-frozen on needs {}, of which {} are free", folder.string(),
                            format_bytes(bytes), format_bytes(free)),
                "--cache-dir names another folder");
  }
  // The disk is for others too.
  if (!demanded && bytes > free / 2) {
    return {.why_not =
                fmt::format("what {} frozen layers give: {} are more than half of the {} that are "
                            "free in {} (--cache-dir)",
                            layers, format_bytes(bytes), format_bytes(free), folder.string())};
  }
  return keeping;
}

}  // namespace snug
