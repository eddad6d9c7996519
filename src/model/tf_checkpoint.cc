#include "model/tf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/wire_reader.h"
#include "model/sorted_table.h"

namespace snug {
namespace {

constexpr uint64_t kMaxIndexBytes = 16 << 20, kMaxShards = 1000;

struct TfType {
  uint64_t number;
  DType dtype;
};
constexpr TfType kTypes[] = {
    {1, DType::kF32}, {2, DType::kF64}, {3, DType::kI32},   {4, DType::kU8},    {5, DType::kI16},
    {6, DType::kI8},  {9, DType::kI64}, {10, DType::kBool}, {14, DType::kBF16}, {19, DType::kF16}};
constexpr uint64_t kTextType = 7;

// BundleEntryProto.
struct Entry {
  uint64_t type = 0, shard = 0, offset = 0, bytes = 0;
  std::vector<int64_t> shape;
  uint32_t crc32c = 0;
  bool sliced = false;
};

// each(field) for the fields of a message; false where it is broken.
template <class Each>
bool over_fields(std::string_view message, const Each& each) {
  while (!message.empty()) {
    const auto field = take_field(message);
    if (!field || !each(*field)) return false;
  }
  return true;
}

bool parse_shape(std::string_view message, std::vector<int64_t>& shape) {
  return over_fields(message, [&](const WireField& field) {
    if (field.number == 3) return field.value == 0;  // rank unknown
    if (field.number != 2) return true;
    int64_t extent = 0;
    const bool whole = over_fields(field.bytes, [&](const WireField& inner) {
      if (inner.number == 1) extent = int64_t(inner.value);
      return true;
    });
    shape.push_back(extent);
    return whole && extent >= 0 && shape.size() <= kMaxRank;
  });
}

std::optional<Entry> parse_entry(std::string_view message) {
  Entry entry;
  const bool whole = over_fields(message, [&](const WireField& field) {
    switch (field.number) {
      case 1:
        entry.type = field.value;
        return true;
      case 2:
        return parse_shape(field.bytes, entry.shape);
      case 3:
        entry.shard = field.value;
        return true;
      case 4:
        entry.offset = field.value;
        return true;
      case 5:
        entry.bytes = field.value;
        return true;
      case 6:
        entry.crc32c = uint32_t(field.value);
        return true;
      case 7:
        entry.sliced = true;
        return true;
      default:
        return true;
    }
  });
  return whole ? std::optional(entry) : std::nullopt;
}

std::vector<std::string> split(std::string_view key) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('/', begin), key.size());
    parts.emplace_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// layer_11 is a module in a list.
std::string module_name(const std::string& part) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const size_t line = part.find('_');
  if (line == 0 || line == part.npos || line + 1 == part.size()) return part;
  const bool counted = std::all_of(part.begin(), part.begin() + ptrdiff_t(line), is_letter) &&
                       std::all_of(part.begin() + ptrdiff_t(line) + 1, part.end(), is_digit);
  return counted ? part.substr(0, line) + "." + part.substr(line + 1) : part;
}

}  // namespace

std::optional<TfName> model_name(std::string_view key) {
  constexpr std::string_view kOptimizers[] = {
      "adam_v", "adam_m",     "AdamWeightDecayOptimizer", "AdamWeightDecayOptimizer_1", "Adam",
      "Adam_1", "global_step"};
  struct Last {
    std::string_view theirs, ours;
  };
  constexpr Last kLast[] = {{"kernel", "weight"},
                            {"gamma", "weight"},
                            {"output_weights", "weight"},
                            {"beta", "bias"},
                            {"output_bias", "bias"}};
  std::vector<std::string> parts = split(key);
  for (const std::string& part : parts) {
    if (std::ranges::find(kOptimizers, part) != std::end(kOptimizers)) return std::nullopt;
  }
  TfName result{.name = {}, .transposed = parts.back() == "kernel"};
  // The heads of Google's run_classifier.py and run_squad.py.
  if (parts.size() == 1 && parts[0].starts_with("output_")) result.name = "classifier.";
  if (parts.size() == 3 && parts[0] == "cls" && parts[1] == "squad") {
    result.name = "qa_outputs.";
    parts.erase(parts.begin(), parts.begin() + 2);
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) result.name += module_name(parts[i]) + ".";
  const auto last = std::ranges::find(kLast, parts.back(), &Last::theirs);
  result.name += last == std::end(kLast) ? module_name(parts.back()) : std::string(last->ours);
  if (parts.back().ends_with("_embeddings")) result.name += ".weight";
  return result;
}

TfCheckpoint::TfCheckpoint(const std::filesystem::path& prefix)
    : prefix_(prefix), index_(prefix.string() + ".index") {
  const std::string file = read_small_file(index_, kMaxIndexBytes);
  const std::vector<TableEntry> entries = read_sorted_table(file, index_.string());
  if (entries.empty() || !entries[0].key.empty()) {
    fail(ErrorKind::kInput, "{}: the header is missing", index_.string());
  }
  read_header(entries[0].value);
  for (size_t i = 1; i < entries.size(); ++i) add_variable(entries[i].key, entries[i].value);
  list_.sort_names(index_.string());
  verified_.resize(variables_.size());
}

