// Evaluation of a language model on a text: loss by token and perplexity.
#pragma once

#include <map>
#include <string>

#include "snug/snug.h"

namespace snug {

// Whether config.json names a causal or masked language model.
bool is_language_folder(const std::string& model);

std::map<std::string, double> evaluate_language(const EvalOptions& options);

}  // namespace snug
