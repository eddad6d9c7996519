#include "model/torch_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace snug {
namespace {

constexpr std::string_view kZipStart = "PK\x03\x04";
// A pickle of the number that legacy files begin with.
constexpr std::string_view kLegacyStart("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                        15);
constexpr int64_t kLegacyVersion = 1001;
constexpr const char* kSaveAgain =
    "save the model again with a current PyTorch or transformers, better as safetensors";

std::string first_bytes(const InputFile& file, size_t most) {
  std::string start(most, '\0');
  start.resize(file.read_some(0, start.data(), start.size()));
  return start;
}

[[noreturn]] void refuse_format(const InputFile& file, std::string_view start) {
  const std::string path = file.path().string();
  if (start.starts_with("version https://git-lfs")) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: is a Git LFS pointer, not the file itself", path),
                "fetch it: git lfs pull");
  }
  if (start.starts_with("PK")) {
    fail(ErrorKind::kInput, "{}: begins like a zip archive but not with a record", path);
  }
  throw Error(ErrorKind::kInput,
              fmt::format("{}: is neither a zip archive nor a legacy file of torch.save", path),
              kSaveAgain);
}

const PickleValue* find_item(const Unpickler& pickle, const PickleValue& dict,
                             std::string_view key) {
  for (size_t i = 0; dict.kind == PickleKind::kDict && i < dict.items.size(); i += 2) {
    if (pickle.at(dict.items[i]).text == key) return &pickle.at(dict.items[i + 1]);
  }
  return nullptr;
}

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& path) : file_(path) {
  const std::string start = first_bytes(file_, 64);
  if (start.starts_with(kZipStart)) {
    open_zip();
  } else if (start.starts_with(kLegacyStart)) {
    open_legacy();
  } else {
    refuse_format(file_, start);
  }
  list_.sort_names(path.string());
}

// Records lie in a folder of the archive that is named as the writer pleased.
void TorchFile::open_zip() {
  const std::string path = file_.path().string();
  archive_.emplace(file_);
  verified_.resize(archive_->records().size());
  const auto is_pickle = [](const ZipRecord& record) {
    return record.name == "data.pkl" || record.name.ends_with("/data.pkl");
  };
  const auto& records = archive_->records();
  const auto pickle = std::ranges::find_if(records, is_pickle);
  if (pickle == records.end() || std::ranges::count_if(records, is_pickle) != 1) {
    fail(ErrorKind::kInput, "{}: expected one record data.pkl, as torch.save writes it", path);
  }
  const std::string folder =
      pickle->name.substr(0, pickle->name.size() - std::string_view("data.pkl").size());
  if (archive_->find(folder + "constants.pkl") != nullptr) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: is a TorchScript program; only state dicts are read", path),
                kSaveAgain);
  }
  if (const ZipRecord* const order = archive_->find(folder + "byteorder")) {
    archive_->verify(*order);
    std::string text(size_t(std::min<uint64_t>(order->bytes, 16)), '\0');
    file_.read_exactly(order->offset, text.data(), text.size());
    if (text != "little") {
      throw Error(ErrorKind::kInput,
                  fmt::format("{}: byteorder is {}, supported: little", path, in_quotes(text)),
                  kSaveAgain);
    }
  }
  archive_->verify(*pickle);
  Unpickler unpickler(
      [&](uint64_t offset, std::span<std::byte> out) {
        const size_t count =
            size_t(std::min<uint64_t>(out.size(), pickle->bytes - std::min(offset, pickle->bytes)));
        file_.read_exactly(pickle->offset + offset, out.data(), count);
        return count;
      },
      fmt::format("{}: {}", path, in_quotes(pickle->name)));
  const PickleValue& root = unpickler.load();
  if (unpickler.position() != pickle->bytes) {
    fail(ErrorKind::kInput, "{}: {} bytes behind the pickle in {}", path,
         pickle->bytes - unpickler.position(), in_quotes(pickle->name));
  }
  add_tensors(unpickler, root, [&](const PickleStorage& storage) {
    const std::string name = folder + "data/" + storage.key;
    const ZipRecord* const record = archive_->find(name);
    if (record == nullptr) {
      fail(ErrorKind::kInput, "{}: record {} is missing", path, in_quotes(name));
    }
    return Place{record->offset, record->bytes, record};
  });
}

// Pickles of a number, of the version, of facts about the writer, of the state dict and of the
// storages' keys; then for each key the number of its elements, and the elements.
void TorchFile::open_legacy() {
  const std::string path = file_.path().string();
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    return offset < file_.size() ? file_.read_some(offset, out.data(), out.size()) : 0;
  };
  Unpickler header(read, path, kLegacyStart.size());
  if (const PickleValue& version = header.load();
      version.kind != PickleKind::kInteger || version.number != kLegacyVersion) {
    fail(ErrorKind::kInput, "{}: a legacy file of torch.save, but not of version {}", path,
         kLegacyVersion);
  }
  const PickleValue& facts = header.load();
  const PickleValue* const little = find_item(header, facts, "little_endian");
  if (little == nullptr || little->kind != PickleKind::kBool || little->number != 1) {
    throw Error(
        ErrorKind::kInput,
        fmt::format(
            "{}: a legacy file of torch.save written on a big-endian machine, which is not read",
            path),
        kSaveAgain);
  }
  Unpickler object(read, path, header.position());
  const PickleValue& root = object.load();
  Unpickler list(read, path, object.position());
  list.load();
  const std::map<std::string, Place> places = legacy_places(list, object.storages());
  add_tensors(object, root, [&](const PickleStorage& storage) {
    const auto place = places.find(storage.key);
    if (place == places.end()) {
      fail(ErrorKind::kInput, "{}: storage {} is missing", path, in_quotes(storage.key));
    }
    return place->second;
  });
}

