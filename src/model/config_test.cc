#include "model/config.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"

namespace snug {
namespace {

Json valid() {
  return Json::parse(
      R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 100,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 16, "some_future_field": {"kept": true}})");
}

ModelConfig with(const char* changes) {
  Json document = valid();
  document.update(Json::parse(changes));
  return parse_config(document.dump(), "config.json");
}

TEST(ParseConfig, DefaultsAreThoseOfTransformers) {
  const ModelConfig config = with("{}");
  EXPECT_EQ(config.vocab_size, 100);
  EXPECT_EQ(config.type_vocab_size, 2);
  EXPECT_EQ(config.pad_token_id, 0);
  EXPECT_EQ(config.hidden_act, HiddenAct::kGelu);
  EXPECT_EQ(config.hidden_dropout, 0.1);
  EXPECT_EQ(config.attention_dropout, 0.1);
  EXPECT_FALSE(config.classifier_dropout.has_value());
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
  EXPECT_EQ(config.num_labels(), 0);
  EXPECT_EQ(config.architectures, std::vector<std::string>{"BertForMaskedLM"});
}

TEST(ParseConfig, ReadsWhatIsThere) {
  const ModelConfig config =
      with(R"({"hidden_act": "gelu_new", "hidden_dropout_prob": 0, "classifier_dropout": 0.25,
    "layer_norm_eps": 1e-5, "pad_token_id": 3, "id2label": {"0": "no", "1": "yes"},
    "label2id": {"yes": 1, "no": 0},
    "num_labels": 2, "problem_type": "single_label_classification"})");
  EXPECT_EQ(config.hidden_act, HiddenAct::kGeluTanh);
  EXPECT_EQ(config.hidden_dropout, 0);
  EXPECT_EQ(config.classifier_dropout, 0.25);
  EXPECT_EQ(config.labels, (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(with(R"({"label2id": {"b": 1, "a": 0}})").labels, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(with(R"({"num_labels": 2})").labels, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(with(R"({"model_type": null, "architectures": null})").family, Family::kBert);
}

// transformers leaves id2label out where it is its default, two classes.
TEST(ParseConfig, HeadsOfClassesHaveTwoWhereTheFileIsSilent) {
  const std::vector<std::string> two = {"LABEL_0", "LABEL_1"};
  EXPECT_EQ(with(R"({"architectures": ["BertForSequenceClassification"]})").labels, two);
  EXPECT_EQ(with(R"({"architectures": ["BertForTokenClassification"], "id2label": null})").labels,
            two);
  EXPECT_EQ(
      with(R"({"architectures": ["BertForTokenClassification"], "num_labels": 3})").num_labels(),
      3);
  EXPECT_EQ(with(R"({"architectures": ["BertForSequenceClassification"], "label2id": {"only": 0}})")
                .num_labels(),
            1);
  for (const char* bare : {"BertModel", "BertForMaskedLM", "BertForQuestionAnswering"}) {
    EXPECT_EQ(with(Json{{"architectures", {bare}}}.dump().c_str()).num_labels(), 0) << bare;
  }
}

TEST(ParseConfig, RefusesBadValuesByName) {
  struct Case {
    const char* changes;
    const char* message;
  };
  const Case cases[] = {
      {R"({"hidden_size": 30})", "hidden_size 30 is not divisible by num_attention_heads 4"},
      {R"({"hidden_size": 0})", "hidden_size is 0, expected an integer from 1 to 65536"},
      {R"({"hidden_size": -32})", "hidden_size is -32"},
      {R"({"hidden_size": 32.0})", "hidden_size is 32.0, expected an integer"},
      {R"({"hidden_size": "32"})", "hidden_size is \"32\""},
      {R"({"hidden_size": null})", "hidden_size is missing"},
      {R"({"hidden_size": [32]})", "hidden_size is an array"},
      {R"({"hidden_size": true})", "hidden_size is true"},
      {R"({"num_hidden_layers": 0})", "num_hidden_layers is 0"},
      {R"({"num_hidden_layers": 1000000000})",
       "num_hidden_layers is 1000000000, expected an integer from 1 to 1000"},
      {R"({"num_hidden_layers": 18446744073709551615})",
       "num_hidden_layers is 18446744073709551615"},
      {R"({"num_hidden_layers": 9223372036854775808})", "num_hidden_layers is 9223372036854775808"},
      {R"({"num_attention_heads": 0})", "num_attention_heads is 0"},
      {R"({"num_attention_heads": 1000000000})", "num_attention_heads is 1000000000"},
      {R"({"vocab_size": 1000000000})", "vocab_size is 1000000000"},
      {R"({"intermediate_size": 1000000000})", "intermediate_size is 1000000000"},
      {R"({"max_position_embeddings": 1000000000})", "max_position_embeddings is 1000000000"},
      {R"({"type_vocab_size": 0})", "type_vocab_size is 0"},
      {R"({"pad_token_id": 100})", "pad_token_id is 100, expected less than vocab_size 100"},
      {R"({"pad_token_id": -1})", "pad_token_id is -1"},
      {R"({"hidden_dropout_prob": 1})",
       "hidden_dropout_prob is 1, expected a number from 0 to below 1"},
      {R"({"attention_probs_dropout_prob": -0.1})", "attention_probs_dropout_prob is -0.1"},
      {R"({"classifier_dropout": "0"})", "classifier_dropout is \"0\""},
      {R"({"layer_norm_eps": 0})", "layer_norm_eps is 0"},
      {R"({"initializer_range": -1})", "initializer_range is -1"},
      {R"({"hidden_act": "silu"})", "hidden_act is \"silu\", supported: gelu, gelu_new"},
      {R"({"hidden_act": 1})", "hidden_act is 1, expected a string"},
      {R"({"position_embedding_type": "relative_key"})",
       "position_embedding_type is \"relative_key\", supported: \"absolute\""},
      {R"({"is_decoder": true})", "is_decoder is true"},
      {R"({"add_cross_attention": true})", "add_cross_attention is true"},
      {R"({"pruned_heads": {"1": [0]}})", "pruned_heads"},
      {R"({"quantization_config": {"bits": 8}})", "quantization_config.quant_method is null"},
      {R"({"model_type": "t5"})",
       "model_type is \"t5\", supported: \"bert\", \"roberta\", \"distilbert\", \"gpt2\""},
      {R"({"model_type": 3})", "model_type is 3, expected a string"},
      {R"({"model_type": null, "architectures": ["T5Model"]})", "architectures names \"T5Model\""},
      {R"({"architectures": "BertModel"})", "architectures is \"BertModel\", expected an array"},
      {R"({"problem_type": "ranking"})", "problem_type is \"ranking\""},
      {R"({"id2label": {"0": "a", "2": "b"}})", "id2label has id 2, expected 0 to 1"},
      {R"({"id2label": {"0": "a", "01": "b"}})", "id2label has key \"01\", expected an id"},
      {R"({"id2label": {"0": "a", "1": "a"}})", "id2label has the label \"a\" twice"},
      {R"({"id2label": {"0": 7}})", "id2label gives id 0 the label 7"},
      {R"({"id2label": ["a"]})", "id2label is an array, expected an object"},
      {R"({"label2id": {"a": 0, "b": 0}})", "label2id gives \"a\" the id 0, but that id is \"b\""},
      {R"({"label2id": {"a": -1}})", "label2id gives \"a\" the id -1"},
      {R"({"id2label": {"0": "a"}, "label2id": {"b": 0}})",
       "label2id gives \"b\" the id 0, but that id is \"a\""},
      {R"({"id2label": {"0": "a"}, "label2id": {"a": 1}})",
       "label2id gives \"a\" the id 1, but that id is not in id2label"},
      {R"({"id2label": {"0": "a"}, "label2id": {"a": 0, "b": 1}})",
       "id2label has 1 labels, label2id has 2"},
      {R"({"id2label": {"0": "a"}, "num_labels": 2})", "num_labels is 2, but 1 labels are named"},
      {R"({"num_labels": 1000000000})", "num_labels is 1000000000"},
  };
  for (const Case& c : cases) {
    try {
      with(c.changes);
      ADD_FAILURE() << "accepted " << c.changes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      EXPECT_NE(std::string(error.what()).find(std::string("config.json: ") + c.message),
                std::string::npos)
          << c.changes << ": " << error.what();
    }
  }
  EXPECT_THROW(parse_config("[]", "config.json"), Error);
  EXPECT_THROW(parse_config("", "config.json"), Error);
}

TEST(ParseConfig, ReadsGpt2UnderItsOwnNames) {
  const char* text =
      R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_embd": 64,
    "n_layer": 3, "n_head": 2, "n_positions": 128, "n_ctx": 128, "embd_pdrop": 0.2, "eos_token_id": 50256})";
  const ModelConfig config = parse_config(text, "config.json");
  EXPECT_EQ(config.family, Family::kGpt2);
  EXPECT_EQ(head_of(config), Head::kCausalLm);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_EQ(config.max_length(), 128);
  EXPECT_EQ(config.hidden_act, HiddenAct::kGeluTanh);
  EXPECT_EQ(config.embedding_dropout, 0.2);
  EXPECT_EQ(config.hidden_dropout, 0.1);
  EXPECT_EQ(config.layer_norm_eps, 1e-5);
  EXPECT_EQ(config.eos_token_id, 50256);
  const Json written = Json::parse(to_json(config, Head::kCausalLm));
  EXPECT_EQ(written["n_inner"], 256);
  EXPECT_FALSE(written.contains("hidden_size"));
  EXPECT_FALSE(written.contains("id2label"));
  EXPECT_FALSE(written.contains("pad_token_id"));
  EXPECT_EQ(Json::parse(to_json(config, Head::kClassifier))["pad_token_id"], 50256);
}

TEST(ParseConfig, RobertasPositionsBeginBehindThePadding) {
  const ModelConfig config = with(R"({"model_type": "roberta", "max_position_embeddings": 66})");
  EXPECT_EQ(config.pad_token_id, 1);
  EXPECT_EQ(config.max_length(), 64);
  EXPECT_THROW(with(R"({"model_type": "roberta", "max_position_embeddings": 2})"), Error);
}

TEST(ParseConfig, EverySizeIsRequired) {
  for (const char* name : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                           "intermediate_size", "max_position_embeddings"}) {
    Json document = valid();
    document.erase(name);
    EXPECT_THROW(parse_config(document.dump(), "config.json"), Error) << name;
  }
}

TEST(ToJson, WritesLabelsAndKeepsTheRest) {
  ModelConfig config =
      with(R"({"num_labels": 5, "hidden_act": "gelu_pytorch_tanh", "dtype": "float16"})");
  config.labels = {"negative", "neutral", "positive"};
  const Json written = Json::parse(to_json(config, Head::kClassifier));
  EXPECT_EQ(written["id2label"],
            Json::parse(R"({"0": "negative", "1": "neutral", "2": "positive"})"));
  EXPECT_EQ(written["label2id"], Json::parse(R"({"negative": 0, "neutral": 1, "positive": 2})"));
  EXPECT_EQ(written["architectures"], Json::array({"BertForSequenceClassification"}));
  EXPECT_EQ(written["problem_type"], "single_label_classification");
  EXPECT_EQ(written["dtype"], "float32");
  EXPECT_EQ(written["torch_dtype"], "float32");
  EXPECT_EQ(written["hidden_act"], "gelu_pytorch_tanh");
  EXPECT_EQ(written["some_future_field"], Json::parse(R"({"kept": true})"));
  EXPECT_FALSE(written.contains("num_labels"));

  const ModelConfig again = parse_config(to_json(config, Head::kClassifier), "config.json");
  EXPECT_EQ(again.labels, config.labels);
  EXPECT_EQ(to_json(again, Head::kClassifier), to_json(config, Head::kClassifier));
}

TEST(ToJson, SaysWhetherWeightsAreQuantized) {
  ModelConfig config = with("{}");
  EXPECT_FALSE(config.quantized);
  config.quantized = true;
  ModelConfig again = parse_config(to_json(config, Head::kNone), "config.json");
  EXPECT_TRUE(again.quantized);
  again.quantized = false;
  EXPECT_FALSE(parse_config(to_json(again, Head::kNone), "config.json").quantized);
  for (const char* other : {R"({"quantization_config": {"quant_method": "gptq"}})",
                            R"({"quantization_config": {}})", R"({"quantization_config": 8})"}) {
    EXPECT_THROW(with(other), Error) << other;
  }
}

// transformers would give the head of answers an output for each.
TEST(ToJson, LeavesTheLabelsOfAnotherTask) {
  ModelConfig config = with(
      R"({"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}, "problem_type": "regression"})");
  const Json answers = parse_json(to_json(config, Head::kSpans), "config.json");
  for (const char* field : {"id2label", "label2id", "num_labels", "problem_type"}) {
    EXPECT_FALSE(answers.contains(field)) << field;
  }
  config.labels = {"O", "B-PER"};
  const Json tags = parse_json(to_json(config, Head::kTagger), "config.json");
  EXPECT_EQ(tags["id2label"], (Json{{"0", "O"}, {"1", "B-PER"}}));
  EXPECT_FALSE(tags.contains("problem_type"));
}

