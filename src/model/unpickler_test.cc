#include "model/unpickler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "model/torch_test_util.h"

namespace snug {
namespace {

using namespace pickle;

Unpickler unpickler_of(const std::string& bytes) {
  return Unpickler(
      [&bytes](uint64_t offset, std::span<std::byte> out) {
        const size_t count =
            offset < bytes.size() ? std::min(out.size(), bytes.size() - size_t(offset)) : 0;
        std::memcpy(out.data(), bytes.data() + offset, count);
        return count;
      },
      "x.bin");
}

std::string error_of(const std::string& bytes) {
  try {
    Unpickler unpickler = unpickler_of(bytes);
    unpickler.load();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "";
}

TEST(Unpickler, ReadsTensors) {
  const std::string bytes =
      kStart + kOrderedDict + ")Rq\x05(" + text("w") +
      tensor(storage("0", 12), {2, {2, 3}, {1, 3}}) + text("p") +
      call(global("torch._utils", "_rebuild_parameter"),
           {tensor(storage("1", 4, "HalfStorage"), {0, {4}, {1}}), kFalse, kHooks}) +
      "u}" + text("_metadata") + kHooks + "sb.";
  Unpickler unpickler = unpickler_of(bytes);
  const PickleValue& root = unpickler.load();
  ASSERT_EQ(root.kind, PickleKind::kOrderedDict);
  ASSERT_EQ(root.items.size(), 4u);
  EXPECT_EQ(unpickler.at(root.items[0]).text, "w");
  ASSERT_EQ(unpickler.at(root.items[1]).kind, PickleKind::kTensor);
  const PickleTensor& w = unpickler.tensors()[size_t(unpickler.at(root.items[1]).number)];
  EXPECT_EQ(w.first, 2u);
  EXPECT_EQ(w.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w.strides, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(unpickler.storages()[w.storage].elements, 12u);
  ASSERT_EQ(unpickler.at(root.items[3]).kind, PickleKind::kTensor);
  const PickleTensor& p = unpickler.tensors()[size_t(unpickler.at(root.items[3]).number)];
  EXPECT_EQ(unpickler.storages()[p.storage].dtype, DType::kF16);
  EXPECT_EQ(unpickler.position(), bytes.size());
}

TEST(Unpickler, ReadsNumbersAsPythonDoes) {
  const struct {
    std::string bytes;
    int64_t value;
  } cases[] = {{std::string("K\xff", 2), 255},
               {std::string("M\x00\x80", 3), 32768},
               {std::string("J\xff\xff\xff\xff", 5), -1},
               {std::string("\x8a\x00", 2), 0},
               {std::string("\x8a\x01\xff", 3), -1},
               {std::string("\x8a\x02\xff\x00", 4), 255},
               {std::string("\x8a\x05\x00\x00\x00\x00\x01", 7), int64_t{1} << 32}};
  for (const auto& c : cases) {
    const std::string bytes = kStart + c.bytes + ".";
    Unpickler unpickler = unpickler_of(bytes);
    const PickleValue& value = unpickler.load();
    EXPECT_EQ(value.kind, PickleKind::kInteger);
    EXPECT_EQ(value.number, c.value);
  }
}

TEST(Unpickler, IsNotTroubledByListsThatHoldThemselves) {
  const std::string bytes = kStart + std::string("]q\x00h\x00", 5) + "a.";
  Unpickler unpickler = unpickler_of(bytes);
  const PickleValue& list = unpickler.load();
  ASSERT_EQ(list.items.size(), 1u);
  EXPECT_EQ(&unpickler.at(list.items[0]), &list);
  // Each tuple holds the one before it twice: 2^60 values on paper.
  std::string doubling = kStart + ")";
  for (char i = 0; i < 60; ++i) doubling += std::string("q") + i + "h" + i + "\x86";
  EXPECT_EQ(error_of(doubling + "."), "");
}

struct Hostile {
  const char* name;
  std::string bytes;     // behind the protocol
  const char* expected;  // in the message
};

std::string calls(const std::string& module, const std::string& name, const std::string& argument) {
  return call(global(module, name), {text(argument)}) + ".";
}

std::string tensor_of(const std::vector<std::string>& arguments) {
  return call(kRebuild, arguments) + ".";
}

std::vector<Hostile> names_of_code() {
  const std::string touch = "touch /tmp/snug-was-here-" + std::to_string(::getpid());
  return {
      {"system", calls("os", "system", touch), "names \"os.system\", which is code"},
      {"posix", calls("posix", "system", touch), "names \"posix.system\""},
      {"nt", calls("nt", "system", touch), "names \"nt.system\""},
      {"eval", calls("builtins", "eval", "__import__('os').system('" + touch + "')"),
       "names \"builtins.eval\""},
      {"exec", calls("builtins", "exec", "import os; os.system('" + touch + "')"),
       "names \"builtins.exec\""},
      {"eval of Python 2", calls("__builtin__", "eval", touch), "names \"__builtin__.eval\""},
      {"import", calls("builtins", "__import__", "os"), "names \"builtins.__import__\""},
      {"getattr", calls("builtins", "getattr", "x"), "names \"builtins.getattr\""},
      {"popen", calls("subprocess", "Popen", touch), "names \"subprocess.Popen\""},
      {"sys", global("sys", "modules") + ".", "names \"sys.modules\""},
      {"runpy", calls("runpy", "_run_code", touch), "names \"runpy._run_code\""},
      {"torch.load", calls("torch", "load", "other.bin"), "names \"torch.load\""},
      {"hub", calls("torch.hub", "load", "evil/repo"), "names \"torch.hub.load\""},
      {"serialization", calls("torch.serialization", "load", "other.bin"),
       "names \"torch.serialization.load\""},
      {"jit", calls("torch.jit", "load", "other.pt"), "names \"torch.jit.load\""},
      {"a module", global("torch.nn.modules.linear", "Linear") + ")\x81.",
       "names \"torch.nn.modules.linear.Linear\""},
      {"numpy", calls("numpy.core.multiarray", "_reconstruct", "x"),
       "names \"numpy.core.multiarray._reconstruct\""},
      {"close to an allowed name", calls("torch._utils", "_rebuild_tensor_v2.__globals__", "x"),
       "_rebuild_tensor_v2.__globals__"},
      {"allowed name, other module", calls("torch", "_rebuild_tensor_v2", "x"),
       "names \"torch._rebuild_tensor_v2\""},
      {"other collection", calls("collections", "defaultdict", "x"),
       "names \"collections.defaultdict\""},
      {"no name", global("", "") + ".", "names \".\""},
      {"endless name", "c" + std::string(100'000, 'm') + "\nx\n.", "a name of more than 512 bytes"},
      {"control characters", global("os\x1b[2J", "x") + ".", "names \"os?[2J.x\""}};
}

std::vector<Hostile> calls_of_allowed_names() {
  const std::string one = storage("0", 6), shape = numbers({2, 3}), strides = numbers({3, 1}),
                    zero = integer(0);
  const std::string good = tensor(one, {0, {2, 3}, {3, 1}}),
                    parameter = global("torch._utils", "_rebuild_parameter");
  return {
      {"call of a type", call(global("torch", "FloatStorage"), {zero}) + ".",
       "REDUCE: calls a type of storage"},
      {"call of a data type", call(global("torch", "float32"), {}) + ".",
       "REDUCE: calls a data type"},
      {"call of a text", call(text("os.system"), {text("x")}) + ".", "REDUCE: calls a text"},
      {"arguments in a list", kRebuild + "]R.",
       "REDUCE: the arguments are a list, expected a tuple"},
      {"OrderedDict of something", call(kOrderedDict, {"]"}) + ".",
       "OrderedDict with 1 arguments, expected 0"},
      {"tensor of nothing", tensor_of({}), "_rebuild_tensor_v2 with 0 arguments, expected 6"},
      {"tensor of too much", tensor_of({one, zero, shape, strides, kFalse, kHooks, kNone, kNone}),
       "with 8 arguments"},
      {"storage that is a text", tensor_of({text("0"), zero, shape, strides, kFalse, kHooks}),
       "the storage is a text, expected a storage"},
      {"place that is a text", tensor_of({one, text("0"), shape, strides, kFalse, kHooks}),
       "the place in the storage is a text"},
      {"negative place", tensor_of({one, integer(-1), shape, strides, kFalse, kHooks}),
       "the place in the storage is -1"},
      {"shape in a list", tensor_of({one, zero, "]", strides, kFalse, kHooks}),
       "the shape is a list, expected a tuple"},
      {"shape of texts", tensor_of({one, zero, tuple({text("2")}), strides, kFalse, kHooks}),
       "the shape is a text"},
      {"negative size", tensor_of({one, zero, numbers({-2, 3}), strides, kFalse, kHooks}),
       "the shape is -2"},
      {"negative stride", tensor_of({one, integer(5), shape, numbers({-3, 1}), kFalse, kHooks}),
       "the strides is -3"},
      {"fewer strides", tensor_of({one, zero, shape, numbers({1}), kFalse, kHooks}),
       "2 sizes but 1 strides"},
      {"65 dimensions",
       tensor_of({one, zero, numbers(std::vector<int64_t>(65, 1)), strides, kFalse, kHooks}),
       "65 items, expected at most 64"},
      {"behind the storage", tensor_of({one, integer(1), shape, strides, kFalse, kHooks}),
       "reaches behind the 6 elements"},
      {"huge stride", tensor_of({one, zero, shape, numbers({int64_t{1} << 47, 1}), kFalse, kHooks}),
       "reaches behind the 6 elements"},
      {"size that wraps around",
       tensor_of({one, zero, numbers({int64_t{1} << 47, int64_t{1} << 47}), numbers({0, 0}), kFalse,
                  kHooks}),
       "reaches behind the 6 elements"},
      {"huge size", tensor_of({one, zero, numbers({INT64_MAX, 1}), strides, kFalse, kHooks}),
       "the shape is 9223372036854775807"},
      {"expanded", tensor_of({one, zero, numbers({1000, 1000}), numbers({0, 0}), kFalse, kHooks}),
       "expanded tensors are not read"},
      {"requires_grad that is a number", tensor_of({one, zero, shape, strides, zero, kHooks}),
       "requires_grad is an integer"},
      {"hooks in a list", tensor_of({one, zero, shape, strides, kFalse, "]"}),
       "the hooks are a list"},
      {"hooks", tensor_of({one, zero, shape, strides, kFalse, kHooks + text("a") + zero + "s"}),
       "expected an empty OrderedDict"},
      {"marks of a tensor",
       tensor_of({one, zero, shape, strides, kFalse, kHooks, "}" + text("neg") + "\x88s"}),
       "marks that change its values"},
      {"parameter of a text", call(parameter, {text("x"), kFalse, kHooks}) + ".",
       "the parameter's data is a text"},
      {"parameter of two", call(parameter, {good, kFalse}) + ".",
       "_rebuild_parameter with 2 arguments"}};
}

std::vector<Hostile> misused_values() {
  const std::string zero = integer(0), good = tensor(storage("0", 6), {0, {2, 3}, {3, 1}});
  const std::string numbered = "]" + zero + zero;
  return {
      {"item of a list", numbered + "s.", "SETITEM: in a list, expected a dict"},
      {"item of a tuple", ")" + zero + zero + "s.", "SETITEM: in a tuple, expected a dict"},
      {"item of None", "N" + zero + zero + "s.", "SETITEM: in None, expected a dict"},
      {"items of a tensor", good + "(" + zero + zero + "u.",
       "SETITEMS: in a tensor, expected a dict"},
      {"item of a storage", storage("0", 6) + zero + zero + "s.", "SETITEM: in a storage"},
      {"items of a function", kRebuild + "(" + zero + zero + "u.", "SETITEMS: in a function"},
      {"key without a value", "}(" + zero + "u.", "a key without a value"},
      {"key that is a list", "}]" + zero + "s.", "a key is a list, expected a text"},
      {"key that is a tensor", "}" + good + zero + "s.", "a key is a tensor"},
      {"append to a dict", "}" + zero + "a.", "APPEND: to a dict, expected a list"},
      {"append to an OrderedDict", kHooks + zero + "a.", "APPEND: to an OrderedDict"},
      {"append to a tuple", ")(" + zero + "e.", "APPENDS: to a tuple"},
      {"append to a tensor", good + zero + "a.", "APPEND: to a tensor"},
      {"attributes of a tensor", good + "}b.", "BUILD: sets a dict as the attributes of a tensor"},
      {"attributes of a function", kRebuild + "}b.",
       "BUILD: sets a dict as the attributes of a function"},
      {"attributes in a tuple", kHooks + ")b.", "BUILD: sets a tuple"},
      {"persistent text", text("storage") + "Q.", "BINPERSID: expected a tuple"},
      {"persistent module", tuple({text("module"), zero, zero, zero, zero}) + "Q.",
       "is for \"module\""},
      {"storage of no type",
       tuple({text("storage"), text("FloatStorage"), text("0"), text("cpu"), zero}) + "Q.",
       "the type is a text"},
      {"storage of a function",
       tuple({text("storage"), kRebuild, text("0"), text("cpu"), zero}) + "Q.",
       "the type is a function"},
      {"storage of no key",
       tuple({text("storage"), global("torch", "FloatStorage"), zero, text("cpu"), zero}) + "Q.",
       "the key is an integer"},
      {"storage of less than nothing", storage("0", -1) + ".", "the number of elements is -1"},
      {"storage of everything", storage("0", INT64_MAX) + ".",
       "the number of elements is 9223372036854775807"},
      {"window behind its storage",
       tuple({text("storage"), global("torch", "FloatStorage"), text("0"), text("cpu"), integer(4),
              tuple({text("1"), integer(3), integer(2)})}) +
           "Q.",
       "the window reaches behind the 4 elements"}};
}

std::vector<Hostile> broken_programs() {
  const std::string zero = integer(0);
  return {
      {"missing memo", std::string("h\x07.", 3), "BINGET: nothing was put under 7"},
      {"memo of 2^32 - 1", "j\xff\xff\xff\xff.", "LONG_BINGET: nothing was put under 4294967295"},
      {"memo of nothing", std::string("q\x00.", 3), "BINPUT: the stack is empty"},
      {"long integer", "\x8a\xff" + std::string(255, '\x7f') + ".",
       "LONG1: an integer of 255 bytes"},
      {"endless text", "X\xff\xff\xff\xff" + std::string("abc."), "a text of 4294967295 bytes"},
      {"text behind the end", std::string("X\xff\x00\x00\x00", 5) + "abc.", "without STOP"},
      {"no STOP", "}", "without STOP"},
      {"nothing", "", "without STOP"},
      {"STOP of nothing", ".", "STOP: the stack is empty"},
      {"two results", "}}.", "more than one value is left"},
      {"a MARK is left", "(}.", "more than one value is left"},
      {"tuple of nothing", zero + "\x86.", "TUPLE2: the stack is empty"},
      {"tuple without MARK", zero + "t.", "TUPLE: there is no MARK"},
      {"call of nothing", ")R.", "REDUCE: the stack is empty"},
      {"below a MARK", "]" + zero + "(a.", "APPEND: the stack is empty"},
      {"unknown opcode", "\xff.", "opcode 0xff: is not an opcode that tensors need"},
      {"STACK_GLOBAL", text("os") + text("system") + "\x93.", "STACK_GLOBAL: is not an opcode"},
      {"INST", "(" + text("x") + "ios\nsystem\n.", "INST: is not an opcode"},
      {"OBJ", "(" + kOrderedDict + "o.", "OBJ: is not an opcode"},
      {"NEWOBJ", kOrderedDict + ")\x81.", "NEWOBJ: is not an opcode"},
      {"EXT1", "\x82\x01.", "EXT1: is not an opcode"},
      {"PERSID", "Pstorage\n.", "PERSID: is not an opcode"},
      {"second protocol", kStart + "}.", "PROTO: is not an opcode"},
      {"frame", std::string("\x95\x01\x00\x00\x00\x00\x00\x00\x00.", 10),
       "FRAME: is not an opcode"},
      {"a million values", std::string(kMaxPickleValues + 1, ']') + ".",
       "more than 1000000 values"},
      {"endless pickle", std::string(kMaxPickleBytes, '(') + ".", "more than 16777216 bytes"}};
}

TEST(Unpickler, RefusesHostilePicklesAndExecutesNothing) {
  size_t count = 0;
  for (const auto& group :
       {names_of_code(), calls_of_allowed_names(), misused_values(), broken_programs()}) {
    for (const Hostile& hostile : group) {
      const std::string error = error_of(kStart + hostile.bytes);
      EXPECT_NE(error.find(hostile.expected), std::string::npos) << hostile.name << ": " << error;
      EXPECT_NE(error.find("x.bin: pickle, byte "), std::string::npos)
          << hostile.name << ": " << error;
      EXPECT_LT(error.size(), 400u) << hostile.name;
      ++count;
    }
  }
  EXPECT_GE(count, 40u);
  EXPECT_FALSE(std::filesystem::exists("/tmp/snug-was-here-" + std::to_string(::getpid())));
}

TEST(Unpickler, RefusesOtherProtocols) {
  EXPECT_NE(error_of("\x80\x04}.").find("protocol 4, expected 2"), std::string::npos);
  EXPECT_NE(error_of("\x80\x05}.").find("protocol 5, expected 2"), std::string::npos);
  EXPECT_NE(error_of("(dp0\n.").find("expected a pickle of protocol 2"), std::string::npos);
  EXPECT_NE(error_of("").find("without STOP"), std::string::npos);
}

// Whatever bit is wrong, wherever the end is: a result or an error, never anything else.
TEST(Unpickler, SurvivesEveryFlippedBitAndEveryLength) {
  const std::string good = kStart + kOrderedDict + ")Rq\x05(" + text("w") +
                           tensor(storage("0", 12), {2, {2, 3}, {1, 3}}) + "u.";
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = char(uint8_t(bytes[bit / 8]) ^ (1u << bit % 8));
    error_of(bytes);
  }
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(error_of(good.substr(0, length)), "");
  }
}

}  // namespace
}  // namespace snug
