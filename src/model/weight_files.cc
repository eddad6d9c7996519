#include "model/weight_files.h"

#include "core/error.h"
#include "core/json.h"

namespace snug {
namespace {

constexpr uint64_t kMaxIndexBytes = 32 << 20;

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

[[noreturn]] void no_safetensors(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    fail(ErrorKind::kInput, "{}: no such model folder", folder.string());
  }
  std::vector<std::string> found;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                           "flax_model.msgpack", "bert_model.ckpt.index", "model.ckpt.index"}) {
    if (is_there(folder / name)) found.emplace_back(name);
  }
  std::string message =
      fmt::format("{}: no model.safetensors (or model.safetensors.index.json)", folder.string());
  if (found.empty())
    throw Error(ErrorKind::kInput, message, "give the folder of a Hugging Face model");
  throw Error(
      ErrorKind::kInput,
      fmt::format("{}; found {}, which snug does not read", message, fmt::join(found, ", ")),
      "convert it: load it with transformers' from_pretrained and write it with "
      "save_pretrained(folder, safe_serialization=True)");
}

// Only a bare name: separators, "..", absolute paths and the like never reach the file system.
void check_shard_name(const std::string& name, const std::string& tensor,
                      const std::string& origin) {
  const bool bare = !name.empty() && name[0] != '.' &&
                    name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
  if (!bare || !name.ends_with(".safetensors")) {
    fail(ErrorKind::kInput,
         "{}: tensor \"{}\" is in file \"{}\", expected the name of a .safetensors file in the "
         "same folder",
         origin, tensor, name.c_str());
  }
}

const Json& weight_map_of(const Json& index, const std::string& origin) {
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(ErrorKind::kInput, "{}: has no object \"weight_map\" from tensor to file", origin);
  }
  return index["weight_map"];
}

// Writers store the sum of the tensors' bytes; some store it as a float. Absent is fine.
void check_total_size(const Json& index, uint64_t actual, const std::string& origin) {
  const auto metadata = index.find("metadata");
  if (metadata == index.end() || !metadata->is_object() || !metadata->contains("total_size"))
    return;
  const Json& stated = (*metadata)["total_size"];
  if (!stated.is_number() || stated != actual) {
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
  for (const TensorEntry& tensor : adapter_->replacements()) places_[tensor.name] = {kInAdapter, &tensor};
}

void WeightFolder::open(const std::filesystem::path& folder) {
  // The single file wins over an index, as it does in transformers.
  if (is_there(folder / "model.safetensors")) {
    open_single(folder / "model.safetensors");
  } else if (is_there(folder / "model.safetensors.index.json")) {
    open_shards(folder / "model.safetensors.index.json");
  } else {
    no_safetensors(folder);
  }
}

void WeightFolder::open_single(const std::filesystem::path& path) {
  files_.emplace_back(path);
  for (const TensorEntry& tensor : files_[0].tensors()) places_[tensor.name] = {0, &tensor};
}

void WeightFolder::open_shards(const std::filesystem::path& index_path) {
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
      check_shard_name(shard, name, origin);
      if (!is_there(index_path.parent_path() / shard)) {
        fail(ErrorKind::kInput, "{}: shard {} is missing, expected beside it for tensor \"{}\"",
             origin, shard, name);
      }
      files_.emplace_back(index_path.parent_path() / shard);
    }
    const TensorEntry* tensor = files_[at->second].find(name);
    if (tensor == nullptr) {
      fail(ErrorKind::kInput, "{}: lists tensor \"{}\" in {}, which does not hold it", origin, name,
           shard);
    }
    places_[tensor->name] = {at->second, tensor};
  }
  check_total_size(index, tensor_bytes(), origin);
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
  files_[file].read_as_f32(*tensor, first_element, out, policy);
  if (adapter_) adapter_->add_to(*tensor, first_element, out);
}

void WeightFolder::read_bytes(std::string_view name, uint64_t first_byte, std::span<std::byte> out) const {
  if (adapter_) {
    throw Error(ErrorKind::kInput, fmt::format("{}: an adapter can only be added to weights in floating point", folder_.string()),
                "snug merge makes one model of it and the folder that int8 weights were made from; that can be quantised");
  }
  const auto& [file, tensor] = place(name);
  files_[file].read_bytes(*tensor, first_byte, out);
}

}  // namespace snug