TEST(ToJson, NeedsNoSourceDocument) {
  ModelConfig config = with("{}");
  config.raw.clear();
  config.hidden_act = HiddenAct::kRelu;
  config.labels = {"score"};
  const ModelConfig again = parse_config(to_json(config, Head::kClassifier), "config.json");
  EXPECT_EQ(again.hidden_act, HiddenAct::kRelu);
  EXPECT_EQ(again.problem_type(), Problem::kNumbers);
  EXPECT_EQ(again.hidden_size, 32);
}

constexpr const char* kDistilBert =
    R"({"model_type": "distilbert", "vocab_size": 97, "dim": 36, "n_layers": 3, "n_heads": 4,
    "hidden_dim": 68, "max_position_embeddings": 40, "dropout": 0.3, "attention_dropout": 0.4, "activation": "relu",
    "sinusoidal_pos_embds": false, "tie_weights_": true, "architectures": ["DistilBertForMaskedLM"]})";

TEST(DistilBert, HasNamesOfItsOwn) {
  const ModelConfig config = parse_config(kDistilBert, "config.json");
  EXPECT_EQ(config.family, Family::kDistilBert);
  EXPECT_EQ(config.hidden_size, 36);
  EXPECT_EQ(config.num_hidden_layers, 3);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.intermediate_size, 68);
  EXPECT_EQ(config.max_length(), 40);
  EXPECT_EQ(config.type_vocab_size, 0);
  EXPECT_EQ(config.hidden_dropout, 0.3);
  EXPECT_EQ(config.embedding_dropout, 0.3);
  EXPECT_EQ(config.attention_dropout, 0.4);
  EXPECT_EQ(config.classifier_dropout, 0.2);  // transformers' defaults
  EXPECT_EQ(config.answer_dropout, 0.1);
  EXPECT_EQ(config.hidden_act, HiddenAct::kRelu);
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
  EXPECT_EQ(head_of(config), Head::kMaskedLm);
}

