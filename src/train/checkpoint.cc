#include "train/checkpoint.h"

#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/kill_point.h"
#include "core/progress.h"
#include "model/safetensors.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "snug-checkpoint";
constexpr int kVersion = 1;
constexpr const char* kTensorFile = "tensors.safetensors";
constexpr const char* kManifestFile = "manifest.json";
// Folder entries and block rounding, beyond the files' own bytes.
constexpr uint64_t kSlackBytes = 1 << 20;
// While a step is saved again, the old folder of that step waits under this name until the new one
// is in place.
constexpr std::string_view kReplaced = ".replaced";

struct TensorRecord {
  DType dtype = DType::kF32;
  uint64_t bytes = 0;
  std::string checksum;
};

struct Manifest {
  uint64_t step = 0;
  Json state;
  uint64_t tensor_file_bytes = 0;
  std::map<std::string, TensorRecord> tensors;
};

std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }
std::string checksum_of(std::string_view text) {
  return hex(XXH3_64bits(text.data(), text.size()));
}

// Of bytes that come in pieces.
class Checksum {
 public:
  Checksum() { XXH3_64bits_reset(&state_); }
  void add(std::span<const std::byte> piece) {
    XXH3_64bits_update(&state_, piece.data(), piece.size());
  }
  std::string text() const { return hex(XXH3_64bits_digest(&state_)); }

 private:
  XXH3_state_t state_;
};

std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- folder names ----

struct Candidate {
  uint64_t step = 0;
  bool replaced = false;  // step-N.replaced: second choice after step-N
  fs::path path;
};

enum class NameKind { kForeign, kCheckpoint, kReplaced, kStale };
struct Name {
  NameKind kind = NameKind::kForeign;
  uint64_t step = 0;
};

// step-N, step-N.replaced, and either with .tmp-*; anything else is not ours and is never touched.
Name parse_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return {};
  Name result;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(begin, end, result.step);
  if (error != std::errc()) return {};
  std::string_view suffix(rest, end);
  if (suffix.empty()) {
    result.kind = NameKind::kCheckpoint;
  } else if (suffix == kReplaced) {
    result.kind = NameKind::kReplaced;
  } else {
    if (suffix.starts_with(kReplaced)) suffix.remove_prefix(kReplaced.size());
    if (suffix.starts_with(".tmp-")) result.kind = NameKind::kStale;
  }
  return result;
}

fs::path step_path(const fs::path& folder, uint64_t step) {
  return folder / fmt::format("step-{}", step);
}
fs::path with_suffix(const fs::path& path, std::string_view suffix) {
  return path.string() + std::string(suffix);
}
fs::path temporary_of(const fs::path& path) {
  return with_suffix(path, fmt::format(".tmp-{}", ::getpid()));
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorKind::kStorage, "{}: cannot list: {}", folder.string(), error.message());
  }
  return entries;
}

// Newest first.
std::vector<Candidate> candidates_in(const fs::path& folder) {
  std::vector<Candidate> found;
  for (const fs::path& path : entries_of(folder)) {
    const Name name = parse_name(path.filename().string());
    if (name.kind == NameKind::kCheckpoint) found.push_back({name.step, false, path});
    if (name.kind == NameKind::kReplaced) found.push_back({name.step, true, path});
  }
  std::ranges::sort(found, [](const Candidate& a, const Candidate& b) {
    return a.step != b.step ? a.step > b.step : a.replaced < b.replaced;
  });
  return found;
}

// ---- manifest ----

Json manifest_json(const Manifest& manifest) {
  Json tensors = Json::object();
  for (const auto& [name, record] : manifest.tensors) {
    tensors[name] = {{"dtype", safetensors_dtype(record.dtype)},
                     {"bytes", record.bytes},
                     {"xxh3", record.checksum}};
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"step", manifest.step},
          {"state", manifest.state},
          {"files", {{kTensorFile, manifest.tensor_file_bytes}}},
          {"tensors", std::move(tensors)}};
}

// The checksum is over the compact dump of the inner document, which parsing and dumping again
// reproduces.
void write_manifest(const fs::path& path, const Manifest& manifest) {
  const Json inner = manifest_json(manifest);
  const std::string text = to_text(inner);
  write_file_atomically(
      path, fmt::format("{{\"manifest\":{},\n\"xxh3\":\"{}\"}}\n", text, checksum_of(text)));
}

DType parse_record_dtype(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI64,
                            DType::kI32, DType::kI16, DType::kI8, DType::kU8, DType::kBool}) {
    if (safetensors_dtype(dtype) == name) return dtype;
  }
  fail(ErrorKind::kInput, "unknown dtype {}", name);
}

