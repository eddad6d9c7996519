// A student that learns from a teacher. Both models' parameters are one table, the student's first,
// and both forward passes one step graph, the teacher's first, so that one plan counts them
// together. Whatever is not training is the student's alone.
#pragma once

#include <memory>

#include "model/model.h"
#include "ops/distillation.h"

namespace snug {

class Transformer;

// The student's parameters have the same numbers as in its own table, the teacher's begin behind
// them.
class Distilled final : public Model {
 public:
  // The teacher has the student's head and vocabulary, and no dropout.
  Distilled(std::unique_ptr<Transformer> student, std::unique_ptr<Transformer> teacher,
            const Distillation& distillation);
  ~Distilled() override;

  StepGraph build(const GraphOptions& options) const override;
  const ModelConfig& config() const override;
  const Tuning& tuning() const override;
  int layers() const override;
  int64_t max_length() const override;
  int64_t largest_product_side() const override;
  Head head() const override;

  const Model& student() const override;
  const Model* teacher() const override;

 private:
  std::unique_ptr<Transformer> student_, teacher_;
  Distillation distillation_;
};

struct DistilledConfigs {
  ModelConfig student, teacher;
  Tuning tuning{};  // of the student
};
std::unique_ptr<Distilled> make_distilled(DistilledConfigs configs, Head head,
                                          const Distillation& distillation);

}  // namespace snug
