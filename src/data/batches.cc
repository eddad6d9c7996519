#include "data/batches.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "core/philox.h"
#include "data/epoch_order.h"
#include "data/row_window.h"

namespace snug {
namespace {

// The most that one step can hold.
struct StepLimits {
  size_t examples = 0, sequences = 0, tokens = 0, targets = 0, micro_batches = 0, label_words = 1;
};

StepLimits step_limits(const Dataset& data, const BatchOptions& options) {
  StepLimits limits;
  limits.examples = std::min(options.batch_size, data.epoch_examples());
  limits.sequences = limits.examples * data.most_sequences();
  limits.tokens = limits.examples * data.longest();
  if (data.shares().empty()) {
    // No row comes twice in a step.
    limits.tokens = std::min<uint64_t>(limits.tokens, data.tokens());
  }
  if (options.token_task == TokenTask::kNextWord || options.token_task == TokenTask::kTag) {
    limits.targets = limits.tokens;
  }
  if (options.token_task == TokenTask::kMaskedWord) {
    limits.targets = limits.examples * Masker::most_chosen(data.longest(), options.masks->share);
  }
  limits.label_words = data.label_words();
  if (!options.class_weights.empty()) {
    limits.label_words += options.token_task == TokenTask::kTag ? options.class_weights.size() : 1;
  }
  // First fit leaves at most one bin half empty or emptier: two bins hold more than one capacity.
  const size_t bins = 2 * limits.tokens / size_t(options.capacity_tokens) + 1;
  limits.micro_batches = std::min(limits.examples, bins);
  return limits;
}

// One step's memory. Micro-batches are stretches of the same arrays: reserving each for the whole
// capacity would take about twice as much.
struct StepBuffers {
  explicit StepBuffers(const StepLimits& limits) {
    for (auto* array : {&ids, &positions, &type_ids, &row_of}) array->resize(limits.tokens);
    starts.resize(limits.sequences + limits.micro_batches);
    labels.resize(limits.sequences * limits.label_words);
    samples.resize(limits.sequences);
    rows.resize(limits.sequences);
    target_rows.resize(limits.targets);
    target_ids.resize(limits.targets);
    micro_batches.resize(limits.micro_batches);
  }

  static size_t bytes(const StepLimits& limits) {
    return limits.tokens * 4 * sizeof(int32_t) +
           (limits.sequences + limits.micro_batches) * sizeof(int32_t) +
           limits.sequences * (limits.label_words * sizeof(int32_t) + 2 * sizeof(uint64_t)) +
           limits.targets * 2 * sizeof(int32_t) + limits.micro_batches * sizeof(MicroBatch);
  }

  std::vector<int32_t> ids, positions, type_ids, row_of, starts, labels, target_rows, target_ids;
  std::vector<uint64_t> samples, rows;
  std::vector<MicroBatch> micro_batches;
  StepBatch step;
};

// Fills one step's buffers after another's; used by one thread.
class StepMaker {
 public:
  StepMaker(const Dataset& data, const BatchOptions& options)
      : data_(data),
        options_(options),
        label_words_(step_limits(data, options).label_words),
        steps_per_epoch_(steps_per_epoch(data.epoch_examples(), options.batch_size)),
        packer_(step_limits(data, options).examples),
        lengths_(step_limits(data, options).examples),
        window_limits_(RowWindow::limits(data, lengths_.size())),
        window_(data, window_limits_),
        next_window_(data, window_limits_),
        window_end_(options.first_step) {
    read_ahead();
    example_.ids.reserve(data.longest());
    for (auto* list : {&example_.type_ids, &example_.tags}) list->reserve(data.longest());
    example_.labels.reserve(std::max<size_t>(data.label_words(), data.labels().names.size()));
    if (options.token_task == TokenTask::kMaskedWord) {
      masker_.emplace(options.masks, options.seed, data.longest());
    }
  }

  static size_t bytes(const Dataset& data, const BatchOptions& options, const StepLimits& limits) {
    const bool masks = options.token_task == TokenTask::kMaskedWord;
    return (masks ? Masker::bytes(data.longest()) : 0) + Packer::bytes(limits.examples) +
           limits.examples * sizeof(uint32_t) +
           2 * RowWindow::bytes(RowWindow::limits(data, limits.examples)) +
           data.longest() * 3 * sizeof(int32_t) +
           std::max<size_t>(data.label_words(), data.labels().names.size()) * sizeof(int32_t);
  }