Manifest parse_manifest(const Json& document, const std::string& origin) {
  const Json& inner = document.at("manifest");
  if (inner.at("format") != kFormat) {
    fail(ErrorKind::kInput, "{}: format is {}, expected {}", origin, to_text(inner.at("format")),
         kFormat);
  }
  if (inner.at("version") != kVersion) {
    fail(ErrorKind::kInput, "{}: version is {}, this snug reads version {}", origin,
         to_text(inner.at("version")), kVersion);
  }
  const std::string stated = document.at("xxh3").get<std::string>();
  if (const std::string found = checksum_of(to_text(inner)); found != stated) {
    fail(ErrorKind::kInput, "{}: damaged, checksum is {}, expected {}", origin, found, stated);
  }
  Manifest manifest;
  manifest.step = inner.at("step").get<uint64_t>();
  manifest.state = inner.at("state");
  manifest.tensor_file_bytes = inner.at("files").at(kTensorFile).get<uint64_t>();
  for (const auto& [name, record] : inner.at("tensors").items()) {
    manifest.tensors[name] = {.dtype = parse_record_dtype(record.at("dtype").get<std::string>()),
                              .bytes = record.at("bytes").get<uint64_t>(),
                              .checksum = record.at("xxh3").get<std::string>()};
  }
  return manifest;
}

// The manifest, verified in itself and against the folder's name and the size of the tensor file.
Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestFile;
  const std::string origin = path.string();
  Manifest manifest;
  try {
    manifest = parse_manifest(parse_json(read_small_file(path), origin), origin);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kInput, "{}: not the manifest of a checkpoint: {}", origin, error.what());
  }
  const Name name = parse_name(checkpoint.filename().string());
  if (name.kind != NameKind::kForeign && name.step != manifest.step) {
    fail(ErrorKind::kInput, "{}: is of step {}, expected step {} from the folder's name", origin,
         manifest.step, name.step);
  }
  const InputFile tensors(checkpoint / kTensorFile);
  if (tensors.size() != manifest.tensor_file_bytes) {
    fail(ErrorKind::kInput, "{}: {} bytes, expected {}", tensors.path().string(), tensors.size(),
         manifest.tensor_file_bytes);
  }
  return manifest;
}

const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name,
                            const TensorRecord& record) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    fail(ErrorKind::kInput, "{}: has no tensor \"{}\"", file.path().string(), name);
  }
  if (entry->dtype != record.dtype || entry->bytes() != record.bytes) {
    fail(ErrorKind::kInput, "{}: tensor \"{}\" is {} bytes of {}, the manifest says {} of {}",
         file.path().string(), name, entry->bytes(), safetensors_dtype(entry->dtype), record.bytes,
         safetensors_dtype(record.dtype));
  }
  return *entry;
}

void check_checksum(const fs::path& file, const std::string& tensor, const std::string& found,
                    const std::string& expected) {
  if (found == expected) return;
  fail(ErrorKind::kInput, "{}: tensor \"{}\" is damaged, checksum is {}, expected {}",
       file.string(), tensor, found, expected);
}

// ---- changes to the folder, each with kill points around it ----

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

void rename_folder(const fs::path& from, const fs::path& to) {
  kill_point("checkpoint:before_rename");
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    fail(ErrorKind::kStorage, "{}: cannot rename to {}: {}", from.string(), to.filename().string(),
         error.message());
  }
  kill_point("checkpoint:after_rename");
  sync_directory(to.parent_path());
  kill_point("checkpoint:after_rename_sync");
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(ErrorKind::kStorage, "{}: cannot remove: {}", path.string(), error.message());
}

// The manifest goes first: a folder without one is no checkpoint, whatever else is still in it.
void remove_folder(const fs::path& path) {
  kill_point("checkpoint:before_unlink");
  remove_tree(path / kManifestFile);
  kill_point("checkpoint:after_unlink");
  remove_tree(path);
  kill_point("checkpoint:after_remove");
}

// Takes the name away before the contents, so that no half-removed folder is ever called step-N.
void retire(const fs::path& path) {
  const fs::path stale = with_suffix(path, ".tmp-retired");
  remove_tree(stale);
  rename_folder(path, stale);
  remove_folder(stale);
}

