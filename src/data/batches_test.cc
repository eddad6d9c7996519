#include "data/batches.h"

#include <bit>
#include <map>
#include <random>
#include <set>

#include "core/progress.h"
#include "data/test_support.h"

namespace snug {
namespace {

class BatchesTest : public ::testing::Test {
 protected:
  BatchesTest() { set_quiet(true); }

  Dataset dataset(size_t rows) const {
    std::string csv = "text,label\n";
    std::mt19937 random(3);
    for (size_t i = 0; i < rows; ++i) {
      csv += std::to_string(i);
      for (size_t n = random() % 20; n > 0; --n) csv += " w" + std::to_string(random() % 100);
      csv += "," + std::to_string(i % 2) + "\n";
    }
    return Dataset::open(folder_.write("x.csv", csv), tokenizer_, {.cache_folder = folder_.path()});
  }

  TemporaryFolder folder_;
  FakeTokenizer tokenizer_;
};

// Everything about a step, for comparison.
std::string description(const StepBatch& step) {
  std::string out = fmt::format("step {} epoch {} examples {} tokens {}\n", step.step, step.epoch,
                                step.examples, step.tokens);
  const auto list = [&](const char* name, auto values) {
    out += name;
    for (const auto value : values) out += " " + std::to_string(value);
    out += "\n";
  };
  for (const MicroBatch& batch : step.micro_batches) {
    list("ids", batch.ids);
    list("positions", batch.positions);
    list("types", batch.type_ids);
    list("row_of", batch.row_of);
    list("starts", batch.starts);
    list("labels", batch.labels);
    list("samples", batch.samples);
    list("rows", batch.rows);
  }
  return out;
}

std::vector<std::string> descriptions(const Dataset& data, const BatchOptions& options) {
  BatchStream stream(data, options);
  std::vector<std::string> out;
  for (const StepBatch* step = nullptr; stream.next(step);) out.push_back(description(*step));
  return out;
}

TEST(Packer, IsFirstFitDecreasingAndDeterministic) {
  Packer packer(8);
  const std::vector<uint32_t> lengths = {3, 7, 5, 0, 5, 2, 8};
  ASSERT_EQ(packer.pack(lengths, 10), 3u);
  EXPECT_TRUE(std::ranges::equal(packer.order(), std::vector<uint32_t>{6, 5, 1, 0, 2, 4}));
  EXPECT_TRUE(std::ranges::equal(packer.bin_sizes(), std::vector<uint32_t>{2, 2, 2}));
}

TEST(Packer, StaysWithinCapacityAndTheBoundOnBins) {
  std::mt19937 random(11);
  Packer packer(200);
  for (int round = 0; round < 500; ++round) {
    const int64_t capacity = 1 + int64_t(random() % 100);
    std::vector<uint32_t> lengths(1 + random() % 200);
    size_t total = 0;
    for (uint32_t& length : lengths) total += length = uint32_t(1 + random() % uint64_t(capacity));
    const size_t bins = packer.pack(lengths, capacity);
    EXPECT_LE(bins, 2 * total / size_t(capacity) + 1);
    size_t at = 0;
    std::set<uint32_t> seen;
    for (const uint32_t size : packer.bin_sizes()) {
      int64_t tokens = 0;
      for (uint32_t i = 0; i < size; ++i) {
        tokens += lengths[packer.order()[at]];
        seen.insert(packer.order()[at++]);
      }
      EXPECT_LE(tokens, capacity);
    }
    EXPECT_EQ(seen.size(), lengths.size());
  }
}

TEST_F(BatchesTest, CarryEveryExampleOncePerEpochWithItsContents) {
  const Dataset data = dataset(103);
  const BatchOptions options{.batch_size = 16, .capacity_tokens = 50, .last_step = 14};
  ASSERT_EQ(steps_per_epoch(data.rows(), options.batch_size), 7u);
  BatchStream stream(data, options);
  std::map<uint64_t, std::set<uint64_t>> rows_of_epoch;
  std::set<uint64_t> samples;
  RowByRow rows(data);
  uint64_t steps = 0;
  for (const StepBatch* step = nullptr; stream.next(step); ++steps) {
    EXPECT_EQ(step->step, steps);
    EXPECT_EQ(step->epoch, steps / 7);
    EXPECT_EQ(step->examples, steps % 7 == 6 ? 7u : 16u);
    for (const MicroBatch& micro : step->micro_batches) {
      const Batch batch = micro.view();
      EXPECT_LE(batch.dims.tokens, 50);
      EXPECT_EQ(batch.starts[batch.dims.sequences], batch.dims.tokens);
      int64_t longest = 0;
      for (int64_t s = 0; s < batch.dims.sequences; ++s) {
        const Example& example = rows.read(micro.rows[size_t(s)]);
        const int32_t begin = batch.starts[s], length = batch.starts[s + 1] - begin;
        longest = std::max<int64_t>(longest, length);
        ASSERT_EQ(size_t(length), example.ids.size());
        EXPECT_EQ(batch.labels[s], example.labels[0]);
        for (int32_t t = 0; t < length; ++t) {
          ASSERT_EQ(batch.ids[begin + t], example.ids[size_t(t)]);
          ASSERT_EQ(batch.type_ids[begin + t], example.type_ids[size_t(t)]);
          ASSERT_EQ(batch.positions[begin + t], t);
          ASSERT_EQ(batch.row_of[begin + t], s);
        }
        EXPECT_TRUE(rows_of_epoch[step->epoch].insert(micro.rows[size_t(s)]).second);
        EXPECT_TRUE(samples.insert(batch.samples[s]).second);
      }
      EXPECT_EQ(batch.dims.longest, longest);
    }
  }
  EXPECT_EQ(steps, 14u);
  EXPECT_EQ(rows_of_epoch[0].size(), 103u);
  EXPECT_EQ(rows_of_epoch[1].size(), 103u);
  EXPECT_EQ(*samples.rbegin(), 205u);
}

TEST_F(BatchesTest, StartAnywhereWithoutReplay) {
  const Dataset data = dataset(50);
  BatchOptions options{.batch_size = 7, .capacity_tokens = 40, .depth = 3, .last_step = 30};
  const std::vector<std::string> all = descriptions(data, options);
  ASSERT_EQ(all.size(), 30u);
  for (const uint64_t first : {1, 7, 8, 15, 29}) {
    options.first_step = first;
    EXPECT_EQ(descriptions(data, options),
              std::vector<std::string>(all.begin() + ptrdiff_t(first), all.end()));
  }
  options.first_step = 30;
  EXPECT_TRUE(descriptions(data, options).empty());
}

// The same examples, masks' names and labels in every step, however they are packed.
TEST_F(BatchesTest, ContentsDoNotDependOnTheCapacity) {
  const Dataset data = dataset(60);
  const auto contents = [&](int64_t capacity) {
    std::vector<std::map<uint64_t, uint64_t>> steps;
    BatchStream stream(data, {.batch_size = 9, .capacity_tokens = capacity, .last_step = 12});
    for (const StepBatch* step = nullptr; stream.next(step);) {
      auto& row_of_sample = steps.emplace_back();
      for (const MicroBatch& batch : step->micro_batches) {
        for (size_t s = 0; s < batch.rows.size(); ++s) {
          row_of_sample[batch.samples[s]] = batch.rows[s];
        }
      }
    }
    return steps;
  };
  EXPECT_EQ(contents(int64_t(data.longest())), contents(10'000));
}

TEST_F(BatchesTest, GoThroughTheFileInOrderForEvaluation) {
  const Dataset data = dataset(23);
  const BatchOptions options{
      .batch_size = 5, .capacity_tokens = 30, .shuffle = false, .last_step = 5};
  BatchStream stream(data, options);
  uint64_t next_row = 0;
  for (const StepBatch* step = nullptr; stream.next(step);) {
    std::set<uint64_t> rows;
    for (const MicroBatch& batch : step->micro_batches) {
      rows.insert(batch.rows.begin(), batch.rows.end());
    }
    for (const uint64_t row : rows) EXPECT_EQ(row, next_row++);
  }
  EXPECT_EQ(next_row, 23u);
}

TEST_F(BatchesTest, TakeBatchesLargerThanTheDataAndDropPartialOnes) {
  const Dataset data = dataset(10);
  BatchOptions options{.batch_size = 64, .capacity_tokens = 100, .last_step = 3};
  BatchStream stream(data, options);
  const StepBatch* step = nullptr;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    ASSERT_TRUE(stream.next(step));
    EXPECT_EQ(step->examples, 10u);
    EXPECT_EQ(step->epoch, epoch);
  }
  EXPECT_FALSE(stream.next(step));
  EXPECT_EQ(steps_per_epoch(10, 4), 3u);
  options.capacity_tokens = 3;
  EXPECT_TRUE(error_of([&] { BatchStream(data, options); }).starts_with("4: "));
}

TEST_F(BatchesTest, LeaveOutExamplesWithoutTokens) {
  const FakeTokenizer bare(1000, false);
  const Dataset data =
      Dataset::open(folder_.write("x.txt", "a b\n\nc\n\n\n"), bare,
                    {.labels = LabelNeed::kIgnored, .cache_folder = folder_.path()});
  BatchStream stream(data,
                     {.batch_size = 3, .capacity_tokens = 8, .shuffle = false, .last_step = 2});
  const StepBatch* step = nullptr;
  ASSERT_TRUE(stream.next(step));
  EXPECT_EQ(step->examples, 2u);
  ASSERT_TRUE(stream.next(step));
  EXPECT_EQ(step->examples, 0u);
  EXPECT_TRUE(step->micro_batches.empty());
}

// Every sequence brings the weights of all tags; the step counts those of the words that have one.
TEST_F(BatchesTest, WeighTags) {
  const Dataset data =
      Dataset::open(folder_.write("x.conll", "a B-X\nb O\n\nc O\nd O\ne I-X\n"), tokenizer_,
                    {.encoding = {.labelling = Labelling::kTags}, .cache_folder = folder_.path()});
  ASSERT_EQ(data.labels().names, (std::vector<std::string>{"B-X", "I-X", "O"}));
  const std::vector<float> weights = {2.0f, 0.5f, 0.25f};
  const BatchOptions options{.batch_size = 2,
                             .capacity_tokens = 20,
                             .token_task = TokenTask::kTag,
                             .class_weights = weights,
                             .last_step = 1};
  const size_t before = allocated_bytes();
  BatchStream stream(data, options);
  EXPECT_LE(allocated_bytes() - before,
            BatchStream::buffer_bytes(data, options) + 64 + weights.size() * sizeof(float));
  const StepBatch* step = nullptr;
  ASSERT_TRUE(stream.next(step));
  EXPECT_EQ(step->targets, 5u);
  EXPECT_EQ(step->weight, 2.0 + 0.5 + 3 * 0.25);
  const MicroBatch& batch = step->micro_batches[0];
  ASSERT_EQ(batch.label_words(), 4);
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    EXPECT_EQ(batch.labels[i], i % 4 == 0 ? -1 : std::bit_cast<int32_t>(weights[i % 4 - 1]));
  }
}

TEST_F(BatchesTest, TakeTheStatedMemoryAtOnceAndNoneLater) {
  const Dataset data = dataset(500);
  for (const uint64_t batch_size : {1, 7, 64, 1000}) {
    const BatchOptions options{
        .batch_size = batch_size, .capacity_tokens = 30, .depth = 3, .last_step = 600};
    const size_t stated = BatchStream::buffer_bytes(data, options);
    const size_t before = allocated_bytes();
    BatchStream stream(data, options);
    const size_t taken = allocated_bytes() - before;
    EXPECT_GE(taken, stated);
    EXPECT_LE(taken, stated + 64);  // what std::thread keeps for itself
    for (const StepBatch* step = nullptr; stream.next(step);) {
    }
    EXPECT_EQ(allocated_bytes() - before, taken);
  }
}

TEST_F(BatchesTest, MayBeLeftInTheMiddle) {
  const Dataset data = dataset(50);
  for (int steps = 0; steps < 5; ++steps) {
    BatchStream stream(data, {.batch_size = 5, .capacity_tokens = 40, .last_step = 1'000'000'000});
    const StepBatch* step = nullptr;
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(stream.next(step));
  }
}

TEST_F(BatchesTest, RethrowWhatFailedInTheBackground) {
  const Dataset data = dataset(50);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    // The open file loses its contents under the stream, as on a failing disk.
    if (entry.path().extension() == ".snug") std::filesystem::resize_file(entry.path(), 200);
  }
  BatchStream stream(data, {.batch_size = 5, .capacity_tokens = 40, .last_step = 10});
  const StepBatch* step = nullptr;
  EXPECT_THROW(while (stream.next(step)){}, Error);
  EXPECT_THROW(stream.next(step), Error);
}

}  // namespace
}  // namespace snug
