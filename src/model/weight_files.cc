#include "model/weight_files.h"

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "model/safetensors.h"
#include "model/tf_checkpoint.h"
#include "model/torch_file.h"

namespace snug {
namespace {

constexpr uint64_t kMaxIndexBytes = 32 << 20;
constexpr std::string_view kSafetensors = ".safetensors", kTorch = ".bin";

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

[[noreturn]] void no_weights(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    fail(ErrorKind::kInput, "{}: no such model folder", folder.string());
  }
  std::vector<std::string> found;
  for (const char* name : {"tf_model.h5", "flax_model.msgpack"}) {
    if (is_there(folder / name)) found.emplace_back(name);
  }
  for (const char* name : {"bert_model.ckpt", "model.ckpt"}) {
    if (is_there(folder / name)) {
      found.push_back(fmt::format("{} (TensorFlow's format before 2016)", name));
    }
  }
  std::string message = fmt::format(
      "{}: no model.safetensors, pytorch_model.bin or bert_model.ckpt.index", folder.string());
  if (found.empty()) {
    throw Error(ErrorKind::kInput, message, "give the folder of a Hugging Face model");
  }
  throw Error(
      ErrorKind::kInput,
      fmt::format("{}; found {}, which snug does not read", message, fmt::join(found, ", ")),
      "convert it: load it with transformers' from_pretrained and write it with "
      "save_pretrained(folder, safe_serialization=True)");
}

constexpr std::string_view kIndexEnd = ".index";

// What the name of a TensorFlow checkpoint in the folder begins with; empty where there is none.
// Training writes model.ckpt-STEP.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder) {
  for (const char* name : {"bert_model.ckpt", "model.ckpt"}) {
    if (is_there(folder / (name + std::string(kIndexEnd)))) return folder / name;
  }
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model.ckpt-") && name.ends_with(kIndexEnd)) {
      found.push_back(name.substr(0, name.size() - kIndexEnd.size()));
    }
  }
  std::ranges::sort(found);
  if (found.size() > 1) {
    throw Error(
        ErrorKind::kInput,
        fmt::format("{}: holds several checkpoints: {}", folder.string(), fmt::join(found, ", ")),
        "copy the one that you want, with its .data files, into a folder of its own");
  }
  return found.empty() ? std::filesystem::path() : folder / found[0];
}

// `extension` tells the format.
std::unique_ptr<TensorFile> open_file(const std::filesystem::path& path,
                                      std::string_view extension) {
  if (extension == kTorch) return std::make_unique<TorchFile>(path);
  return std::make_unique<SafetensorsFile>(path);
}

// Only a bare name: separators, "..", absolute paths and the like never reach the file system.
void check_shard_name(const std::string& name, const std::string& tensor, const std::string& origin,
                      std::string_view extension) {
  const bool bare = !name.empty() && name[0] != '.' &&
                    name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
  if (!bare || !name.ends_with(extension)) {
    fail(ErrorKind::kInput,
         "{}: tensor \"{}\" is in file \"{}\", expected the name of a {} file in the same folder",
         origin, tensor, name.c_str(), extension);
  }
}

const Json& weight_map_of(const Json& index, const std::string& origin) {
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(ErrorKind::kInput, "{}: has no object \"weight_map\" from tensor to file", origin);
  }
  return index["weight_map"];
}

// Writers store the sum of the tensors' bytes; some store it as a float, and some count tied
// tensors, which share their bytes, once. Absent is fine.
void check_total_size(const Json& index, uint64_t actual, uint64_t without_tied,
                      const std::string& origin) {
  const auto metadata = index.find("metadata");
  if (metadata == index.end() || metadata->is_null()) return;
  if (!metadata->is_object()) {
    fail(ErrorKind::kInput, "{}: metadata is {}, expected an object", origin,
         metadata->type_name());
  }
  if (!metadata->contains("total_size")) return;
  const Json& stated = (*metadata)["total_size"];
  if (!stated.is_number() || (stated != actual && stated != without_tied)) {
    fail(ErrorKind::kInput, "{}: total_size is {}, but the listed tensors take {} bytes", origin,
         stated.dump(), actual);
  }
}

}  // namespace

WeightFolder::WeightFolder(const std::filesystem::path& folder) : folder_(folder) {
  if (is_there(folder / "model.safetensors") || !is_adapter_folder(folder)) {
    open(folder);
    return;
  }
  adapter_ = std::make_unique<AdapterFolder>(folder);
  open(adapter_->base());
  add_replacements();
}

