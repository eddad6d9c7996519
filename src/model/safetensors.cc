#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "core/error.h"
#include "core/json.h"

namespace snug {
namespace {

constexpr size_t kWriteBytes = 4 << 20;

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypes[] = {{DType::kF64, "F64"},   {DType::kF32, "F32"}, {DType::kF16, "F16"},
                                 {DType::kBF16, "BF16"}, {DType::kI64, "I64"}, {DType::kI32, "I32"},
                                 {DType::kI16, "I16"},   {DType::kI8, "I8"},   {DType::kU8, "U8"},
                                 {DType::kBool, "BOOL"}};

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeName& known : kDTypes) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

// Tells the handler how far the parser has read, which nlohmann does not.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  size_t* count_;
};

// Turns parser events into tensors. No document is built, so a header of a million tensors costs
// its entries only, and nesting is refused at the third level.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  HeaderHandler(uint64_t data_bytes, std::string_view origin, const size_t* position)
      : data_bytes_(data_bytes), origin_(origin), position_(position) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    refuse(fmt::format("negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    refuse("number " + text.substr(0, 40));
  }
  bool binary(binary_t&) override { refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) refuse(fmt::format("number {}", value));
    if (field_ == Field::kShape) {
      add_dimension(value);
    } else {
      if (num_offsets_ == 2) refuse("a third number");
      offsets_[num_offsets_++] = value;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.emplace(name_, std::move(value)).second) {
        bad(fmt::format("duplicate key {} in __metadata__", in_quotes(name_)));
      }
    } else if (place_ == Place::kTensor && field_ == Field::kDType) {
      const std::optional<DType> dtype = parse_dtype(value);
      if (!dtype) {
        bad(fmt::format("unsupported dtype {} for tensor {}", in_quotes(value),
                        in_quotes(tensor_.name)));
      }
      tensor_.dtype = *dtype;
    } else {
      refuse("string " + in_quotes(value));
    }
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::kTensor) {
      begin_field(name);
    } else {
      name_ = std::move(name);
    }
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && name_ == "__metadata__") {
      if (std::exchange(seen_metadata_, true)) bad("duplicate key \"__metadata__\"");
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      place_ = Place::kTensor;
      tensor_ = {.name = std::move(name_)};
      fields_seen_ = 0;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) finish_tensor();
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    const bool wanted = field_ == Field::kShape || field_ == Field::kOffsets;
    if (place_ != Place::kTensor || !wanted || in_array_) refuse("an array");
    in_array_ = true;
    num_offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (field_ == Field::kOffsets && num_offsets_ != 2) {
      refuse(fmt::format("{} numbers", num_offsets_));
    }
    in_array_ = false;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string_view reason = error.what();
    if (const size_t cut = reason.find("] "); cut != std::string_view::npos) {
      reason.remove_prefix(cut + 2);
    }
    fail(ErrorKind::kInput, "{}: header is not valid JSON at byte {} of it: {}", origin_, position,
         in_quotes(reason));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor };
  enum class Field { kDType, kShape, kOffsets };
  static constexpr std::string_view kFieldNames[] = {"dtype", "shape", "data_offsets"};

  [[noreturn]] void bad(const std::string& what) const {
    fail(ErrorKind::kInput, "{}: header, near byte {}: {}", origin_, *position_, what);
  }

  // A value of the wrong type: says where, what was found and what belongs there.
  [[noreturn]] void refuse(const std::string& found) const {
    switch (place_) {
      case Place::kStart:
        bad(fmt::format("found {}, expected an object of tensors", found));
      case Place::kTop:
        bad(fmt::format("{} is {}, expected an object", in_quotes(name_), found));
      case Place::kMetadata:
        bad(fmt::format("__metadata__ {} is {}, expected a string", in_quotes(name_), found));
      case Place::kTensor:
        break;
    }
    constexpr std::string_view kExpected[] = {"a string", "an array of unsigned integers",
                                              "an array of two unsigned integers"};
    bad(fmt::format("tensor {}: {} has {}, expected {}", in_quotes(tensor_.name),
                    kFieldNames[size_t(field_)], found, kExpected[size_t(field_)]));
  }

  void begin_field(const std::string& name) {
    const auto known = std::find(std::begin(kFieldNames), std::end(kFieldNames), name);
    if (known == std::end(kFieldNames)) {
      bad(fmt::format("tensor {}: unknown field {}, expected dtype, shape and data_offsets",
                      in_quotes(tensor_.name), in_quotes(name)));
    }
    const auto index = size_t(known - std::begin(kFieldNames));
    if (fields_seen_ & 1u << index) {
      bad(fmt::format("tensor {}: duplicate field {}", in_quotes(tensor_.name), in_quotes(name)));
    }
    fields_seen_ |= 1u << index;
    field_ = Field(index);
  }

  void add_dimension(uint64_t size) {
    if (size > uint64_t(INT64_MAX)) refuse(fmt::format("dimension {}", size));
    if (tensor_.shape.size() == kMaxRank) {
      bad(fmt::format("tensor {}: more than {} dimensions", in_quotes(tensor_.name), kMaxRank));
    }
    tensor_.shape.push_back(int64_t(size));
  }

  uint64_t checked_bytes() const {
    uint64_t bytes = dtype_bytes(tensor_.dtype);
    for (const int64_t size : tensor_.shape) {
      if (__builtin_mul_overflow(bytes, uint64_t(size), &bytes)) {
        bad(fmt::format("tensor {}: the size of shape {} overflows 64 bits",
                        in_quotes(tensor_.name), format_shape(tensor_.shape)));
      }
    }
    return bytes;
  }

  void finish_tensor() {
    for (size_t i = 0; i < std::size(kFieldNames); ++i) {
      if (!(fields_seen_ & 1u << i)) {
        bad(fmt::format("tensor {}: {} is missing", in_quotes(tensor_.name), kFieldNames[i]));
      }
    }
    const auto [begin, end] = offsets_;
    if (end < begin || end > data_bytes_) {
      bad(fmt::format("tensor {}: data_offsets [{}, {}], expected begin <= end <= {} (the data)",
                      in_quotes(tensor_.name), begin, end, data_bytes_));
    }
    if (const uint64_t bytes = checked_bytes(); bytes != end - begin) {
      bad(fmt::format("tensor {}: {} of shape {} takes {} bytes, but data_offsets [{}, {}] hold {}",
                      in_quotes(tensor_.name), safetensors_dtype(tensor_.dtype),
                      format_shape(tensor_.shape), bytes, begin, end, end - begin));
    }
    tensor_.begin = begin;
    tensor_.end = end;
    header_.tensors.push_back(std::move(tensor_));
  }

  uint64_t data_bytes_;
  std::string_view origin_;
  const size_t* position_;
  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  Field field_ = Field::kDType;
  std::string name_;  // the last key outside of tensors
  TensorEntry tensor_;
  unsigned fields_seen_ = 0;  // a bit for each Field
  bool in_array_ = false, seen_metadata_ = false;
  std::array<uint64_t, 2> offsets_ = {};
  size_t num_offsets_ = 0;
};

