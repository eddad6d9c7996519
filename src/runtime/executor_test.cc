#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <set>

#include "model/config_test_util.h"
#include "plan/plan_test_util.h"

namespace snug {
namespace {

// Memory of inputs that are said to die is not read before somebody writes there, by nobody who
// walks the graph again either; and most of what passes between two nodes dies.
TEST(Executor, NobodyReadsWhatHasDied) {
  const auto model = make_model(test_config(Family::kBert, {}), Head::kClassifier, {});
  PlanRequest request =
      test_request(*model, {.batch_size = 4, .longest = 16, .step_tokens = 4 * 16});
  const Plan plan = make_plan(request);
  ASSERT_TRUE(plan.fits);
  std::vector<std::byte> arena(plan.arena_bytes);
  for (const auto& [step, memory] :
       {std::pair(plan.step, plan.step_memory), std::pair(plan.scoring, plan.scoring_memory)}) {
    Executor executor(step->graph, memory, plan.layout, arena.data());
    std::set<const void*> dead;
    size_t died = 0, read = 0;
    for (int walk = 0; walk < 2; ++walk) {
      executor.for_each(plan.capacity, [&](const Executor::Placed& node) {
        std::set<const void*> dying;
        for (size_t i = 0; i < node.in.size(); ++i) {
          if (!node.in[i]) continue;
          EXPECT_FALSE(dead.contains(node.in[i].data)) << node.op.name() << " input " << i;
          ++read;
          if (node.dying >> i & 1) dying.insert(node.in[i].data);
        }
        for (const Tensor& out : node.out) {
          EXPECT_FALSE(out && dying.contains(out.data)) << node.op.name();
          if (out) dead.erase(out.data);
        }
        died += dying.size();
        dead.merge(dying);
      });
    }
    EXPECT_GT(died, read / 8);
  }
}

}  // namespace
}  // namespace snug