  // Steps come one after the other, from the first on.
  void make(uint64_t number, StepBuffers& out) {
    const uint64_t epoch = number / steps_per_epoch_;
    const uint64_t first = number % steps_per_epoch_ * options_.batch_size;
    const size_t count = std::min(options_.batch_size, data_.epoch_examples() - first);
    look_up(number, count);
    const size_t bins = packer_.pack({lengths_.data(), count}, options_.capacity_tokens);
    out.step.step = number;
    out.step.epoch = epoch;
    Cursor at;
    weight_ = 0;
    for (size_t bin = 0; bin < bins; ++bin) {
      const auto members = packer_.order().subspan(at.example, packer_.bin_sizes()[bin]);
      out.micro_batches[bin] = fill(members, epoch * data_.epoch_examples() + first, at, out);
      at.example += members.size();
    }
    out.step.rows_checksum = 0;
    for (size_t i = 0; i < count; ++i) {
      out.step.rows_checksum += mix64(window_.row(step_begin_ + i));
    }
    out.step.examples = at.example;
    out.step.tokens = at.token;
    out.step.targets = options_.token_task == TokenTask::kNone ? at.example : at.target;
    out.step.weight = options_.class_weights.empty() ? double(out.step.targets) : weight_;
    out.step.micro_batches = std::span(out.micro_batches).first(bins);
  }

 private:
  // Where the next micro-batch begins in the step's arrays.
  struct Cursor {
    size_t example = 0, token = 0, sequence = 0, start = 0, target = 0;
  };

  void look_up(uint64_t number, size_t count) {
    if (number == window_end_) {
      next_window_.work(next_window_.effort_left());
      std::swap(window_, next_window_);
      window_end_ = number + steps_per_epoch(window_.size(), options_.batch_size);
      step_begin_ = 0;
      read_ahead();
    } else {
      step_begin_ += options_.batch_size;
    }
    next_window_.work(next_window_.effort_left() / (window_end_ - number));
    for (size_t i = 0; i < count; ++i) lengths_[i] = window_.length(step_begin_ + i);
  }

  // Begins with what follows the window. The first windows are small: nobody should wait long for
  // the first step.
  void read_ahead() {
    const uint64_t epoch = window_end_ / steps_per_epoch_,
                   first = window_end_ % steps_per_epoch_ * options_.batch_size;
    const uint64_t steps = std::min(steps_ahead_, options_.last_step - window_end_);
    const uint64_t count = std::min({steps * options_.batch_size, data_.epoch_examples() - first,
                                     uint64_t(window_limits_.rows)});
    next_window_.start(
        options_.shuffle ? EpochOrder(data_, options_.seed, epoch) : EpochOrder::of_files(data_),
        {.first = first, .count = count, .rows_per_step = options_.batch_size});
    steps_ahead_ = std::min<uint64_t>(2 * steps_ahead_, window_limits_.rows);
  }

  // `first_sample` is the ordinal of the step's first example in the run.
  MicroBatch fill(std::span<const uint32_t> members, uint64_t first_sample, Cursor& at,
                  StepBuffers& out) {
    const Cursor begin = at;
    MicroBatch batch;
    for (const uint32_t member : members) {
      window_.read(step_begin_ + member, example_);
      uint64_t sample = (first_sample + member) * data_.most_sequences();
      for (size_t done = 0; done < example_.ids.size();) {
        const size_t end = sequence_end(done);
        out.rows[at.sequence] = window_.row(step_begin_ + member);
        add_sequence(done, end, sample++, begin, at, out);
        batch.longest = std::max(batch.longest, int64_t(end - done));
        done = end;
      }
    }
    out.starts[at.start++] = int32_t(at.token - begin.token);
    const auto range = [](const auto& array, size_t first, size_t last) {
      return std::span(array).subspan(first, last - first);
    };
    batch.ids = range(out.ids, begin.token, at.token);
    batch.positions = range(out.positions, begin.token, at.token);
    batch.type_ids = range(out.type_ids, begin.token, at.token);
    batch.row_of = range(out.row_of, begin.token, at.token);
    batch.starts = range(out.starts, begin.start, at.start);
    batch.labels = range(out.labels, begin.sequence * label_words_, at.sequence * label_words_);
    batch.samples = range(out.samples, begin.sequence, at.sequence);
    batch.rows = range(out.rows, begin.sequence, at.sequence);
    batch.target_rows = range(out.target_rows, begin.target, at.target);
    batch.target_ids = range(out.target_ids, begin.target, at.target);
    return batch;
  }