// BundleHeaderProto: 1 number of shards, 2 byte order, 3 version.
void TfCheckpoint::read_header(std::string_view message) {
  bool big_endian = false;
  const bool whole = over_fields(message, [&](const WireField& field) {
    if (field.number == 1) num_shards_ = field.value;
    if (field.number == 2) big_endian = field.value != 0;
    return true;
  });
  const std::string path = index_.string();
  if (!whole) fail(ErrorKind::kInput, "{}: the header is broken", path);
  if (big_endian) {
    fail(ErrorKind::kInput, "{}: was written on a big-endian machine, which is not supported",
         path);
  }
  if (num_shards_ < 1 || num_shards_ > kMaxShards) {
    fail(ErrorKind::kInput, "{}: says that there are {} files of data, supported: 1 to {}", path,
         num_shards_, kMaxShards);
  }
}

void TfCheckpoint::add_variable(const std::string& key, std::string_view message) {
  const std::string where = fmt::format("{}: variable {}", index_.string(), in_quotes(key));
  if (key == "_CHECKPOINTABLE_OBJECT_GRAPH" || key.ends_with("/.ATTRIBUTES/VARIABLE_VALUE")) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: a checkpoint of objects (TensorFlow 2) is not supported", where),
                "supported: bert_model.ckpt as Google published BERT; others load with "
                "transformers, which writes safetensors");
  }
  const std::optional<Entry> entry = parse_entry(message);
  if (!entry) fail(ErrorKind::kInput, "{}: its entry is broken", where);
  const std::optional<TfName> name = model_name(key);
  if (entry->type == kTextType || !name) return;
  if (entry->sliced) {
    fail(ErrorKind::kInput, "{}: is stored in slices, which is not supported", where);
  }
  const auto type = std::ranges::find(kTypes, entry->type, &TfType::number);
  if (type == std::end(kTypes)) {
    fail(ErrorKind::kInput, "{}: unsupported data type {}", where, entry->type);
  }
  const uint64_t width = dtype_bytes(type->dtype);
  uint64_t bytes = width;
  bool overflow = false;
  for (const int64_t extent : entry->shape) {
    overflow |= __builtin_mul_overflow(bytes, uint64_t(extent), &bytes);
  }
  if (overflow || bytes != entry->bytes) {
    fail(ErrorKind::kInput, "{}: {} of shape {} does not take {} bytes", where,
         dtype_name(type->dtype), format_shape(entry->shape), entry->bytes);
  }
  const InputFile& data = shard(entry->shard, key);
  if (entry->offset > data.size() || bytes > data.size() - entry->offset) {
    fail(ErrorKind::kInput, "{}: {} bytes at byte {} reach behind the end of {}", where, bytes,
         entry->offset, data.path().string());
  }
  TensorView view{
      .offset = entry->offset, .width = size_t(width), .shape = entry->shape, .strides = {}};
  view.strides.resize(view.shape.size());
  uint64_t stride = 1;  // may wrap around where an extent is zero, and then means nothing
  for (size_t d = view.shape.size(); d-- > 0; stride *= uint64_t(view.shape[d])) {
    view.strides[d] = int64_t(stride);
  }
  if (name->transposed && view.shape.size() == 2) {
    std::swap(view.shape[0], view.shape[1]);
    std::swap(view.strides[0], view.strides[1]);
  }
  list_.tensors.push_back(
      {name->name, type->dtype, view.shape, entry->offset, entry->offset + bytes});
  variables_.push_back(
      {key, &data, std::move(view), entry->offset, bytes, unmasked_crc32c(entry->crc32c)});
}

const InputFile& TfCheckpoint::shard(uint64_t number, const std::string& key) {
  if (number >= num_shards_) {
    fail(ErrorKind::kInput, "{}: variable {} is in file {} of {}", index_.string(), in_quotes(key),
         number, num_shards_);
  }
  const std::filesystem::path path =
      fmt::format("{}.data-{:05}-of-{:05}", prefix_.string(), number, num_shards_);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    fail(ErrorKind::kInput, "{}: is missing, expected for variable {}", path.string(),
         in_quotes(key));
  }
  return shards_.try_emplace(number, path).first->second;
}

void TfCheckpoint::verify(const Variable& variable) const {
  std::vector<std::byte> buffer(kTensorBufferBytes);
  uint32_t crc = 0;
  for (uint64_t done = 0; done < variable.bytes;) {
    const auto piece =
        std::span(buffer).first(size_t(std::min<uint64_t>(buffer.size(), variable.bytes - done)));
    variable.shard->read_exactly(variable.offset + done, piece.data(), piece.size());
    crc = crc32c(piece, crc);
    done += piece.size();
  }
  if (crc == variable.crc32c) return;
  throw Error(
      ErrorKind::kInput,
      fmt::format("{}: variable {} is damaged: its checksum is {:08x}, expected {:08x}",
                  variable.shard->path().string(), in_quotes(variable.key), crc, variable.crc32c),
      "fetch the file again");
}

void TfCheckpoint::read_elements(const TensorEntry& tensor, uint64_t first_byte,
                                 std::span<std::byte> out) const {
  const auto index = size_t(&tensor - list_.tensors.data());
  const Variable& variable = variables_[index];
  if (!verified_[index]) verify(variable);
  verified_[index] = true;
  read_view(*variable.shard, variable.view, first_byte / variable.view.width, out);
  const bool last = first_byte + out.size() == variable.bytes;
  if (last) variable.shard->drop_cache(variable.offset, variable.bytes);
}

}  // namespace snug
