// What is said about a command line that cannot be understood.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "core/error.h"

namespace snug {

// The candidate that is most like the word, as one types it wrong; "" where none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

// Names the word that is not known, before anything that may be missing because of it, and what
// comes near it.
Error usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace snug