  // Where the sequence that begins at token `begin` of the example ends: behind the next separator.
  size_t sequence_end(size_t begin) const {
    const auto& ids = example_.ids;
    if (data_.separator() < 0) return ids.size();
    const auto found = std::find(ids.begin() + ptrdiff_t(begin), ids.end(), data_.separator());
    return size_t(found - ids.begin()) + (found != ids.end());
  }

  // Tokens [first, last) of the example.
  void add_sequence(size_t first, size_t last, uint64_t sample, const Cursor& batch, Cursor& at,
                    StepBuffers& out) {
    const size_t length = last - first;
    const auto ids = std::span(out.ids).subspan(at.token, length);
    std::copy_n(example_.ids.begin() + ptrdiff_t(first), length, ids.begin());
    std::copy_n(example_.type_ids.begin() + ptrdiff_t(first), length,
                out.type_ids.begin() + ptrdiff_t(at.token));
    const auto positions = out.positions.begin() + ptrdiff_t(at.token);
    std::iota(positions, positions + ptrdiff_t(length), 0);
    std::fill_n(out.row_of.begin() + ptrdiff_t(at.token), length,
                int32_t(at.sequence - batch.sequence));
    add_targets(sample, ids, int32_t(at.token - batch.token), at, out);
    out.starts[at.start++] = int32_t(at.token - batch.token);
    add_labels(out.labels.data() + at.sequence * label_words_);
    out.samples[at.sequence++] = sample;
    at.token += length;
  }

  void add_labels(int32_t* to) {
    std::ranges::copy(example_.labels, to);
    if (options_.class_weights.empty()) return;
    if (options_.token_task == TokenTask::kTag) {
      std::memcpy(to + example_.labels.size(), options_.class_weights.data(),
                  options_.class_weights.size() * sizeof(float));
      return;
    }
    const int32_t label = example_.labels[0];
    const float weight = label < 0 ? 0.0f : options_.class_weights[size_t(label)];
    to[label_words_ - 1] = std::bit_cast<int32_t>(weight);
    weight_ += weight;
  }

  void add_targets(uint64_t sample, std::span<int32_t> ids, int32_t first_row, Cursor& at,
                   StepBuffers& out) {
    if (options_.token_task == TokenTask::kNone) return;
    int32_t *const rows = out.target_rows.data() + at.target, *const originals =
                                                                  out.target_ids.data() + at.target;
    size_t count = 0;
    if (options_.token_task == TokenTask::kNextWord) {
      for (; count + 1 < ids.size(); ++count) {
        rows[count] = int32_t(count), originals[count] = ids[count + 1];
      }
    } else if (options_.token_task == TokenTask::kTag) {
      for (size_t t = 0; t < ids.size(); ++t) {
        const int32_t tag = example_.tags[t];
        if (tag < 0) continue;
        rows[count] = int32_t(t), originals[count++] = tag;
        if (!options_.class_weights.empty()) weight_ += options_.class_weights[size_t(tag)];
      }
    } else {
      // Evaluation masks the same tokens every time.
      count =
          masker_->apply(options_.shuffle ? sample : sample % data_.rows(), ids, rows, originals);
    }
    for (size_t i = 0; i < count; ++i) rows[i] += first_row;
    at.target += count;
  }

  const Dataset& data_;
  BatchOptions options_;
  size_t label_words_;
  uint64_t steps_per_epoch_;
  Packer packer_;
  std::vector<uint32_t> lengths_;  // [examples of the step]
  RowWindow::Limits window_limits_;
  RowWindow window_, next_window_;  // the step is in the first; the other is being read meanwhile
  uint64_t window_end_;             // the step behind the window
  size_t step_begin_ = 0;           // in the window
  uint64_t steps_ahead_ = 1;        // to be read next
  Example example_;
  double weight_ = 0;  // of the examples, or tags, in this step
  std::optional<Masker> masker_;
};

void check_options(const Dataset& data, const BatchOptions& options) {
  SNUG_CHECK(options.batch_size > 0 && options.capacity_tokens > 0 && options.depth > 0);
  if (int64_t(data.longest()) > options.capacity_tokens) {
    fail(ErrorKind::kBudget,
         "{}: its longest text has {} tokens, a micro-batch only {}; use a smaller --max-length",
         data.source().string(), data.longest(), options.capacity_tokens);
  }
}

}  // namespace

Batch MicroBatch::view() const {
  return {.dims = {.tokens = int64_t(ids.size()),
                   .sequences = sequences(),
                   .longest = longest,
                   .targets = int64_t(target_rows.size()),
                   .label_words = label_words()},
          .ids = ids.data(),
          .positions = positions.data(),
          .type_ids = type_ids.data(),
          .row_of = row_of.data(),
          .starts = starts.data(),
          .labels = labels.data(),
          .samples = samples.data(),
          .target_rows = target_rows.data(),
          .target_ids = target_ids.data(),
          .by_id = nullptr};
}

uint64_t steps_per_epoch(uint64_t rows, uint64_t batch_size) {
  return (rows + batch_size - 1) / batch_size;
}

Packer::Packer(size_t max_sequences) {
  for (auto* array : {&sorted_, &bin_of_, &order_, &bin_sizes_, &bin_ends_}) {
    array->reserve(max_sequences);
  }
  bin_left_.reserve(max_sequences);
}

size_t Packer::bytes(size_t max_sequences) {
  return max_sequences * (5 * sizeof(uint32_t) + sizeof(int64_t));
}

size_t Packer::pack(std::span<const uint32_t> lengths, int64_t capacity) {
  sorted_.clear();
  for (uint32_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > 0) sorted_.push_back(i);
  }
  // Ties by index instead of a stable sort, which would allocate.
  std::ranges::sort(sorted_, [&](uint32_t a, uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  });

