#include "model/unpickler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "model/tensor_file.h"
#include "model/tensor_view.h"

namespace snug {
namespace {

using Kind = PickleKind;

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxNameBytes = 512;    // of a module and of what is in it
constexpr size_t kMaxIntegerBytes = 10;  // the number that legacy files begin with
constexpr uint64_t kMaxElements = uint64_t{1} << 48;

enum class Function : int64_t { kOrderedDict, kRebuildTensor, kRebuildParameter };

struct Name {
  std::string_view module, name;
  Kind kind;
  int64_t number;
};
constexpr Name function(std::string_view module, std::string_view name, Function which) {
  return {module, name, Kind::kFunction, int64_t(which)};
}
constexpr Name storage(std::string_view name, DType dtype) {
  return {"torch", name, Kind::kStorageType, int64_t(dtype)};
}
constexpr Name type(std::string_view name, DType dtype) {
  return {"torch", name, Kind::kDType, int64_t(dtype)};
}
// All names that a pickle may use.
constexpr Name kNames[] = {
    function("collections", "OrderedDict", Function::kOrderedDict),
    function("torch._utils", "_rebuild_tensor_v2", Function::kRebuildTensor),
    function("torch._utils", "_rebuild_parameter", Function::kRebuildParameter),
    storage("DoubleStorage", DType::kF64),
    storage("FloatStorage", DType::kF32),
    storage("HalfStorage", DType::kF16),
    storage("BFloat16Storage", DType::kBF16),
    storage("LongStorage", DType::kI64),
    storage("IntStorage", DType::kI32),
    storage("ShortStorage", DType::kI16),
    storage("CharStorage", DType::kI8),
    storage("ByteStorage", DType::kU8),
    storage("BoolStorage", DType::kBool),
    type("float64", DType::kF64),
    type("float32", DType::kF32),
    type("float16", DType::kF16),
    type("bfloat16", DType::kBF16),
    type("int64", DType::kI64),
    type("int32", DType::kI32),
    type("int16", DType::kI16),
    type("int8", DType::kI8),
    type("uint8", DType::kU8),
    type("bool", DType::kBool)};

// Opcodes, as Python's pickletools names them.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kNoneOpcode = 'N',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kBinFloat = 'G',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinUnicode = 'X',
  kShortBinString = 'U',
  kBinString = 'T',
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTuple = 't',
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kGlobal = 'c',
  kReduce = 'R',
  kBuild = 'b',
  kBinPersId = 'Q',
  kProto = 0x80
};

struct OpcodeName {
  uint8_t opcode;
  const char* name;
};
// Also of those that are refused, where their names say more than their codes.
constexpr OpcodeName kOpcodeNames[] = {{kMark, "MARK"},
                                       {kStop, "STOP"},
                                       {kNoneOpcode, "NONE"},
                                       {kBinInt, "BININT"},
                                       {kBinInt1, "BININT1"},
                                       {kBinInt2, "BININT2"},
                                       {kLong1, "LONG1"},
                                       {kBinFloat, "BINFLOAT"},
                                       {kNewTrue, "NEWTRUE"},
                                       {kNewFalse, "NEWFALSE"},
                                       {kBinUnicode, "BINUNICODE"},
                                       {kShortBinString, "SHORT_BINSTRING"},
                                       {kBinString, "BINSTRING"},
                                       {kEmptyTuple, "EMPTY_TUPLE"},
                                       {kTuple1, "TUPLE1"},
                                       {kTuple2, "TUPLE2"},
                                       {kTuple3, "TUPLE3"},
                                       {kTuple, "TUPLE"},
                                       {kEmptyList, "EMPTY_LIST"},
                                       {kAppend, "APPEND"},
                                       {kAppends, "APPENDS"},
                                       {kEmptyDict, "EMPTY_DICT"},
                                       {kSetItem, "SETITEM"},
                                       {kSetItems, "SETITEMS"},
                                       {kBinPut, "BINPUT"},
                                       {kLongBinPut, "LONG_BINPUT"},
                                       {kBinGet, "BINGET"},
                                       {kLongBinGet, "LONG_BINGET"},
                                       {kGlobal, "GLOBAL"},
                                       {kReduce, "REDUCE"},
                                       {kBuild, "BUILD"},
                                       {kBinPersId, "BINPERSID"},
                                       {kProto, "PROTO"},
                                       {'i', "INST"},
                                       {'o', "OBJ"},
                                       {0x81, "NEWOBJ"},
                                       {0x92, "NEWOBJ_EX"},
                                       {0x93, "STACK_GLOBAL"},
                                       {'P', "PERSID"},
                                       {0x82, "EXT1"},
                                       {0x83, "EXT2"},
                                       {0x84, "EXT4"},
                                       {'0', "POP"},
                                       {'1', "POP_MARK"},
                                       {'2', "DUP"},
                                       {'I', "INT"},
                                       {'L', "LONG"},
                                       {'S', "STRING"},
                                       {'V', "UNICODE"},
                                       {'F', "FLOAT"},
                                       {'p', "PUT"},
                                       {'g', "GET"},
                                       {'d', "DICT"},
                                       {'l', "LIST"},
                                       {0x8b, "LONG4"},
                                       {0x8c, "SHORT_BINUNICODE"},
                                       {0x8d, "BINUNICODE8"},
                                       {0x8e, "BINBYTES8"},
                                       {0x8f, "EMPTY_SET"},
                                       {0x90, "ADDITEMS"},
                                       {0x91, "FROZENSET"},
                                       {0x94, "MEMOIZE"},
                                       {0x95, "FRAME"},
                                       {0x96, "BYTEARRAY8"},
                                       {'B', "BINBYTES"},
                                       {'C', "SHORT_BINBYTES"},
                                       {0x97, "NEXT_BUFFER"},
                                       {0x98, "READONLY_BUFFER"}};

std::string opcode_name(uint8_t opcode) {
  const auto known = std::ranges::find(kOpcodeNames, opcode, &OpcodeName::opcode);
  return known == std::end(kOpcodeNames) ? fmt::format("opcode 0x{:02x}", opcode) : known->name;
}

PickleValue integer(int64_t number) { return {.kind = Kind::kInteger, .number = number}; }

}  // namespace

