// What an operator tells the rest of snug: how much it needs, how it runs, and how its gradient is
// written into the same graph. src/ops/ holds one file per operator; nothing else knows them by
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "graph/recompute.h"

namespace snug {

class Memory;

// The sizes of a micro-batch: at planning time the capacity, at run time what is really there
// (never more).
struct Dims {
  int64_t tokens = 0;     // sum of the sequences' lengths
  int64_t sequences = 0;  // number of packed sequences
  int64_t longest = 0;    // tokens of the longest sequence
  // Tokens for which something is to be predicted; 0 where that is not the task.
  int64_t targets = 0;
  int64_t label_words = 1;  // numbers that make up the label of a sequence
};

// What a plan is made for.
enum class DeviceKind : uint8_t { kCpu, kCuda };
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 1;  // CPU only
};

// What the rows of a tensor count.
enum class Rows : uint8_t {
  kFixed,
  kTokens,
  kSequences,
  kTargets,
  kCache,  // sequences * longest of the capacity, whatever the micro-batch: keys and values of
           // generation
};

struct TensorDesc {
  DType dtype = DType::kF32;
  Rows rows_are = Rows::kFixed;
  int64_t rows = 1;  // when kFixed; otherwise taken from Dims
  int64_t cols = 1;

  int64_t row_count(const Dims& dims) const;
  size_t bytes(const Dims& dims) const;
};

// A placed tensor, row-major and contiguous: [rows, cols].
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;

  float* f32() const { return static_cast<float*>(data); }
  int64_t size() const { return rows * cols; }
  explicit operator bool() const { return data != nullptr; }
};

// One packed micro-batch. Sequences lie end to end without padding; sequence s is tokens
// [starts[s], starts[s+1]).
struct Batch {
  Dims dims;
  const int32_t* ids = nullptr;        // [tokens] vocabulary ids
  const int32_t* positions = nullptr;  // [tokens] 0.. within the sequence
  const int32_t* type_ids = nullptr;   // [tokens] segment: 0 first text, 1 second text
  const int32_t* row_of = nullptr;     // [tokens] which sequence a token belongs to
  const int32_t* starts = nullptr;     // [sequences + 1]
  // [sequences, label_words], what the loss is taken against. One class: its index, or -1 where
  // there is none; and where classes have weights, the bits of a float, its weight. Several
  // classes: a bit for each, 32 in a word. Numbers: the bits of a float each, NaN where there is
  // none. An answer: its first and last token, counted in the sequence, or -1. In generation: the
  // number of the text, which its draws are counted by.
  const int32_t* labels = nullptr;
  const uint64_t* samples = nullptr;     // [sequences] ordinal of the example in the run: names its
                                         // dropout masks, and in generation its place in the cache
  const int32_t* target_rows = nullptr;  // [targets] the tokens whose states predict, ascending
  const int32_t* target_ids = nullptr;   // [targets] what they are to predict; absent in generation
  const int32_t* by_id = nullptr;  // [tokens] tokens ordered by id, then by place; only on devices
};

// What is constant during one optimizer step.
struct StepContext {
  uint64_t seed = 0;
  bool training = false;  // dropout on
  // 1 / targets in the whole step: micro-batches add up to the step's mean.
  float loss_scale = 1.0f;
};

// One execution of a node. Absent optional tensors have a null data pointer.
struct Call {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<std::byte> workspace;  // workspace_bytes() or more, 64-byte aligned, contents undefined
  const Batch* batch = nullptr;
  const StepContext* step = nullptr;
  Memory* outside = nullptr;         // of the arena
  std::span<const size_t> stowed{};  // where the values of Graph::stowed() lie there
};

// What the size of a workspace depends on: the micro-batch, the device, and the shapes of one node.
struct Sizing {
  Dims dims;
  Device device;
  std::span<const TensorDesc> in, out;  // absent optional tensors have no columns
};

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct Node;
class GradientWriter;

// A node that makes one output of another from what that one read and wrote, at a fraction of its
// work.
struct Remake {
  std::shared_ptr<const class Op> op;
  std::vector<ValueId> inputs;
  Part part = Part::kSums;  // it is used where this is recomputed
};

class Op {
 public:
  virtual ~Op() = default;
  virtual std::string_view name() const = 0;
  // Scratch that lives during one call only.
  virtual size_t workspace_bytes(const Sizing& sizing) const {
    (void)sizing;
    return 0;
  }
  // On the CPU; src/cuda/ holds the kernels for the other device. Kernels allocate nothing,
  // synchronise nothing, log nothing.
  virtual void run(const Call& call) const = 0;
  // Its outputs are made again in backward instead of being kept, whatever is recomputed: it costs
  // next to nothing.
  virtual bool always_repeated() const { return false; }
  // How output `which` of `node` can be made again with the same bits, where that is cheaper than
  // running it again.
  virtual std::optional<Remake> remake(const Node& node, size_t which) const {
    (void)node, (void)which;
    return std::nullopt;
  }
  // Writes the nodes that compute the gradients of `node`'s inputs. Ops without gradient leave it.
  virtual void backward(const Node& node, GradientWriter& writer) const {
    (void)node, (void)writer;
  }
};

using OpPtr = std::shared_ptr<const Op>;

// A node's op reads `inputs` and writes `outputs`; an output may be accumulated into (+=), which
// the op knows.
struct Node {
  OpPtr op;
  std::vector<ValueId> inputs;   // kNoValue where an optional input is absent
  std::vector<ValueId> outputs;  // kNoValue where an optional output is not wanted
  int segment = 0;  // embeddings, each layer, head; in backward the one whose gradients it is for
  Part part = Part::kSums;  // of the segment: the unit of recomputation
  bool in_forward = true;
};

// Handed to Op::backward. Gradients of activations are created on demand; gradients of parameters
// are persistent.
class GradientWriter {
 public:
  struct Target {
    ValueId value = kNoValue;
    // True: somebody wrote a share already (or it is a parameter's), so add (+=).
    bool accumulate = false;
    explicit operator bool() const { return value != kNoValue; }
  };

  virtual ~GradientWriter() = default;
  // The gradient that flows into forward value `y`, or kNoValue when nothing downstream needs it.
  virtual ValueId gradient_of(ValueId y) = 0;
  // Where to write the gradient of forward value `x`; empty when nobody wants it (frozen, or an
  // input).
  virtual Target gradient_for(ValueId x) = 0;
  // The forward value as backward may read it: kept from the forward pass or recomputed.
  virtual ValueId saved(ValueId v) = 0;
  virtual void emit(OpPtr op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) = 0;
};

}  // namespace snug
