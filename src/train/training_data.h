// The data of a run: files read by the flags that name them, and divided into what is trained on
// and what is kept for validation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/dataset.h"
#include "snug/snug.h"
#include "train/model_folder.h"
#include "train/task.h"

namespace snug {

struct TrainingJob;

// Sets the job's data, labels, class weights and masks, from its options, folder, task and teacher.
void open_training_data(TrainingJob& job);

// How a language model's texts are read: joined into blocks where it is causal.
DatasetOptions text_dataset_options(const CommonOptions& options, Task task,
                                    const ModelFolder& folder);

// --max-length, or what the model has positions for. `flag` is what it was given as, for messages.
size_t text_length(const CommonOptions& options, int64_t positions,
                   std::string_view flag = "--max-length");

}  // namespace snug
