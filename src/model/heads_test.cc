// The heads of the families: their parameters, the words of their labels, their results, and what
// they refuse.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "model/adapter.h"
#include "model/config_test_util.h"
#include "model/distilled.h"
#include "model/model.h"

namespace snug {
namespace {

ModelConfig config_of(Family family, size_t labels, Problem problem = Problem::kOneLabel) {
  ModelConfig config = test_config(family, {.labels = labels});
  config.problem = problem;
  return config;
}

struct Expected {
  Family family;
  Head head;
  std::vector<std::string> parameters;  // of the head
  Rows rows;                            // of its result
  int64_t columns;
};

TEST(Heads, HaveTheNamesOfTransformers) {
  const std::vector<std::string> tagger = {"classifier.weight [5, 8]", "classifier.bias [1, 5]"};
  const std::vector<std::string> spans = {"qa_outputs.weight [2, 8]", "qa_outputs.bias [1, 2]"};
  for (const auto& [family, head, parameters, rows, columns] :
       {Expected{Family::kBert, Head::kTagger, tagger, Rows::kTargets, 5},
        {Family::kRoberta, Head::kTagger, tagger, Rows::kTargets, 5},
        {Family::kGpt2, Head::kTagger, tagger, Rows::kTargets, 5},
        {Family::kBert, Head::kSpans, spans, Rows::kTokens, 2},
        {Family::kRoberta, Head::kSpans, spans, Rows::kTokens, 2},
        {Family::kGpt2, Head::kSpans, spans, Rows::kTokens, 2},
        {Family::kDistilBert, Head::kTagger, tagger, Rows::kTargets, 5},
        {Family::kDistilBert, Head::kSpans, spans, Rows::kTokens, 2},
        {Family::kGpt2, Head::kClassifier, {"score.weight [5, 8]"}, Rows::kSequences, 5}}) {
    const auto model = make_model(config_of(family, 5), head);
    SCOPED_TRACE(architecture(family, head));
    std::vector<std::string> found;
    for (const Parameter& p : model->parameters()) {
      if (!p.is_head) continue;
      found.push_back(p.parts[0].name + " [" + std::to_string(p.rows) + ", " +
                      std::to_string(p.cols) + "]");
    }
    EXPECT_EQ(found, parameters);
    const StepGraph step = model->build({.purpose = Purpose::kScoring});
    EXPECT_NE(step.loss, kNoValue);
    EXPECT_EQ(step.graph.value(step.result).desc.rows_are, rows);
    EXPECT_EQ(step.graph.value(step.result).desc.cols, columns);
  }
}

TEST(Heads, SayHowManyWordsALabelHas) {
  for (const Family family : {Family::kBert, Family::kGpt2}) {
    const auto words = [&](size_t labels, Problem problem, Head head = Head::kClassifier,
                           LossOptions loss = {}) {
      return label_words(config_of(family, labels, problem), head, loss);
    };
    EXPECT_EQ(words(3, Problem::kOneLabel), 1);
    EXPECT_EQ(words(3, Problem::kOneLabel, Head::kClassifier, {.weighted = true}), 2);
    EXPECT_EQ(words(32, Problem::kManyLabels), 1);
    EXPECT_EQ(words(33, Problem::kManyLabels), 2);
    EXPECT_EQ(words(1, Problem::kNumbers), 1);
    EXPECT_EQ(words(3, Problem::kNumbers), 3);
    EXPECT_EQ(words(70, Problem::kOneLabel, Head::kTagger), 1);
    EXPECT_EQ(words(70, Problem::kOneLabel, Head::kTagger, {.weighted = true}), 71);
    EXPECT_EQ(words(1, Problem::kOneLabel, Head::kSpans), 2);
    EXPECT_EQ(words(1, Problem::kOneLabel, Head::kCausalLm), 1);
  }
}

template <class F>
std::string refusal(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(Heads, RefuseWhatTheyHaveNoUseFor) {
  struct Head_ {
    Head head;
    Problem problem;
    bool smooths, weighs, learns_from_teachers;
  };
  for (const auto& [head, problem, smooths, weighs, learns] :
       {Head_{Head::kClassifier, Problem::kOneLabel, true, true, true},
        {Head::kClassifier, Problem::kManyLabels, false, false, false},
        {Head::kClassifier, Problem::kNumbers, false, false, false},
        {Head::kTagger, Problem::kOneLabel, true, true, false},
        {Head::kSpans, Problem::kOneLabel, false, false, false},
        {Head::kMaskedLm, Problem::kOneLabel, false, false, true}}) {
    SCOPED_TRACE(testing::Message() << int(head) << ", " << int(problem));
    const ModelConfig config = config_of(Family::kBert, 3, problem);
    const auto model = make_model(config, head);
    const auto smooth = refusal([&] { model->build({.loss = {.label_smoothing = 0.1f}}); });
    const auto weigh = refusal([&] { model->build({.loss = {.weighted = true}}); });
    const auto learn = refusal([&, h = head] { make_distilled({config, config}, h, {}); });
    EXPECT_EQ(smooth.empty(), smooths) << smooth;
    EXPECT_EQ(weigh.empty(), weighs) << weigh;
    EXPECT_EQ(learn.empty(), learns) << learn;
  }
  EXPECT_NE(refusal([] {
              make_model(config_of(Family::kGpt2, 3), Head::kMaskedLm);
            }).find("one direction"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              make_model(config_of(Family::kBert, 3), Head::kCausalLm);
            }).find("both directions"),
            std::string::npos);
}

// Products of a layer's forward pass that have a row for each token.
int64_t token_products(const Model& model, int layer) {
  const StepGraph step = model.build({});
  return std::ranges::count_if(step.graph.nodes(), [&](const Node& node) {
    return node.in_forward && node.segment == 1 + layer && node.op->name() == "linear" &&
           step.graph.value(node.outputs[0]).desc.rows_are == Rows::kTokens;
  });
}

TEST(Heads, AClassifierComputesOneRowOfEachTextInItsLastLayer) {
  for (const Family family :
       {Family::kBert, Family::kRoberta, Family::kDistilBert, Family::kGpt2}) {
    SCOPED_TRACE(model_type(family));
    const ModelConfig config = config_of(family, 3);
    const int last = int(config.num_hidden_layers) - 1;
    ASSERT_GT(last, 0);
    const auto classifier = make_model(config, Head::kClassifier),
               tagger = make_model(config, Head::kTagger);
    EXPECT_EQ(token_products(*classifier, 0), 4);
    EXPECT_EQ(token_products(*classifier, last), family == Family::kGpt2 ? 1 : 0);  // q, k and v
    EXPECT_EQ(token_products(*tagger, last), 4);
    // With adapters there, q, k and v are products, and so is what the two of them add.
    const auto adapted =
        make_model(config, Head::kClassifier, {.freeze = {}, .lora = {.rank = 2, .targets = {}}});
    EXPECT_EQ(token_products(*adapted, last), family == Family::kGpt2 ? 2 : 3);
  }
}

TEST(Heads, AreTrainedWholeBesideAdapters) {
  for (const auto& [head, task, module] : {std::tuple{Head::kClassifier, "SEQ_CLS", "classifier"},
                                           {Head::kTagger, "TOKEN_CLS", "classifier"},
                                           {Head::kSpans, "QUESTION_ANS", "qa_outputs"}}) {
    const auto model = make_model(config_of(Family::kRoberta, 3), head,
                                  {.freeze = {}, .lora = {.rank = 2, .targets = {}}});
    const Json described = parse_json(describe_adapter(*model, "base"), "adapter_config.json");
    EXPECT_EQ(described["task_type"], task);
    EXPECT_EQ(described["modules_to_save"], Json({module}));
    for (const Parameter& p : model->parameters()) {
      EXPECT_EQ(p.trained, p.is_head || p.is_adapter) << p.name;
    }
  }
}

}  // namespace
}  // namespace snug
