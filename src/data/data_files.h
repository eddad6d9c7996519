// The files that a flag names: a list separated by commas, of names, of patterns with * and ?, each
// with or without a weight behind a colon.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace snug {

struct DataFiles {
  std::vector<std::filesystem::path> files;  // those of a pattern in the order of their names
  std::vector<MixturePart> parts;  // empty: no weights; otherwise one for each entry of the list
};

// What exists under an entry's whole name is that file, whatever its name holds. `flag` is for
// messages. Errors: kUsage for the list, kInput for a pattern without files and a file that is
// named twice.
DataFiles find_data_files(const std::string& flag, const std::string& list);

// What is said about files together is said under this name: that of the only one, or how many
// there are.
std::string name_of_files(const std::vector<std::filesystem::path>& files);

}  // namespace snug
