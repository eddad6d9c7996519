// Evaluation of a language model on a text: loss by token and perplexity.
#pragma once

#include <map>
#include <string>

#include "snug/snug.h"
#include "train/task.h"

namespace snug {

std::map<std::string, double> evaluate_language(const EvalOptions& options, Task task);

}  // namespace snug
