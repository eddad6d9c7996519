// report.html of a run: its curves, its memory as planned and measured, its scores; one file that
// needs nothing else.
#pragma once

#include <filesystem>

#include "snug/snug.h"

namespace snug {

// Reads metrics.jsonl of the folder line by line.
void write_run_report(const std::filesystem::path& folder, const TrainSummary& summary);

}  // namespace snug
