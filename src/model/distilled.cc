#include "model/distilled.h"

#include <algorithm>

#include "core/error.h"
#include "model/transformer.h"

namespace snug {
namespace {

constexpr const char* kPrefix = "teacher.";

}  // namespace

Distilled::Distilled(std::unique_ptr<Transformer> student, std::unique_ptr<Transformer> teacher,
                     const Distillation& distillation)
    : student_(std::move(student)), teacher_(std::move(teacher)), distillation_(distillation) {
  SNUG_CHECK(student_->head() == teacher_->head());
  parameters_ = student_->parameters();
  for (Parameter parameter : teacher_->parameters()) {
    parameter.name = kPrefix + parameter.name;
    parameter.trained = false;
    parameters_.push_back(std::move(parameter));
  }
}

Distilled::~Distilled() = default;

StepGraph Distilled::build(const GraphOptions& options) const {
  if (options.purpose != Purpose::kTraining) return student_->build(options);
  GraphOptions without_backward = options;
  without_backward.purpose = Purpose::kScoring;
  without_backward.converts_weights = without_backward.bf16_weights = false;
  Graph graph;
  GraphWriter teacher(*teacher_, without_backward, graph,
                      {int(student_->parameters().size()), kPrefix});
  const Forward taught = teacher_->forward(teacher);
  GraphWriter writer(*student_, options, graph);
  writer.learn_from({.distillation = distillation_, .forward = taught, .writer = &teacher});
  return student_->complete(writer);
}

const ModelConfig& Distilled::config() const { return student_->config(); }
const Tuning& Distilled::tuning() const { return student_->tuning(); }
int Distilled::layers() const { return student_->layers(); }
int64_t Distilled::max_length() const {
  return std::min(student_->max_length(), teacher_->max_length());
}
int64_t Distilled::largest_product_side() const {
  return std::max(student_->largest_product_side(), teacher_->largest_product_side());
}
Head Distilled::head() const { return student_->head(); }
const Model& Distilled::student() const { return *student_; }
const Model* Distilled::teacher() const { return teacher_.get(); }

std::unique_ptr<Distilled> make_distilled(DistilledConfigs configs, Head head,
                                          const Distillation& distillation) {
  const bool language = head == Head::kCausalLm || head == Head::kMaskedLm;
  const bool one_label =
      head == Head::kClassifier && configs.student.problem_type() == Problem::kOneLabel;
  if (!language && !one_label) {
    fail(ErrorKind::kUsage,
         "--teacher: learning from a teacher is for clm, mlm, and classify with one label for each "
         "text");
  }
  ModelConfig& teacher = configs.teacher;
  teacher.embedding_dropout = teacher.hidden_dropout = teacher.attention_dropout = 0;
  teacher.classifier_dropout = 0;
  Tuning tuning = configs.tuning;
  teacher.quantized |= tuning.quantize;
  tuning.quantize &= !tuning.freeze.empty() ||
                     tuning.lora.rank > 0;  // else the teacher is all there is to quantise
  return std::make_unique<Distilled>(make_transformer(configs.student, head, tuning),
                                     make_transformer(teacher, head, {}), distillation);
}

}  // namespace snug