std::string_view pickle_kind_name(Kind kind) {
  constexpr std::string_view kKindNames[] = {
      "None",       "a truth value",     "an integer",  "a long integer", "a number",
      "a text",     "a tuple",           "a list",      "a dict",         "an OrderedDict",
      "a function", "a type of storage", "a data type", "a storage",      "a tensor"};
  return kKindNames[size_t(kind)];
}

Unpickler::Unpickler(Read read, std::string origin, uint64_t begin)
    : read_(std::move(read)), origin_(std::move(origin)), position_(begin), buffer_(kReadBytes) {}

void Unpickler::refuse(const std::string& what) const {
  fail(ErrorKind::kInput, "{}: pickle, byte {}: {}: {}", origin_, opcode_at_, opcode_name(opcode_),
       what);
}

void Unpickler::refuse_name(const std::string& name) const {
  throw Error(ErrorKind::kInput,
              fmt::format("{}: pickle, byte {}: names {}, which is code; only dictionaries of "
                          "tensors are read, and nothing "
                          "of the file is executed",
                          origin_, opcode_at_, in_quotes(name)),
              "if you trust the file, load it with PyTorch and save the model's state_dict(), "
              "better as safetensors");
}

uint8_t Unpickler::next() {
  if (position_ - begin_ >= kMaxPickleBytes) {
    refuse(fmt::format("the pickle has more than {} bytes", kMaxPickleBytes));
  }
  if (position_ < buffer_begin_ || position_ >= buffer_begin_ + buffered_) {
    buffer_begin_ = position_;
    buffered_ = read_(position_, buffer_);
    if (buffered_ == 0) refuse(fmt::format("the pickle ends at byte {} without STOP", position_));
  }
  return uint8_t(buffer_[size_t(position_++ - buffer_begin_)]);
}