// What the parser would let pass: nlohmann takes a NUL for the end of the text and skips a byte
// order mark.
void check_text(std::string_view header, std::string_view origin) {
  if (header.empty()) fail(ErrorKind::kInput, "{}: empty header, expected a JSON object", origin);
  const size_t first = header.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || header[first] != '{') {
    fail(ErrorKind::kInput, "{}: header does not begin with '{{' at byte {} of it", origin,
         std::min(first, header.size()));
  }
  if (const size_t nul = header.find('\0'); nul != std::string_view::npos) {
    fail(ErrorKind::kInput, "{}: header has a NUL at byte {} of it", origin, nul);
  }
}

// Offsets sorted, each tensor must begin where the one before ended, and the last must end with the
// data.
void check_layout(std::span<const TensorEntry> tensors, uint64_t data_bytes,
                  std::string_view origin) {
  uint64_t position = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& tensor = tensors[i];
    if (tensor.begin < position) {
      fail(ErrorKind::kInput, "{}: tensors {} and {} overlap at byte {} of the data", origin,
           in_quotes(tensors[i - 1].name), in_quotes(tensor.name), tensor.begin);
    }
    if (tensor.begin > position) {
      fail(ErrorKind::kInput,
           "{}: bytes {} to {} of the data, before tensor {}, belong to no tensor", origin,
           position, tensor.begin, in_quotes(tensor.name));
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    fail(ErrorKind::kInput, "{}: {} bytes after the last tensor, expected none", origin,
         data_bytes - position);
  }
}

std::string read_header(const InputFile& file) {
  const std::string name = file.path().string();
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    fail(ErrorKind::kInput, "{}: {} bytes, too short for the header length of a safetensors file",
         name, file.size());
  }
  file.read_exactly(0, &length, sizeof(length));
  if (length > file.size() - sizeof(length)) {
    fail(ErrorKind::kInput,
         "{}: header length {} exceeds file size {}; is it a whole safetensors file?", name, length,
         file.size());
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    fail(ErrorKind::kInput, "{}: header of {} bytes, expected at most {}", name, length,
         kMaxSafetensorsHeaderBytes);
  }
  std::string header(length, '\0');
  file.read_exactly(sizeof(length), header.data(), header.size());
  return header;
}