WeightFolder::WeightFolder(const std::filesystem::path& model, const std::filesystem::path& adapter)
    : folder_(model), adapter_(std::make_unique<AdapterFolder>(adapter)) {
  open(model);
  add_replacements();
}

void WeightFolder::add_replacements() {
  for (const TensorEntry& tensor : adapter_->replacements()) {
    places_[tensor.name] = {kInAdapter, &tensor};
  }
}

void WeightFolder::open(const std::filesystem::path& folder) {
  // A single file wins over an index, as it does in transformers.
  for (const auto& [name, extension] :
       {std::pair{"model", kSafetensors}, {"pytorch_model", kTorch}}) {
    const std::filesystem::path file = folder / (name + std::string(extension)),
                                index = file.string() + ".index.json";
    if (is_there(file)) return open_single(open_file(file, extension));
    if (is_there(index)) return open_shards(index, extension);
  }
  const std::filesystem::path checkpoint = find_checkpoint(folder);
  if (checkpoint.empty()) no_weights(folder);
  open_single(std::make_unique<TfCheckpoint>(checkpoint));
}

void WeightFolder::open_single(std::unique_ptr<TensorFile> file) {
  files_.push_back(std::move(file));
  for (const TensorEntry& tensor : files_[0]->tensors()) places_[tensor.name] = {0, &tensor};
}

void WeightFolder::open_shards(const std::filesystem::path& index_path,
                               std::string_view extension) {
  const std::string origin = index_path.string();
  const Json index = parse_json(read_small_file(index_path, kMaxIndexBytes), origin);
  std::map<std::string, size_t> opened;
  for (const auto& [name, file] : weight_map_of(index, origin).items()) {
    if (!file.is_string()) {
      fail(ErrorKind::kInput, "{}: tensor \"{}\" is in {}, expected a file name", origin, name,
           file.dump());
    }
    const std::string& shard = file.get_ref<const std::string&>();
    const auto [at, is_new] = opened.try_emplace(shard, files_.size());
    if (is_new) {
      check_shard_name(shard, name, origin, extension);
      if (!is_there(index_path.parent_path() / shard)) {
        fail(ErrorKind::kInput, "{}: shard {} is missing, expected beside it for tensor \"{}\"",
             origin, shard, name);
      }
      files_.push_back(open_file(index_path.parent_path() / shard, extension));
    }
    const TensorEntry* tensor = files_[at->second]->find(name);
    if (tensor == nullptr) {
      fail(ErrorKind::kInput, "{}: lists tensor \"{}\" in {}, which does not hold it", origin, name,
           shard);
    }
    places_[tensor->name] = {at->second, tensor};
  }
  std::map<std::pair<size_t, uint64_t>, uint64_t> distinct;  // bytes by file and place
  for (const auto& [name, place] : places_) {
    distinct[{place.file, place.tensor->begin}] = place.tensor->bytes();
  }
  uint64_t without_tied = 0;
  for (const auto& [place, bytes] : distinct) without_tied += bytes;
  check_total_size(index, tensor_bytes(), without_tied, origin);
}

const TensorEntry* WeightFolder::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : place->second.tensor;
}

std::vector<std::string_view> WeightFolder::names() const {
  std::vector<std::string_view> names;
  names.reserve(places_.size());
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

uint64_t WeightFolder::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, place] : places_) bytes += place.tensor->bytes();
  return bytes;
}

const WeightFolder::Place& WeightFolder::place(std::string_view name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) {
    fail(ErrorKind::kInput, "{}: has no tensor \"{}\"", folder_.string(), name);
  }
  return place->second;
}

void WeightFolder::read_as_f32(std::string_view name, uint64_t first_element, std::span<float> out,
                               NonFinite policy) const {
  const auto& [file, tensor] = place(name);
  if (file == kInAdapter) return adapter_->file().read_as_f32(*tensor, first_element, out, policy);
  files_[file]->read_as_f32(*tensor, first_element, out, policy);
  if (adapter_) adapter_->add_to(*tensor, first_element, out);
}

void WeightFolder::read_bytes(std::string_view name, uint64_t first_byte,
                              std::span<std::byte> out) const {
  if (adapter_) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: an adapter can only be added to weights in floating point",
                            folder_.string()),
                "snug merge makes one model of it and the folder that int8 weights were made from; "
                "that can be quantised");
  }
  const auto& [file, tensor] = place(name);
  files_[file]->read_bytes(*tensor, first_byte, out);
}

}  // namespace snug
