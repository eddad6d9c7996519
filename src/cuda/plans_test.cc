// Whole training steps on the device against themselves: a plan says where things lie and when they
// are computed, not what comes out.
#include "cuda/engine_test_util.h"

namespace snug::cuda {
namespace {

using namespace whole_steps;

TEST_F(CudaEngineTest, TwoRunsOfOnePlanAreBitEqual) {
  SNUG_NEEDS_GPU();
  for (const DType compute : types_here()) {
    const Curve first = on_gpu({300, whole(1), compute}), second = on_gpu({300, whole(1), compute});
    expect_same(first, second);
  }
}

TEST_F(CudaEngineTest, OtherPlansAgreeToRounding) {
  SNUG_NEEDS_GPU();
  for (const auto& [compute, tolerance] :
       {std::pair{DType::kF32, 2e-5}, {half_here(), 1e-2}, {DType::kF16, 2e-3}}) {
    if (leaves_out_case()) continue;
    const Curve plain = on_gpu({kWhole, {}, compute});
    expect_close(on_gpu({kLongest, {}, compute}), plain, tolerance);
    for (const PartName& known : kPartNames) {
      const Curve again = on_gpu({kWhole, Recomputation(4, {known.part}), compute});
      EXPECT_EQ(again.losses, plain.losses) << known.name << " made again have the same bits";
      EXPECT_EQ(again.weights, plain.weights) << known.name;
    }
    EXPECT_EQ(on_gpu({kWhole, whole(3), compute}).losses, plain.losses)
        << "recomputation gives the same bits";
  }
}

// A word table that is the head's matrix too gets its gradient twice in a micro-batch.
TEST_F(CudaEngineTest, GradientsOfTiedTablesOnTheHostGiveTheSameBits) {
  SNUG_NEEDS_GPU();
  model_ = make_model(small_config(Family::kGpt2), Head::kCausalLm);
  for (const int64_t capacity : {kWhole, int64_t{300}}) {
    const Curve inside = on_gpu({.capacity = capacity, .compute = DType::kF32});
    const Curve outside =
        on_gpu({.capacity = capacity, .compute = DType::kF32, .offload = Offload::kGradients});
    SCOPED_TRACE(capacity);
    expect_same(outside, inside);
  }
}

// Where state and gradients lie changes nothing: the same kernels read them over the bus.
TEST_F(CudaEngineTest, StateAndGradientsOnTheHostGiveTheSameBits) {
  SNUG_NEEDS_GPU();
  for (const Optimizer optimizer :
       {Optimizer::kAdamW, Optimizer::kAdamW8Bit, Optimizer::kAdafactor}) {
    for (const DType compute : {DType::kF32, half_here()}) {
      for (const int64_t capacity : {kWhole, int64_t{300}}) {
        if (leaves_out_case()) continue;
        SCOPED_TRACE(testing::Message() << optimizer_name(optimizer) << ", " << dtype_name(compute)
                                        << ", " << capacity << " tokens");
        const auto variant = [&](Offload offload) {
          return Variant{
              .capacity = capacity, .compute = compute, .optimizer = optimizer, .offload = offload};
        };
        const Curve inside = on_gpu(variant(Offload::kNone));
        for (const Offload offload : {Offload::kState, Offload::kGradients}) {
          expect_same(on_gpu(variant(offload)), inside);
        }
      }
    }
  }
}

// What recomputed layers keep comes back as it was, for every bucket and micro-batch, beside
// whatever else lies on the host.
TEST_F(CudaEngineTest, ActivationsOnTheHostGiveTheSameBits) {
  SNUG_NEEDS_GPU();
  // The last layer's backward reads what two layers have made, and these stay.
  struct Case {
    DType compute;
    int64_t capacity;
    size_t layers, stowed;
  };
  for (const auto& [family, head] :
       {std::pair{Family::kBert, Head::kClassifier}, {Family::kGpt2, Head::kCausalLm}}) {
    ModelConfig config = small_config(family);
    config.num_hidden_layers = 6;
    model_ = make_model(config, head);
    for (const Case& c :
         {Case{DType::kF32, 300, 6, 4}, {half_here(), kWhole, 6, 4}, {half_here(), 300, 4, 3}}) {
      if (leaves_out_case()) continue;
      SCOPED_TRACE(testing::Message()
                   << architecture(family, head) << ", " << dtype_name(c.compute) << ", "
                   << c.capacity << " tokens, " << c.layers << " layers");
      Variant variant{.capacity = c.capacity, .recompute = whole(c.layers), .compute = c.compute};
      const Curve inside = on_gpu(variant, 5);
      variant.activations_outside = true;
      const Plan plan = plan_for(*model_, variant, DeviceKind::kCuda);
      EXPECT_EQ(plan.layout.stowed.size(), c.stowed);
      EXPECT_GE(plan.layout.outside_bytes,
                c.stowed * size_t(c.capacity * 128) * dtype_bytes(c.compute));
      for (const Offload offload : {Offload::kNone, Offload::kGradients}) {
        SCOPED_TRACE(testing::Message() << "offload " << int(offload));
        variant.offload = offload;
        expect_same(on_gpu(variant, 5), inside);
      }
    }
  }
}

TEST_F(CudaEngineTest, MemoryStaysAsItIsAfterTheStart) {
  SNUG_NEEDS_GPU();
  const Gpu gpu("cuda");
  Products products(gpu, cache_, false);
  for (const bool activations_outside : {false, true}) {
    const Variant variant{.capacity = 300,
                          .recompute = whole(3),
                          .compute = half_here(),
                          .activations_outside = activations_outside};
    const Plan plan = plan_for(*model_, variant, DeviceKind::kCuda);
    CudaEngine engine(*model_, plan, /*seed=*/5, gpu, products);
    train(engine, *model_, variant, 1);
    const uint64_t before = gpu.memory().used_bytes;
    train(engine, *model_, variant, 5);
    engine.score(step_data(*model_, 0, variant.capacity)[0].view());
    engine.result();
    EXPECT_EQ(gpu.memory().used_bytes, before) << activations_outside;
  }
}

TEST_F(CudaLanguageEngineTest, OtherPlansAgree) {
  SNUG_NEEDS_GPU();
  for (const auto& [compute, tolerance] : {std::pair{DType::kF32, 2e-5}, {half_here(), 1e-2}}) {
    const Curve plain = on_gpu({kWhole, {}, compute});
    expect_close(on_gpu({kLongest, {}, compute}), plain, tolerance);
    expect_close(on_gpu({kWhole, {}, compute, 100}), plain, tolerance);
    EXPECT_EQ(on_gpu({kWhole, whole(3), compute}).losses, plain.losses)
        << "recomputation gives the same bits";
    // cuBLASLt's product with tanh GELU rounds the activation from a sum that is not kept.
    expect_close(on_gpu({kWhole, Recomputation(4, {Part::kActivations}), compute}), plain,
                 tolerance);
  }
  EXPECT_EQ(on_gpu({kWhole, whole(1), half_here(), 256, true}).losses,
            on_gpu({kWhole, whole(1), half_here()}).losses)
      << "so do weights that are converted when used";
}

TEST_F(CudaLanguageEngineTest, TwoRunsOfOnePlanAreBitEqual) {
  SNUG_NEEDS_GPU();
  const Curve first = on_gpu({300, whole(1), half_here()}),
              second = on_gpu({300, whole(1), half_here()});
  expect_same(first, second);
}

TEST_F(CudaDistilledEngineTest, OtherPlansAgreeToRounding) {
  SNUG_NEEDS_GPU();
  for (const auto& [family, head] :
       {std::pair{Family::kBert, Head::kClassifier}, {Family::kGpt2, Head::kCausalLm}}) {
    distil(family, head);
    for (const auto& [compute, tolerance] : {std::pair{DType::kF32, 2e-5}, {half_here(), 1e-2}}) {
      if (leaves_out_case()) continue;
      const Curve kept = on_gpu({kWhole, {}, compute});
      expect_close(on_gpu({kLongest, {}, compute, 64}), kept, tolerance);
      EXPECT_EQ(on_gpu({kWhole, whole(3), compute}).losses, kept.losses)
          << "recomputation gives the same bits";
      EXPECT_EQ(on_gpu({kWhole, {}, compute, 256, compute != DType::kF32}).losses, kept.losses)
          << "so does converting weights";
    }
  }
}

}  // namespace
}  // namespace snug::cuda