std::string build_header(std::span<const TensorEntry> tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + Json(metadata).dump();
  for (const TensorEntry& tensor : tensors) {
    if (header.size() > 1) header += ',';
    header += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          Json(tensor.name).dump(), safetensors_dtype(tensor.dtype),
                          fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');  // the data begins at a multiple of 8
  return header;
}

}  // namespace

std::string_view safetensors_dtype(DType dtype) {
  for (const DTypeName& known : kDTypes) {
    if (known.dtype == dtype) return known.name;
  }
  SNUG_CHECK(!"dtype without a safetensors name");
  return {};
}

SafetensorsHeader parse_safetensors_header(std::string_view header, uint64_t data_bytes,
                                           std::string_view origin) {
  check_text(header, origin);
  size_t position = 0;
  HeaderHandler handler(data_bytes, origin, &position);
  Json::sax_parse(CountingIterator(header.data(), &position),
                  CountingIterator(header.data() + header.size(), &position), &handler);
  SafetensorsHeader result = handler.take();
  // An empty tensor may share its offset with the next one and comes before it.
  std::ranges::sort(result.tensors, {},
                    [](const TensorEntry& t) { return std::pair(t.begin, t.end); });
  check_layout(result.tensors, data_bytes, origin);
  result.sort_names(origin);
  const uint64_t data_begin = sizeof(uint64_t) + header.size();
  for (TensorEntry& tensor : result.tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return result;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::string text = read_header(file_);
  const uint64_t data_bytes = file_.size() - sizeof(uint64_t) - text.size();
  SafetensorsHeader header = parse_safetensors_header(text, data_bytes, path.string());
  metadata_ = std::move(header.metadata);
  list_ = std::move(header);
}

void SafetensorsFile::read_elements(const TensorEntry& tensor, uint64_t first_byte,
                                    std::span<std::byte> out) const {
  const uint64_t offset = tensor.begin + first_byte;
  file_.read_exactly(offset, out.data(), out.size());
  file_.drop_cache(offset, out.size());
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorEntry> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)), tensors_(std::move(tensors)) {
  uint64_t position = 0;
  for (TensorEntry& tensor : tensors_) {
    uint64_t bytes = dtype_bytes(tensor.dtype);
    for (const int64_t size : tensor.shape) {
      SNUG_CHECK(size >= 0 && !__builtin_mul_overflow(bytes, uint64_t(size), &bytes));
    }
    tensor.begin = position;
    tensor.end = position += bytes;
  }
  const std::string header = build_header(tensors_, metadata);
  SNUG_CHECK(header.size() <= kMaxSafetensorsHeaderBytes);
  const uint64_t length = header.size();
  file_.write(&length, sizeof(length));
  file_.write(header);
  file_bytes_ = sizeof(length) + header.size() + position;
  skip_finished();
}

void SafetensorsWriter::skip_finished() {
  while (current_ < tensors_.size() && position_ == tensors_[current_].end) ++current_;
}

void SafetensorsWriter::write_bytes(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  SNUG_CHECK(current_ < tensors_.size() && tensors_[current_].name == name);
  SNUG_CHECK(bytes.size() <= tensors_[current_].end - position_);
  // In parts, so that OutputFile syncs and drops pages as it goes, however large the tensor.
  for (size_t done = 0; done < bytes.size(); done += kWriteBytes) {
    const auto part = bytes.subspan(done, std::min(kWriteBytes, bytes.size() - done));
    file_.write(part.data(), part.size());
  }
  position_ += bytes.size();
  skip_finished();
}

void SafetensorsWriter::write(std::string_view name, std::span<const float> values) {
  if (values.empty()) return;
  SNUG_CHECK(current_ < tensors_.size());
  const DType dtype = tensors_[current_].dtype;
  if (dtype == DType::kF32) return write_bytes(name, std::as_bytes(values));
  SNUG_CHECK(dtype == DType::kF16 || dtype == DType::kBF16);
  std::array<uint16_t, kTensorBufferBytes / sizeof(uint16_t)> buffer;
  while (!values.empty()) {
    const size_t count = std::min(buffer.size(), values.size());
    std::transform(values.begin(), values.begin() + ptrdiff_t(count), buffer.begin(),
                   dtype == DType::kF16 ? float_to_half : float_to_bfloat16);
    write_bytes(name, std::as_bytes(std::span(buffer).first(count)));
    values = values.subspan(count);
  }
}

void SafetensorsWriter::commit() {
  SNUG_CHECK(current_ == tensors_.size());
  file_.commit();
}

}  // namespace snug
