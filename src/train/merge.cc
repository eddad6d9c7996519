#include "core/file.h"
#include "model/adapter.h"
#include "model/weight_files.h"
#include "snug/snug.h"
#include "train/model_folder.h"

namespace snug {

void merge_adapter(const MergeOptions& options) {
  const ModelFolder folder = open_model_folder(options.adapter);
  const std::filesystem::path base = options.model.empty() ? AdapterFolder(options.adapter).base() : std::filesystem::path(options.model);
  const Head head = head_of(folder.config);
  make_directories(options.output_dir);
  copy_weights(options.output_dir, *make_model(folder.config, head), WeightFolder(base, options.adapter));
  save_description(options.output_dir, folder.config, head, *folder.tokenizer);
}

}  // namespace snug