TEST(DistilBert, IsWrittenUnderThem) {
  ModelConfig config = parse_config(kDistilBert, "config.json");
  config.labels = {"no", "yes"};
  config.classifier_dropout = 0.5;
  const Json json = parse_json(to_json(config, Head::kClassifier), "config.json");
  EXPECT_EQ(json["model_type"], "distilbert");
  EXPECT_EQ(json["architectures"][0], "DistilBertForSequenceClassification");
  EXPECT_EQ(json["dim"], 36);
  EXPECT_EQ(json["seq_classif_dropout"], 0.5);
  EXPECT_EQ(json["dropout"], 0.3);
  EXPECT_EQ(json["activation"], "relu");
  for (const char* other :
       {"hidden_size", "type_vocab_size", "classifier_dropout", "layer_norm_eps"}) {
    EXPECT_FALSE(json.contains(other)) << other;
  }
}

TEST(DistilBert, IsCheckedUnderThem) {
  const auto error = [](const char* from, const char* to) -> std::string {
    std::string text = kDistilBert;
    text.replace(text.find(from), std::string_view(from).size(), to);
    try {
      parse_config(text, "config.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error("\"n_heads\": 4", "\"n_heads\": 5"),
            "config.json: dim 36 is not divisible by n_heads 5");
  EXPECT_EQ(error("\"dim\": 36, ", ""),
            "config.json: dim is missing, expected an integer from 1 to 65536");
  EXPECT_EQ(error("0.3", "3"), "config.json: dropout is 3, expected a number from 0 to below 1");
  EXPECT_EQ(error("\"model_type\": \"distilbert\", ", ""), "");  // early files lack it
}

}  // namespace
}  // namespace snug
