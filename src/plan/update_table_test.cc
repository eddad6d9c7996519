#include "plan/update_table.h"

#include <gtest/gtest.h>

#include <map>

namespace snug {
namespace {

constexpr Optimizer kAll[] = {Optimizer::kAdamW,     Optimizer::kAdamW8Bit,
                              Optimizer::kAdamWBf16, Optimizer::kAdafactor,
                              Optimizer::kSgd,       Optimizer::kSgdMomentum};

ParameterTable some_parameters() {
  ParameterTable table = {
      {.name = "words",
       .rows = 301,
       .cols = 40,
       .is_factor = true,
       .is_table = true,
       .padded_rows = 304,
       .parts = {}},
      {.name = "joined",
       .rows = 120,
       .cols = 40,
       .is_factor = true,
       .parts = {{"q", 40}, {"k", 40}, {"v", 40}}},
      {.name = "bias",
       .cols = 120,
       .is_vector = true,
       .decays = false,
       .is_factor = true,
       .parts = {{"b", 120}}},
      {.name = "frozen", .rows = 90, .cols = 40, .is_factor = true, .trained = false, .parts = {}},
      {.name = "large", .rows = 257, .cols = 129, .is_factor = true, .parts = {}},
      {.name = "norm", .cols = 40, .is_vector = true, .decays = false, .parts = {}}};
  return table;
}

// Every array of every chunk lies inside its region of the arena, and no byte belongs to two of
// them.
TEST(UpdateTable, ArraysDoNotOverlap) {
  const ParameterTable table = some_parameters();
  for (Optimizer optimizer : kAll) {
    for (const auto& [compute, only_pass] : std::vector<std::pair<DType, bool>>{
             {DType::kF32, false}, {DType::kBF16, false}, {DType::kBF16, true}}) {
      const ArenaLayout layout = lay_out_arena(
          table, {.compute = compute, .optimizer = optimizer, .only_pass = only_pass});
      std::map<int64_t, int64_t> taken;  // first byte -> behind the last
      const auto take = [&](int64_t offset, int64_t bytes, const Stretch& region) {
        if (offset < 0) return;
        EXPECT_GE(offset, int64_t(region.offset));
        EXPECT_LE(offset + bytes, int64_t(region.offset + region.bytes));
        const auto after = taken.lower_bound(offset);
        if (after != taken.end()) {
          EXPECT_LE(offset + bytes, after->first);
        }
        if (after != taken.begin()) {
          EXPECT_LE(std::prev(after)->second, offset);
        }
        taken[offset] = offset + bytes;
      };
      const std::vector<UpdateChunk> chunks =
          update_chunks(table, layout, {.optimizer = optimizer, .compute = compute});
      EXPECT_EQ(chunks.size(), update_chunk_count(table));
      int64_t elements = 0;
      for (const UpdateChunk& c : chunks) {
        elements += c.count;
        const bool half = c.format == StateFormat::kHalfMoments,
                   eight = c.format == StateFormat::kEightBit;
        EXPECT_EQ(c.weight < 0, half);
        const int64_t moment = eight ? 1 : half ? 2 : 4, scales = (c.count + 255) / 256 * 4;
        take(c.weight, (c.split ? 2 : 4) * c.count, layout.trained);
        take(c.copy, (half ? 2 : int64_t(dtype_bytes(compute))) * c.count,
             half ? layout.halves : layout.copies);
        take(c.gradient, (c.gradient_form == GradientForm::kRounded ? 2 : 4) * c.count,
             layout.gradients);
        take(c.first, moment * c.count, layout.states);
        take(c.second, moment * c.count, layout.states);
        take(c.first_scale, scales, layout.states);
        take(c.second_scale, scales, layout.states);
      }
      EXPECT_EQ(elements, 301 * 40 + 120 * 40 + 120 + 257 * 129 + 40);
      for (const UpdateTensor& t :
           update_tensors(table, layout, {.optimizer = optimizer, .compute = compute})) {
        take(t.state, (t.rows + t.cols) * 4, layout.states);
      }
    }
  }
}

TEST(UpdateTable, AdafactorHasTheTensorsOfFiles) {
  const ParameterTable table = some_parameters();
  const ArenaLayout layout = lay_out_arena(table, {.optimizer = Optimizer::kAdafactor});
  const std::vector<UpdateTensor> tensors =
      update_tensors(table, layout, {.optimizer = Optimizer::kAdafactor});
  ASSERT_EQ(tensors.size(), 7u);  // words, q, k, v, bias, large, norm
  EXPECT_EQ(tensors[2].weight - tensors[1].weight, 40 * 40 * 4);
  EXPECT_EQ(tensors[4].rows, 0);
  EXPECT_EQ(tensors[4].cols, 120);
  EXPECT_TRUE(update_tensors(table, layout, {.optimizer = Optimizer::kAdamW}).empty());
}

TEST(UpdateTable, HalvesTakeTheMemoryOfNothingElse) {
  const ParameterTable table = some_parameters();
  const ArenaLayout plain = lay_out_arena(table, {.compute = DType::kBF16});
  const ArenaLayout halves =
      lay_out_arena(table, {.compute = DType::kBF16, .optimizer = Optimizer::kAdamWBf16});
  const size_t matrices = 120 * 40 + 257 * 129;
  EXPECT_EQ(plain.halves.bytes, 0u);
  EXPECT_NEAR(double(halves.halves.bytes), 2.0 * matrices, 512.0);
  // Without lower halves and with half the moments: six bytes less for each element.
  EXPECT_NEAR(double(plain.bytes - halves.bytes), 6.0 * matrices, 4096.0 + 2048.0);
}

// A bf16 copy is a half of the weight, an fp16 one lies beside it.
TEST(UpdateTable, SplitWeightsTakeNoMemoryForCopies) {
  const ParameterTable table = some_parameters();
  const double matrices = 120 * 40 + 257 * 129;
  const ArenaLayout split = lay_out_arena(table, {.compute = DType::kBF16}),
                    copied = lay_out_arena(table, {.compute = DType::kF16});
  EXPECT_EQ(split.copies.bytes, copied.copies.bytes);
  EXPECT_NEAR(double(copied.trained.bytes - split.trained.bytes), 2 * matrices, 512);
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(split.parameters[i].split, table[i].trained && table[i].is_matrix()) << i;
    EXPECT_FALSE(copied.parameters[i].split) << i;
  }
  const auto outside = [&](DType compute) {
    return lay_out_arena(table, {.compute = compute, .offload = Offload::kState}).outside_bytes;
  };
  EXPECT_NEAR(double(outside(DType::kF16) - outside(DType::kBF16)), 2 * matrices, 2 * 4096);
}

// Of matrices in bf16, whatever the plan; but only where nothing is added to them do they lie so,
// in the arena or outside.
TEST(UpdateTable, GradientsOfTheOnlyPassTakeHalf) {
  const ParameterTable table = some_parameters();
  const auto layout = [&](const ArenaNeeds& needs) { return lay_out_arena(table, needs); };
  const auto bf16 = [&](Offload offload, bool only_pass) {
    return layout({.compute = DType::kBF16, .offload = offload, .only_pass = only_pass});
  };
  const ArenaLayout added = bf16(Offload::kNone, false), only = bf16(Offload::kNone, true),
                    outside = bf16(Offload::kGradients, true);
  const double halves = 2.0 * (120 * 40 + 257 * 129);
  EXPECT_NEAR(double(added.gradients.bytes - only.gradients.bytes), halves, 512);
  EXPECT_NEAR(double(bf16(Offload::kGradients, false).outside_bytes - outside.outside_bytes),
              halves, 2 * 4096);
  for (size_t i = 0; i < table.size(); ++i) {
    const bool rounds = table[i].trained && table[i].is_matrix();
    const GradientForm of_many = rounds ? GradientForm::kRounds : GradientForm::kExact,
                       of_one = rounds ? GradientForm::kRounded : GradientForm::kExact;
    EXPECT_EQ(added.parameters[i].gradient_form, of_many) << i;
    EXPECT_EQ(outside.parameters[i].gradient_form, of_one) << i;
    EXPECT_EQ(only.parameters[i].gradient_form, of_one) << i;
    for (const DType compute : {DType::kF32, DType::kF16}) {
      EXPECT_EQ(layout({.compute = compute, .only_pass = true}).parameters[i].gradient_form,
                GradientForm::kExact);
    }
  }
  // A vocabulary's factor is added up from chunks of targets.
  ParameterTable decoder = table;
  decoder[4].padded_rows = 264;
  EXPECT_EQ(lay_out_arena(decoder, {.compute = DType::kBF16, .only_pass = true})
                .parameters[4]
                .gradient_form,
            GradientForm::kExact);
}

}  // namespace
}  // namespace snug