// `list` has read the storages' keys, behind which the storages lie.
std::map<std::string, TorchFile::Place> TorchFile::legacy_places(
    const Unpickler& list, std::span<const PickleStorage> storages) const {
  const std::string path = file_.path().string();
  std::map<std::string_view, const PickleStorage*> by_key;
  for (const PickleStorage& storage : storages) by_key[storage.key] = &storage;
  std::map<std::string, Place> places;
  uint64_t position = list.position();
  const auto expect = [&](uint64_t bytes, std::string_view key) {
    if (bytes <= file_.size() - position) return;
    fail(ErrorKind::kInput, "{}: storage {} at byte {} has {} bytes, but the file ends at {}", path,
         in_quotes(key), position, bytes, file_.size());
  };
  const PickleValue& keys = list.result();
  if (keys.kind != PickleKind::kList) {
    fail(ErrorKind::kInput, "{}: the list of storages is {}", path, pickle_kind_name(keys.kind));
  }
  for (const uint32_t index : keys.items) {
    const PickleValue& key = list.at(index);
    const auto known = by_key.find(key.text);
    if (key.kind != PickleKind::kText || known == by_key.end()) {
      fail(ErrorKind::kInput, "{}: holds a storage {} that no tensor uses", path,
           in_quotes(key.text));
    }
    const PickleStorage& storage = *known->second;
    uint64_t elements = 0;
    expect(sizeof(elements), key.text);
    file_.read_exactly(position, &elements, sizeof(elements));
    position += sizeof(elements);
    if (elements != storage.whole) {
      fail(ErrorKind::kInput, "{}: storage {} holds {} elements, but its tensors say {}", path,
           in_quotes(key.text), elements, storage.whole);
    }
    const uint64_t bytes = elements * dtype_bytes(storage.dtype);
    expect(bytes, key.text);
    if (!places.try_emplace(key.text, Place{position, bytes}).second) {
      fail(ErrorKind::kInput, "{}: holds storage {} twice", path, in_quotes(key.text));
    }
    position += bytes;
  }
  if (position != file_.size()) {
    fail(ErrorKind::kInput, "{}: {} bytes behind the last storage", path, file_.size() - position);
  }
  return places;
}

void TorchFile::add_tensors(const Unpickler& unpickler, const PickleValue& root,
                            const FindPlace& find) {
  const std::string path = file_.path().string();
  if (root.kind != PickleKind::kDict && root.kind != PickleKind::kOrderedDict) {
    throw Error(
        ErrorKind::kInput,
        fmt::format("{}: holds {}, expected a state dict", path, pickle_kind_name(root.kind)),
        kSaveAgain);
  }
  for (size_t i = 0; i < root.items.size(); i += 2) {
    const PickleValue &key = unpickler.at(root.items[i]), &value = unpickler.at(root.items[i + 1]);
    if (key.kind != PickleKind::kText || value.kind != PickleKind::kTensor) {
      throw Error(
          ErrorKind::kInput,
          fmt::format(
              "{}: entry {} is {}, expected a tensor: only state dicts are read", path,
              key.kind == PickleKind::kText ? in_quotes(key.text) : std::to_string(key.number),
              pickle_kind_name(value.kind)),
          kSaveAgain);
    }
    const PickleTensor& tensor = unpickler.tensors()[size_t(value.number)];
    const PickleStorage& storage = unpickler.storages()[tensor.storage];
    const size_t width = dtype_bytes(storage.dtype);
    const Place place = find(storage);
    if (place.bytes != storage.whole * width) {
      fail(ErrorKind::kInput,
           "{}: tensor {}: its storage {} has {} elements of {}, but {} bytes are there", path,
           in_quotes(key.text), in_quotes(storage.key), storage.whole, dtype_name(storage.dtype),
           place.bytes);
    }
    const TensorView view{place.offset + (storage.first + tensor.first) * width, width,
                          tensor.shape, tensor.strides};
    list_.tensors.push_back({key.text, storage.dtype, tensor.shape, view.offset,
                             view.offset + view.elements() * width});
    views_.push_back(view);
    records_.push_back(place.record);
  }
}

void TorchFile::read_elements(const TensorEntry& tensor, uint64_t first_byte,
                              std::span<std::byte> out) const {
  const auto index = size_t(&tensor - list_.tensors.data());
  const TensorView& view = views_[index];
  if (const ZipRecord* const record = records_[index]) {
    const auto number = size_t(record - archive_->records().data());
    if (!verified_[number]) archive_->verify(*record);
    verified_[number] = true;
  }
  read_view(file_, view, first_byte / view.width, out);
  if (view.is_contiguous()) file_.drop_cache(view.offset + first_byte, out.size());
}

}  // namespace snug
