// Checkpoints: named blocks of memory and a small JSON document, on disk as step-N/ folders that
// exist whole or not at all. Knows nothing about models. Tensors stream from and to the
// caller's memory through a small buffer; the format is in docs/files.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/json.h"
#include "core/memory.h"

namespace snug {

// All the memory that saving, verifying or loading takes beside the caller's tensors and the
// manifest.
inline constexpr size_t kCheckpointBufferBytes = kPieceBytes;

struct CheckpointTensor {
  std::string name;
  DType dtype = DType::kF32;
  Block data;  // whole elements; read by save_checkpoint, written by load_checkpoint_tensors
};

struct CheckpointContents {
  uint64_t step = 0;
  Json state;  // small: seeds, fingerprints, metrics, best so far
  std::vector<CheckpointTensor> tensors;
};

// Writes `folder`/step-N and retires older steps until `keep` (at least 1) are left; newer ones are
// never touched. When it fails (kStorage) nothing that existed before is changed, when it is killed
// latest_checkpoint() still finds the old or the new one. An existing step-N is replaced. One
// process per folder.
void save_checkpoint(const std::filesystem::path& folder, const CheckpointContents& contents,
                     int keep);

// The highest step that verify_checkpoint accepts; warns of each newer one that it passes over.
// Absent where there is none: a caller told to resume must then stop rather than start from zero.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// Reads everything and compares all checksums. Errors (kInput) name the file, the tensor and both
// values.
void verify_checkpoint(const std::filesystem::path& checkpoint);

uint64_t read_checkpoint_step(const std::filesystem::path& checkpoint);
Json read_checkpoint_state(const std::filesystem::path& checkpoint);

// Fills `tensors`, which must be exactly those of the checkpoint in name, type and size (checked
// before the first byte is written), and verifies each while reading.
void load_checkpoint_tensors(const std::filesystem::path& checkpoint,
                             std::span<const CheckpointTensor> tensors);

// Removes what killed runs left behind. Call once at the start of a run, before looking for the
// latest checkpoint.
void clean_stale(const std::filesystem::path& folder);

}  // namespace snug