bool is_complete(const fs::path& checkpoint) {
  try {
    read_manifest(checkpoint);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Ends a replacement: forward where the new step-N is complete, back where it is not.
void settle_replaced(const fs::path& final_path) {
  const fs::path replaced = with_suffix(final_path, kReplaced);
  if (!is_there(replaced)) return;
  if (is_complete(final_path)) {
    retire(replaced);
  } else {
    if (is_there(final_path)) retire(final_path);
    rename_folder(replaced, final_path);
  }
}

// rename() cannot put a folder over one that is not empty, and step-N must never be missing without
// a stand-in.
void move_into_place(const fs::path& from, const fs::path& to) {
  settle_replaced(to);
  const fs::path replaced = with_suffix(to, kReplaced);
  const bool existed = is_there(to);
  if (existed) rename_folder(to, replaced);
  try {
    rename_folder(from, to);
  } catch (const Error&) {
    if (existed) settle_replaced(to);
    throw;
  }
}

// ---- saving ----

void check_free_space(const fs::path& folder, const CheckpointContents& contents) {
  // A header entry takes about 100 bytes beside the name, a manifest entry as much; twice the name
  // covers both.
  uint64_t needed = kSlackBytes + to_text(contents.state).size();
  for (const CheckpointTensor& tensor : contents.tensors) {
    needed += tensor.data.bytes + 2 * tensor.name.size() + 256;
  }
  const uint64_t available = available_bytes(folder);
  if (available >= needed) return;
  throw Error(ErrorKind::kStorage,
              fmt::format("{}: a checkpoint needs {} bytes, {} are free", folder.string(), needed,
                          available),
              "free some space, or keep fewer checkpoints");
}

Manifest write_tensors(const fs::path& path, const CheckpointContents& contents) {
  Manifest manifest{
      .step = contents.step, .state = contents.state, .tensor_file_bytes = 0, .tensors = {}};
  std::vector<TensorEntry> declared;
  for (const CheckpointTensor& tensor : contents.tensors) {
    SNUG_CHECK(tensor.data.bytes % dtype_bytes(tensor.dtype) == 0);
    declared.push_back({.name = tensor.name,
                        .dtype = tensor.dtype,
                        .shape = {int64_t(tensor.data.bytes / dtype_bytes(tensor.dtype))}});
  }
  SafetensorsWriter writer(path, std::move(declared), {{"format", kFormat}});
  std::vector<std::byte> buffer(kCheckpointBufferBytes);
  for (const CheckpointTensor& tensor : contents.tensors) {
    Checksum checksum;
    in_pieces(tensor.data.bytes, std::span(buffer), [&](size_t at, std::span<std::byte> piece) {
      tensor.data.read(at, piece);
      checksum.add(piece);
      writer.write_bytes(tensor.name, piece);
    });
    const TensorRecord record{tensor.dtype, tensor.data.bytes, checksum.text()};
    SNUG_CHECK(manifest.tensors.emplace(tensor.name, record).second);
  }
  writer.commit();
  manifest.tensor_file_bytes = writer.file_bytes();
  return manifest;
}

// Oldest first, so that an interruption leaves the newest. Damaged ones do not count towards
// `keep`.
void retire_older(const fs::path& folder, uint64_t step, int keep) {
  std::vector<fs::path> surplus;
  int kept = 1;
  for (const Candidate& candidate : candidates_in(folder)) {
    if (candidate.step >= step) continue;
    if (kept >= keep) {
      surplus.push_back(candidate.path);
    } else if (is_complete(candidate.path)) {
      ++kept;
    }
  }
  for (auto path = surplus.rbegin(); path != surplus.rend(); ++path) retire(*path);
}

void create_folder(const fs::path& folder) {
  if (is_there(folder)) return;
  make_directories(folder);
  sync_directory(folder.has_parent_path() ? folder.parent_path() : ".");
}

// A checkpoint folder under construction; removed when it does not reach its place.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {
    remove_tree(path_);
    kill_point("checkpoint:before_create");
    make_directories(path_);
    kill_point("checkpoint:after_create");
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // renamed away, or the disk fails: the next start cleans up
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// ---- loading ----

std::string checksum_in_file(const SafetensorsFile& file, const TensorEntry& tensor,
                             std::span<std::byte> buffer) {
  Checksum checksum;
  in_pieces(tensor.bytes(), buffer, [&](size_t at, std::span<std::byte> piece) {
    file.read_bytes(tensor, at, piece);
    checksum.add(piece);
  });
  return checksum.text();
}

// What the checkpoint holds and what the caller wants must be one list.
void check_wanted(const fs::path& checkpoint, const Manifest& manifest,
                  std::span<const CheckpointTensor> wanted) {
  for (const CheckpointTensor& tensor : wanted) {
    const auto record = manifest.tensors.find(tensor.name);
    if (record == manifest.tensors.end()) {
      fail(ErrorKind::kInput, "{}: has no tensor \"{}\"; is it of another model or optimizer?",
           checkpoint.string(), tensor.name);
    }
    const auto& [name, stored] = *record;
    if (stored.dtype != tensor.dtype || stored.bytes != tensor.data.bytes) {
      fail(ErrorKind::kInput, "{}: tensor \"{}\" is {} bytes of {}, expected {} of {}",
           checkpoint.string(), name, stored.bytes, safetensors_dtype(stored.dtype),
           tensor.data.bytes, safetensors_dtype(tensor.dtype));
    }
  }
  for (const auto& [name, record] : manifest.tensors) {
    if (std::ranges::find(wanted, name, &CheckpointTensor::name) == wanted.end()) {
      fail(ErrorKind::kInput, "{}: holds tensor \"{}\", which this run does not have",
           checkpoint.string(), name);
    }
  }
}

}  // namespace

void save_checkpoint(const fs::path& folder, const CheckpointContents& contents, int keep) {
  if (keep < 1) fail(ErrorKind::kUsage, "{} checkpoints to keep, expected at least 1", keep);
  create_folder(folder);
  check_free_space(folder, contents);
  const fs::path final_path = step_path(folder, contents.step);
  const TemporaryFolder temporary(temporary_of(final_path));
  const Manifest manifest = write_tensors(temporary.path() / kTensorFile, contents);
  write_manifest(temporary.path() / kManifestFile, manifest);
  move_into_place(temporary.path(), final_path);
  // Nothing older goes before what replaces it has been read back.
  read_manifest(final_path);
  settle_replaced(final_path);
  retire_older(folder, contents.step, keep);
}

void verify_checkpoint(const fs::path& checkpoint) {
  const Manifest manifest = read_manifest(checkpoint);
  const SafetensorsFile file(checkpoint / kTensorFile);
  if (file.tensors().size() != manifest.tensors.size()) {
    fail(ErrorKind::kInput, "{}: {} tensors, the manifest lists {}", file.path().string(),
         file.tensors().size(), manifest.tensors.size());
  }
  Progress progress("verifying " + checkpoint.filename().string(), manifest.tensor_file_bytes,
                    "bytes");
  std::vector<std::byte> buffer(kCheckpointBufferBytes);
  for (const auto& [name, record] : manifest.tensors) {
    const TensorEntry& entry = entry_of(file, name, record);
    check_checksum(file.path(), name, checksum_in_file(file, entry, buffer), record.checksum);
    progress.update(entry.end);
  }
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  for (const Candidate& candidate : candidates_in(folder)) {
    try {
      verify_checkpoint(candidate.path);
      return candidate.path;
    } catch (const Error& error) {
      warn(fmt::format("passing over checkpoint {}: {}", candidate.path.filename().string(),
                       error.what()));
    }
  }
  return std::nullopt;
}

uint64_t read_checkpoint_step(const fs::path& checkpoint) { return read_manifest(checkpoint).step; }
Json read_checkpoint_state(const fs::path& checkpoint) { return read_manifest(checkpoint).state; }

void load_checkpoint_tensors(const fs::path& checkpoint,
                             std::span<const CheckpointTensor> tensors) {
  const Manifest manifest = read_manifest(checkpoint);
  check_wanted(checkpoint, manifest, tensors);
  const SafetensorsFile file(checkpoint / kTensorFile);
  Progress progress("loading " + checkpoint.filename().string(), manifest.tensor_file_bytes,
                    "bytes");
  std::vector<std::byte> buffer(kCheckpointBufferBytes);
  for (const CheckpointTensor& tensor : tensors) {
    const TensorRecord& record = manifest.tensors.at(tensor.name);
    const TensorEntry& entry = entry_of(file, tensor.name, record);
    Checksum checksum;
    in_pieces(tensor.data.bytes, std::span(buffer), [&](size_t at, std::span<std::byte> piece) {
      file.read_bytes(entry, at, piece);
      checksum.add(piece);
      tensor.data.write(at, piece);
    });
    check_checksum(file.path(), tensor.name, checksum.text(), record.checksum);
    progress.update(entry.end);
  }
}

void clean_stale(const fs::path& folder) {
  for (const Candidate& candidate : candidates_in(folder)) {
    if (candidate.replaced) settle_replaced(step_path(folder, candidate.step));
  }
  for (const fs::path& path : entries_of(folder)) {
    if (parse_name(path.filename().string()).kind == NameKind::kStale) remove_folder(path);
  }
}

}  // namespace snug