template <class T>
T Unpickler::number() {  // little-endian
  uint8_t bytes[sizeof(T)];
  for (uint8_t& byte : bytes) byte = next();
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Grows with what is there, whatever length is claimed.
std::string Unpickler::text(uint64_t bytes) {
  if (bytes > kMaxPickleBytes) {
    refuse(fmt::format("a text of {} bytes, expected at most {}", bytes, kMaxPickleBytes));
  }
  std::string result;
  while (result.size() < bytes) result += char(next());
  return result;
}

std::string Unpickler::line() {
  std::string result;
  for (char c; (c = char(next())) != '\n';) {
    if (result.size() == kMaxNameBytes) {
      refuse(fmt::format("a name of more than {} bytes", kMaxNameBytes));
    }
    result += c;
  }
  return result;
}

PickleValue Unpickler::long_integer() {
  const size_t bytes = number<uint8_t>();
  if (bytes > kMaxIntegerBytes) {
    refuse(fmt::format("an integer of {} bytes, expected at most {}", bytes, kMaxIntegerBytes));
  }
  PickleValue value{.kind = Kind::kBigInteger, .text = text(bytes)};
  if (bytes > sizeof(int64_t)) return value;
  const bool negative = bytes > 0 && (uint8_t(value.text.back()) & 0x80);
  int64_t number = negative ? -1 : 0;
  std::memcpy(&number, value.text.data(), bytes);
  return integer(number);
}

uint32_t Unpickler::add(PickleValue value) {
  if (values_.size() == kMaxPickleValues) {
    refuse(fmt::format("the pickle has more than {} values", kMaxPickleValues));
  }
  values_.push_back(std::move(value));
  return uint32_t(values_.size() - 1);
}

uint32_t Unpickler::top() const {
  if (stack_.size() == (marks_.empty() ? 0 : marks_.back())) refuse("the stack is empty");
  return stack_.back();
}

uint32_t Unpickler::pop() {
  const uint32_t value = top();
  stack_.pop_back();
  return value;
}

std::vector<uint32_t> Unpickler::pop_marked() {
  if (marks_.empty()) refuse("there is no MARK on the stack");
  const std::vector<uint32_t> items(stack_.begin() + ptrdiff_t(marks_.back()), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

const PickleValue& Unpickler::load() {
  values_.clear();
  stack_.clear();
  marks_.clear();
  memo_.clear();
  storages_.clear();
  tensors_.clear();
  begin_ = opcode_at_ = position_;
  opcode_ = kProto;
  if (next() != kProto) refuse("is not at the beginning; expected a pickle of protocol 2");
  if (const int protocol = next(); protocol != 2) {
    refuse(fmt::format("protocol {}, expected 2, which torch.save writes unless told otherwise",
                       protocol));
  }
  for (;;) {
    opcode_at_ = position_;
    opcode_ = next();
    if (opcode_ == kStop) break;
    if (!step(opcode_)) refuse("is not an opcode that tensors need");
  }
  result_ = pop();
  if (!stack_.empty() || !marks_.empty()) refuse("more than one value is left on the stack");
  return result();
}

bool Unpickler::step(uint8_t opcode) {
  switch (opcode) {
    case kMark:
      marks_.push_back(stack_.size());
      return true;
    case kEmptyTuple:
      tuple(0);
      return true;
    case kTuple1:
      tuple(1);
      return true;
    case kTuple2:
      tuple(2);
      return true;
    case kTuple3:
      tuple(3);
      return true;
    case kTuple: {
      push({.kind = Kind::kTuple, .items = pop_marked()});
      return true;
    }
    case kEmptyList:
      push({.kind = Kind::kList});
      return true;
    case kEmptyDict:
      push({.kind = Kind::kDict});
      return true;
    case kAppend:
      append(std::vector{pop()});
      return true;
    case kAppends:
      append(pop_marked());
      return true;
    case kSetItem: {
      const uint32_t value = pop(), key = pop();
      set(std::vector{key, value});
      return true;
    }
    case kSetItems:
      set(pop_marked());
      return true;
    case kGlobal:
      global();
      return true;
    case kBinPersId:
      persistent();
      return true;
    case kReduce:
      reduce();
      return true;
    case kBuild:
      build();
      return true;
    default:
      return step_constant(opcode) || step_memo(opcode);
  }
}

bool Unpickler::step_constant(uint8_t opcode) {
  switch (opcode) {
    case kNoneOpcode:
      push({});
      return true;
    case kNewTrue:
      push({.kind = Kind::kBool, .number = 1});
      return true;
    case kNewFalse:
      push({.kind = Kind::kBool, .number = 0});
      return true;
    case kBinInt:
      push(integer(number<int32_t>()));
      return true;
    case kBinInt1:
      push(integer(number<uint8_t>()));
      return true;
    case kBinInt2:
      push(integer(number<uint16_t>()));
      return true;
    case kLong1:
      push(long_integer());
      return true;
    case kBinFloat:
      number<uint64_t>();  // no tensor needs its value
      push({.kind = Kind::kReal});
      return true;
    case kBinUnicode:
    case kBinString:
      push({.kind = Kind::kText, .text = text(number<uint32_t>())});
      return true;
    case kShortBinString:
      push({.kind = Kind::kText, .text = text(number<uint8_t>())});
      return true;
    default:
      return false;
  }
}

bool Unpickler::step_memo(uint8_t opcode) {
  switch (opcode) {
    case kBinPut:
      memo_[number<uint8_t>()] = top();
      return true;
    case kLongBinPut:
      memo_[number<uint32_t>()] = top();
      return true;
    case kBinGet:
    case kLongBinGet: {
      const uint32_t index = opcode == kBinGet ? number<uint8_t>() : number<uint32_t>();
      const auto found = memo_.find(index);
      if (found == memo_.end()) refuse(fmt::format("nothing was put under {}", index));
      stack_.push_back(found->second);
      return true;
    }
    default:
      return false;
  }
}

void Unpickler::tuple(size_t count) {
  std::vector<uint32_t> items(count);
  for (size_t i = count; i-- > 0;) items[i] = pop();
  push({.kind = Kind::kTuple, .items = std::move(items)});
}

void Unpickler::append(std::span<const uint32_t> items) {
  PickleValue& list = values_[top()];
  if (list.kind != Kind::kList) {
    refuse(fmt::format("to {}, expected a list", pickle_kind_name(list.kind)));
  }
  list.items.insert(list.items.end(), items.begin(), items.end());
}

void Unpickler::set(std::span<const uint32_t> items) {
  PickleValue& dict = values_[top()];
  if (dict.kind != Kind::kDict && dict.kind != Kind::kOrderedDict) {
    refuse(fmt::format("in {}, expected a dict", pickle_kind_name(dict.kind)));
  }
  if (items.size() % 2 != 0) refuse("a key without a value");
  for (size_t i = 0; i < items.size(); i += 2) {
    const Kind key = values_[items[i]].kind;
    if (key == Kind::kText || key == Kind::kInteger) continue;
    refuse(fmt::format("a key is {}, expected a text", pickle_kind_name(key)));
  }
  dict.items.insert(dict.items.end(), items.begin(), items.end());
}

void Unpickler::global() {
  const std::string module = line(), name = line();
  for (const Name& known : kNames) {
    if (known.module == module && known.name == name) {
      return push({.kind = known.kind, .number = known.number});
    }
  }
  refuse_name(module + "." + name);
}

const PickleValue& Unpickler::item(const PickleValue& tuple, size_t index, Kind kind,
                                   const char* what) const {
  const PickleValue& value = values_[tuple.items[index]];
  if (value.kind != kind) {
    refuse(fmt::format("{} is {}, expected {}", what, pickle_kind_name(value.kind),
                       pickle_kind_name(kind)));
  }
  return value;
}

uint64_t Unpickler::count_of(const PickleValue& value, const char* what) const {
  if (value.kind != Kind::kInteger || value.number < 0 || uint64_t(value.number) > kMaxElements) {
    refuse(value.kind == Kind::kInteger
               ? fmt::format("{} is {}, expected 0 to {}", what, value.number, kMaxElements)
               : fmt::format("{} is {}, expected an integer", what, pickle_kind_name(value.kind)));
  }
  return uint64_t(value.number);
}

std::vector<int64_t> Unpickler::counts(const PickleValue& tuple, const char* what) const {
  if (tuple.items.size() > kMaxRank) {
    refuse(fmt::format("{} has {} items, expected at most {}", what, tuple.items.size(), kMaxRank));
  }
  std::vector<int64_t> result;
  for (const uint32_t index : tuple.items) {
    result.push_back(int64_t(count_of(values_[index], what)));
  }
  return result;
}

// ("storage", type, key, device, elements), and in legacy files (key, first, elements) of a window
// on it, or None.
void Unpickler::persistent() {
  const PickleValue& id = values_[pop()];
  if (id.kind != Kind::kTuple || id.items.size() < 5 || id.items.size() > 6) {
    refuse("expected a tuple (\"storage\", type, key, device, elements)");
  }
  if (const PickleValue& word = item(id, 0, Kind::kText, "the first item");
      word.text != "storage") {
    refuse(fmt::format("is for {}, expected \"storage\"", in_quotes(word.text)));
  }
  const uint64_t whole = count_of(values_[id.items[4]], "the number of elements");
  PickleStorage storage{.key = item(id, 2, Kind::kText, "the key").text,
                        .dtype = DType(item(id, 1, Kind::kStorageType, "the type").number),
                        .whole = whole,
                        .elements = whole};
  item(id, 3, Kind::kText, "the device");
  if (id.items.size() == 6 && values_[id.items[5]].kind != Kind::kNone) {
    const PickleValue& window = item(id, 5, Kind::kTuple, "the window");
    if (window.items.size() != 3) refuse("the window is not (key, first, elements)");
    storage.first = count_of(values_[window.items[1]], "the beginning of the window");
    storage.elements = count_of(values_[window.items[2]], "the size of the window");
    if (storage.first > storage.whole || storage.elements > storage.whole - storage.first) {
      refuse(
          fmt::format("the window reaches behind the {} elements of its storage", storage.whole));
    }
  }
  storages_.push_back(std::move(storage));
  push({.kind = Kind::kStorage, .number = int64_t(storages_.size() - 1)});
}

void Unpickler::reduce() {
  const PickleValue& arguments = values_[pop()];
  const PickleValue& called = values_[pop()];
  if (called.kind != Kind::kFunction) {
    refuse(fmt::format("calls {}", pickle_kind_name(called.kind)));
  }
  if (arguments.kind != Kind::kTuple) {
    refuse(fmt::format("the arguments are {}, expected a tuple", pickle_kind_name(arguments.kind)));
  }
  const auto expect = [&](size_t least, size_t most, const char* name) {
    if (arguments.items.size() < least || arguments.items.size() > most) {
      refuse(fmt::format("{} with {} arguments, expected {}", name, arguments.items.size(), least));
    }
  };
  switch (Function(called.number)) {
    case Function::kOrderedDict:
      expect(0, 0, "OrderedDict");
      return push({.kind = Kind::kOrderedDict});
    case Function::kRebuildTensor:
      expect(6, 7, "_rebuild_tensor_v2");
      stack_.push_back(rebuild_tensor(arguments));
      return;
    case Function::kRebuildParameter:
      expect(3, 3, "_rebuild_parameter");
      item(arguments, 0, Kind::kTensor, "the parameter's data");
      item(arguments, 1, Kind::kBool, "requires_grad");
      check_hooks(values_[arguments.items[2]]);
      stack_.push_back(arguments.items[0]);
      return;
  }
}

// (storage, first, shape, strides, requires_grad, hooks), and what else a tensor was marked with.
uint32_t Unpickler::rebuild_tensor(const PickleValue& arguments) {
  PickleTensor tensor{
      .storage = size_t(item(arguments, 0, Kind::kStorage, "the storage").number),
      .first = count_of(values_[arguments.items[1]], "the place in the storage"),
      .shape = counts(item(arguments, 2, Kind::kTuple, "the shape"), "the shape"),
      .strides = counts(item(arguments, 3, Kind::kTuple, "the strides"), "the strides")};
  item(arguments, 4, Kind::kBool, "requires_grad");
  check_hooks(values_[arguments.items[5]]);
  if (arguments.items.size() == 7) {  // such as: its values count as negative
    const PickleValue& marks = values_[arguments.items[6]];
    const bool none =
        marks.kind == Kind::kNone || (marks.kind == Kind::kDict && marks.items.empty());
    if (!none) refuse("the tensor has marks that change its values, which are not read");
  }
  const std::string mismatch =
      view_mismatch(tensor.shape, tensor.strides, tensor.first, storages_[tensor.storage].elements);
  if (!mismatch.empty()) {
    refuse(fmt::format("a tensor of shape {}, strides {} at element {}: {}",
                       format_shape(tensor.shape), format_shape(tensor.strides), tensor.first,
                       mismatch));
  }
  tensors_.push_back(std::move(tensor));
  return add({.kind = Kind::kTensor, .number = int64_t(tensors_.size() - 1)});
}

void Unpickler::check_hooks(const PickleValue& value) const {
  if (value.kind != Kind::kOrderedDict || !value.items.empty()) {
    refuse(fmt::format("the hooks are {}, expected an empty OrderedDict",
                       pickle_kind_name(value.kind)));
  }
}

// Attributes of an object. Those that PyTorch gives a dictionary of tensors (versions of modules)
// mean nothing here.
void Unpickler::build() {
  const PickleValue& state = values_[pop()];
  const PickleValue& object = values_[top()];
  if (object.kind != Kind::kOrderedDict || state.kind != Kind::kDict) {
    refuse(fmt::format("sets {} as the attributes of {}, expected a dict and an OrderedDict",
                       pickle_kind_name(state.kind), pickle_kind_name(object.kind)));
  }
}

}  // namespace snug