  bin_left_.clear();
  bin_sizes_.clear();
  bin_of_.resize(lengths.size());
  for (const uint32_t i : sorted_) {
    const int64_t length = lengths[i];
    SNUG_CHECK(length <= capacity);
    auto bin = std::ranges::find_if(bin_left_, [&](int64_t left) { return left >= length; });
    if (bin == bin_left_.end()) {
      bin_left_.push_back(capacity);
      bin_sizes_.push_back(0);
      bin = bin_left_.end() - 1;
    }
    *bin -= length;
    bin_of_[i] = uint32_t(bin - bin_left_.begin());
    ++bin_sizes_[bin_of_[i]];
  }

  bin_ends_.resize(bin_sizes_.size());
  std::exclusive_scan(bin_sizes_.begin(), bin_sizes_.end(), bin_ends_.begin(), 0u);
  order_.resize(sorted_.size());
  for (const uint32_t i : sorted_) order_[bin_ends_[bin_of_[i]]++] = i;
  return bin_sizes_.size();
}

// A ring of depth + 1 steps: the one being used, and those ready ahead of it.
struct BatchStream::Impl {
  Impl(const Dataset& data, const BatchOptions& options)
      : maker(data, options),
        made(options.first_step),
        used(options.first_step),
        last(options.last_step) {
    const StepLimits limits = step_limits(data, options);
    ring.reserve(size_t(options.depth) + 1);
    for (int i = 0; i <= options.depth; ++i) ring.emplace_back(limits);
    thread = std::thread([this] { work(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  StepBuffers& buffers(uint64_t step) { return ring[step % ring.size()]; }

  void work() {
    try {
      for (uint64_t step = made; step < last; ++step) {
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return stopping || step < used + ring.size(); });
          if (stopping) return;
        }
        maker.make(step, buffers(step));
        const std::lock_guard lock(mutex);
        made = step + 1;
        changed.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
      changed.notify_all();
    }
  }

  StepMaker maker;
  std::vector<StepBuffers> ring;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t made, used;  // steps before `used` are done with; [used, made) are ready or in use
  uint64_t last;
  bool in_use = false;  // step `used` is with the caller
  bool stopping = false;
  std::exception_ptr error;
  std::thread thread;  // joined by the destructor, before anything above goes
};

BatchStream::BatchStream(const Dataset& data, const BatchOptions& options) {
  check_options(data, options);
  impl_ = std::make_unique<Impl>(data, options);
}

BatchStream::~BatchStream() = default;

bool BatchStream::next(const StepBatch*& step) {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  if (impl.in_use) {
    ++impl.used;
    impl.in_use = false;
    impl.changed.notify_all();
  }
  if (impl.used >= impl.last) return false;
  impl.changed.wait(lock, [&] { return impl.made > impl.used || impl.error; });
  if (impl.made == impl.used) std::rethrow_exception(impl.error);
  impl.in_use = true;
  step = &impl.buffers(impl.used).step;
  return true;
}

size_t BatchStream::buffer_bytes(const Dataset& data, const BatchOptions& options) {
  const StepLimits limits = step_limits(data, options);
  return (size_t(options.depth) + 1) * (sizeof(StepBuffers) + StepBuffers::bytes(limits)) +
         StepMaker::bytes(data, options, limits) + sizeof(Impl);
}

}  // namespace snug
