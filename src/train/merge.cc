#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "model/adapter.h"
#include "model/weight_files.h"
#include "snug/snug.h"
#include "train/model_folder.h"
#include "train/run_files.h"

namespace snug {

void merge_adapter(const MergeOptions& options) {
  refuse_folder_with_model(options.output_dir);
  const ModelFolder folder = open_model_folder(options.adapter);
  const std::filesystem::path base = options.model.empty() ? AdapterFolder(options.adapter).base()
                                                           : std::filesystem::path(options.model);
  const Head head = head_of(folder.config);
  if (folder.config.quantized) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: the model of this adapter is int8, which nothing can be added to",
                            options.adapter),
                "name the folder it was made from with --model");
  }
  make_directories(options.output_dir);
  copy_weights(options.output_dir, *make_model(folder.config, head),
               WeightFolder(base, options.adapter));
  save_description(options.output_dir, folder.config, head, *folder.tokenizer, folder.path);
}

}  // namespace snug
