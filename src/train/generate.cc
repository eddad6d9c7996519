// `snug generate`: texts written token by token. Keys and values of what is written lie in the
// arena, so the plan counts them; texts are written side by side, as many as fit. A text's draws
// are counted by its number, so what is written does not depend on how many there are at once.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/error.h"
#include "core/json.h"
#include "core/process_memory.h"
#include "core/progress.h"
#include "data/batch_builder.h"
#include "data/row_reader.h"
#include "text/text_stream.h"
#include "train/generation_config.h"
#include "train/session.h"
#include "train/task_evaluation.h"
#include "train/training_job.h"

namespace snug {
namespace {

// Tokens of prompts that are read at once: enough to keep all processors busy.
constexpr int64_t kPromptTokens = 512;
// What a written token takes until the end: about six bytes of a text, which grows by doubling.
constexpr uint64_t kWrittenBytes = 12;
// After sliding, the draws of a text count on from here.
constexpr int32_t kNumbersPerSlide = 1 << 20;
// What a prompt takes while it is tokenized, in bytes of its text; long words are checked apart,
// see EncodeOptions.
constexpr uint64_t kTokenizingTimes = 3;
// Prompts that take no more than this are read whatever the budget, so that the plan can say how
// much would be enough.
constexpr uint64_t kUsualPromptBytes = 16 << 20;

// How tokens are chosen, and when a text ends.
struct Style {
  int64_t max_new_tokens = 100;
  SampleSpec sample = {.temperature = 1.0f, .top_k = 50};
  std::vector<int32_t> ends;  // tokens that end a text
  std::vector<std::string> stops;
};

// What the user says, then what the model's files say, then the defaults.
Style style_of(const GenerateOptions& o, const ModelFolder& folder) {
  const GenerationConfig config = folder.generation_config();
  Style style;
  std::vector<std::string> taken;
  const auto choose = [&](auto& to, const auto& asked, const auto& stated, const char* flag) {
    using To = std::remove_reference_t<decltype(to)>;
    if (asked) {
      to = To(*asked);
    } else if (stated) {
      to = To(*stated);
      taken.push_back(fmt::format("{} {}", flag, *stated));
    }
  };
  choose(style.max_new_tokens, o.max_new_tokens, config.max_new_tokens, "--max-new-tokens");
  choose(style.sample.temperature, o.temperature, config.temperature, "--temperature");
  choose(style.sample.top_k, o.top_k, config.top_k, "--top-k");
  choose(style.sample.top_p, o.top_p, config.top_p, "--top-p");
  choose(style.sample.repetition_penalty, o.repetition_penalty, config.repetition_penalty,
         "--repetition-penalty");
  style.sample.seed = o.seed;
  style.stops = o.stop.empty() ? config.stops : o.stop;
  if (o.stop.empty() && !config.stops.empty()) taken.push_back("texts that end the writing");
  if (!taken.empty()) {
    say(fmt::format("from the model's generation_config.json: {}", fmt::join(taken, ", ")));
  }
  if (!config.not_followed.empty()) {
    warn(fmt::format("the model's generation_config.json sets {}, which snug does not follow",
                     fmt::join(config.not_followed, ", ")));
  }
  style.ends = config.ends;
  const int32_t end = folder.end_of_text();
  if (style.ends.empty() && end >= 0) style.ends.push_back(end);
  return style;
}

void check(const GenerateOptions& o) {
  const auto require = [](bool good, const char* flag, auto value, const std::string& expected) {
    if (!good) fail(ErrorKind::kUsage, "{} is {}, expected {}", flag, value, expected);
  };
  const auto follow = [&](const std::optional<double>& given, const char* flag,
                          const NumberRule& rule) {
    if (given) require(rule.good(*given), flag, *given, rule.expected);
  };
  const int64_t tokens = o.max_new_tokens.value_or(1), top_k = o.top_k.value_or(0);
  require(tokens > 0 && tokens <= kMostNewTokens, "--max-new-tokens", tokens,
          fmt::format("1 to {}", kMostNewTokens));
  require(top_k >= 0, "--top-k", top_k, "zero or more");
  follow(o.temperature, "--temperature", kTemperatureRule);
  follow(o.top_p, "--top-p", kTopPRule);
  follow(o.repetition_penalty, "--repetition-penalty", kPenaltyRule);
  require(o.num_return > 0 && o.num_return < kNumbersPerSlide, "--num-return", o.num_return,
          fmt::format("1 to {}", kNumbersPerSlide - 1));
  require(o.batch_size > 0, "--batch-size", o.batch_size, "a number above zero");
  if (std::ranges::find(o.stop, "") != o.stop.end()) {
    fail(ErrorKind::kUsage, "--stop is empty, expected a text");
  }
  if (o.prompts.empty() == o.input.empty()) {
    fail(ErrorKind::kUsage, "give either --prompt or --input");
  }
}

// Holds back what may become a stop text, and cuts at the first that comes.
class StopFinder {
 public:
  explicit StopFinder(const std::vector<std::string>& stops) : stops_(stops) {}

  // What is certain of the text so far; `found` once a stop text is complete.
  std::string push(const std::string& piece) {
    held_ += piece;
    size_t end = std::string::npos;
    for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
    if (end != std::string::npos) {
      found = true;
      return take(end);
    }
    size_t keep = 0;
    for (const std::string& stop : stops_) {
      for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
        if (held_.ends_with(std::string_view(stop).substr(0, length))) keep = length;
      }
    }
    return take(held_.size() - keep);
  }
  std::string flush() { return found ? "" : take(held_.size()); }

  bool found = false;

 private:
  std::string take(size_t bytes) {
    std::string text = held_.substr(0, bytes);
    held_.erase(0, bytes);
    return text;
  }

  const std::vector<std::string>& stops_;
  std::string held_;
};

// A text that is being written.
struct Writing {
  Writing(size_t number, const Style& style, const Tokenizer& tokenizer)
      : number(number), decoder(tokenizer), stops(style.stops) {}

  size_t number;
  std::vector<int32_t> ids;  // the prompt and what was written
  int64_t position = 0;      // of the next token that the model has not read, in its own count
  size_t unread = 0;         // index of that token in ids
  uint32_t slides = 0;
  TextStream decoder;
  StopFinder stops;
};

class Generator {
 public:
  Generator(const GenerateOptions& options,
            const std::function<void(size_t, const std::string&)>& on_piece);
  GenerateSummary run();

 private:
  uint64_t room_for_prompts();
  uint64_t record_room(const std::filesystem::path& file) const;
  void read_prompts();
  void read_prompt_file();
  void count_prompt(const std::string& text, size_t number);
  void add_prompt(const std::string& text);
  int64_t needed_context() const;
  void make_plan_and_start();
  void write_together(size_t first, size_t count);
  void read_unread(std::vector<Writing*>& texts);
  void take_results(std::vector<Writing*>& texts);
  void add_token(Writing& text, int32_t id, double log_probability);
  void add_piece(Writing& text, const std::string& piece);
  void finish(Writing& text, const char* reason);
  void slide(Writing& text);
  BatchBuilder::Text place_of(const Writing& text) const {
    // Begins again with the first numbers after 2048 slides; negative ones would mean something
    // else in a batch.
    const uint32_t number = uint32_t(text.number) + text.slides * uint32_t(kNumbersPerSlide);
    return {text.number % size_t(session_.plan().capacity.sequences),
            int32_t(number & uint32_t(INT32_MAX))};
  }

  GenerateOptions options_;
  const std::function<void(size_t, const std::string&)>& on_piece_;
  Session session_;
  const Style style_;
  const uint64_t prompt_room_;
  uint64_t prompt_bytes_ = 0;
  std::vector<std::vector<int32_t>>
      prompts_;  // as ids; of one that is too long the last, one above the model's positions
  Encoding encoding_;
  int64_t context_ = 0;
  std::unique_ptr<BatchBuilder> batch_;
  GenerateSummary summary_;
};

Generator::Generator(const GenerateOptions& options,
                     const std::function<void(size_t, const std::string&)>& on_piece)
    : options_(options),
      on_piece_(on_piece),
      session_(options, Head::kCausalLm),
      style_(style_of(options_, session_.folder())),
      prompt_room_(room_for_prompts()) {
  read_prompts();
  context_ = needed_context();
  make_plan_and_start();
}

// What prompts may take: the arena is not there yet, so it is all that the process does not occupy
// by now.
uint64_t Generator::room_for_prompts() {
  if (session_.platform().name() != "cpu") {
    return std::numeric_limits<uint64_t>::max();  // texts are not where the budget is
  }
  trim_allocator();
  const uint64_t budget = session_.platform().budget(options_.memory_bytes),
                 occupied = resident_bytes();
  return budget > occupied ? budget - occupied : 0;
}

uint64_t Generator::record_room(const std::filesystem::path& file) const {
  constexpr uint64_t kMany = 2 * kUsualTextBytes;
  const uint64_t reading_times = (reading_bytes(file, kMany) - reading_bytes(file, 0)) / kMany;
  return std::max(prompt_room_ / (reading_times + kTokenizingTimes), kUsualTextBytes);
}

void Generator::read_prompts() {
  if (!options_.input.empty()) read_prompt_file();
  for (const std::string& text : options_.prompts) add_prompt(text);
  if (prompts_.empty()) fail(ErrorKind::kInput, "{}: no prompts", options_.input);
}

void Generator::read_prompt_file() {
  RowReaderOptions reading = reader_options(options_, RowKind::kTexts, LabelNeed::kIgnored);
  reading.columns.text_pair = "-";
  reading.record_room =
      record_room(options_.input == "-" ? "." + reading.stdin_format : options_.input);
  const auto reader = open_rows(options_.input, reading);
  Progress progress("reading " + options_.input, 0, "prompts");
  for (Row row; reader->next(row); progress.update(prompts_.size())) {
    add_prompt(std::string(row.text));
  }
}

// Refuses a prompt for which there is no room. A list that grows is there twice for a moment, the
// new one with as much room again, so that each of its elements counts three times.
void Generator::count_prompt(const std::string& text, size_t number) {
  prompt_bytes_ += 3 * sizeof(prompts_[0]) +
                   sizeof(int32_t) * std::min(text.size(), size_t(session_.model().max_length()));
  prompt_bytes_ += uint64_t(options_.num_return) * (3 * sizeof(GeneratedText) + text.size());
  if (prompt_bytes_ <= std::max(prompt_room_, kUsualPromptBytes)) return;
  throw Error(ErrorKind::kBudget,
              fmt::format("the prompts up to number {} take {}, of the memory {} are left", number,
                          format_bytes(prompt_bytes_), format_bytes(prompt_room_)),
              "all prompts are kept: give more with --memory, fewer prompts at a time, or a "
              "smaller --num-return");
}

// Prompts beyond the model's positions are refused, or with --sliding cut to their end.
void Generator::add_prompt(const std::string& text) {
  const auto positions = size_t(session_.model().max_length());
  const size_t number = prompts_.size() + 1;
  count_prompt(text, number);
  const EncodeOptions encoding = {
      .max_length = positions + 1,  // one more shows that it is too long
      .keep = options_.sliding ? Keep::kTail : Keep::kHead,
      .special_tokens = false,
      .word_room = std::max(prompt_room_, kUsualWordRoom)};
  try {
    session_.folder().tokenizer->encode(text, std::nullopt, encoding, encoding_);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("prompt {}: {}", number, error.what()), error.hint());
  }
  if (encoding_.ids.size() > positions && !options_.sliding) {
    throw Error(ErrorKind::kUsage,
                fmt::format("prompt {} has more than {} tokens, the most that the model reads",
                            number, positions),
                "--sliding reads the end of it and goes on beyond the model's positions");
  }
  if (encoding_.ids.empty()) {
    if (style_.ends.empty()) {
      fail(ErrorKind::kUsage, "an empty prompt needs a tokenizer with an end-of-text token");
    }
    encoding_.ids.push_back(style_.ends[0]);
  }
  prompts_.push_back(encoding_.ids);
  for (int64_t i = 0; i < options_.num_return; ++i) summary_.texts.emplace_back().prompt = text;
}

// Tokens a text can grow to; the last that is written need not be read.
int64_t Generator::needed_context() const {
  const int64_t positions = session_.model().max_length();
  int64_t longest = 0;
  for (const auto& prompt : prompts_) longest = std::max(longest, int64_t(prompt.size()));
  if (longest + style_.max_new_tokens > positions + 1 && !options_.sliding) {
    warn(fmt::format("the model has {} positions: writing stops there (--sliding goes on)",
                     positions));
  }
  return std::min(positions, longest + style_.max_new_tokens);
}

// The most texts at once that fit.
void Generator::make_plan_and_start() {
  const GraphOptions graph = {
      .purpose = Purpose::kGeneration, .context = context_, .sample = style_.sample};
  int64_t texts = std::min(options_.batch_size, int64_t(summary_.texts.size()));
  int64_t prompt_tokens = 0;
  for (const auto& prompt : prompts_) prompt_tokens += int64_t(prompt.size()) * options_.num_return;
  const int64_t most_written =
      options_.sliding ? style_.max_new_tokens : std::min(style_.max_new_tokens, context_);
  const uint64_t written = summary_.texts.size() * uint64_t(most_written) * kWrittenBytes;
  const auto buffers = [written](const Dims& capacity) {
    return BatchBuilder::bytes(capacity) + written;
  };
  for (;; texts = (texts + 1) / 2) {
    const Workload workload = {.batch_size = texts,
                               .longest = context_,
                               .step_tokens = texts,
                               .target_rule = TargetRule::kLastToken};
    PlanRequest request = session_.request(graph, workload, buffers);
    request.pinned_capacity = std::max(texts, std::min(kPromptTokens, prompt_tokens));
    Plan plan = make_plan(request);
    if (!plan.fits && texts > 1) continue;
    session_.start(std::move(plan));
    break;
  }
  batch_ = std::make_unique<BatchBuilder>(session_.plan().capacity);
}

GenerateSummary Generator::run() {
  const auto start = std::chrono::steady_clock::now();
  const auto at_once = size_t(session_.plan().capacity.sequences);
  for (size_t first = 0; first < summary_.texts.size(); first += at_once) {
    write_together(first, std::min(at_once, summary_.texts.size() - first));
  }
  summary_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  summary_.tokens_per_second = double(summary_.tokens) / std::max(summary_.seconds, 1e-9);
  summary_.predicted_peak_bytes = session_.plan().peak_bytes;
  summary_.measured_peak_bytes = session_.platform().peak_bytes();
  return std::move(summary_);
}

void Generator::write_together(size_t first, size_t count) {
  std::vector<Writing> texts;
  texts.reserve(count);
  std::vector<Writing*> active;
  for (size_t i = 0; i < count; ++i) {
    Writing& text = texts.emplace_back(first + i, style_, *session_.folder().tokenizer);
    text.ids = prompts_[(first + i) / size_t(options_.num_return)];
    if (int64_t(text.ids.size()) > context_) slide(text);
    active.push_back(&text);
  }
  while (!active.empty()) {
    read_unread(active);
    std::erase_if(active, [&](const Writing* text) {
      return !summary_.texts[text->number].finish_reason.empty();
    });
  }
}

// Gives the model all tokens that it has not read, in as many micro-batches as it takes; each text
// whose last token was read gets its next one.
void Generator::read_unread(std::vector<Writing*>& texts) {
  const auto capacity = size_t(session_.plan().capacity.tokens);
  std::vector<Writing*> complete;
  const auto run = [&] {
    if (batch_->empty()) return;
    session_.engine().score(batch_->view());
    take_results(complete);
    batch_->clear();
    complete.clear();
  };
  for (Writing* text : texts) {
    while (text->unread < text->ids.size()) {
      const size_t room = capacity - size_t(batch_->dims().tokens);
      const size_t count = std::min(room, text->ids.size() - text->unread);
      if (count > 0) {
        batch_->add_to_text(std::span(text->ids).subspan(text->unread, count),
                            int32_t(text->position), place_of(*text));
        text->unread += count;
        text->position += int64_t(count);
        complete.push_back(text->unread == text->ids.size() ? text : nullptr);
      }
      if (size_t(batch_->dims().tokens) == capacity && text->unread < text->ids.size()) run();
    }
  }
  run();
}

// Results come in the order of the micro-batch's texts; of one that has more to read the result
// means nothing.
void Generator::take_results(std::vector<Writing*>& texts) {
  const std::span<const float> next = session_.engine().result();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i] != nullptr) add_token(*texts[i], int32_t(next[2 * i]), double(next[2 * i + 1]));
  }
}

void Generator::add_token(Writing& text, int32_t id, double log_probability) {
  GeneratedText& result = summary_.texts[text.number];
  ++result.tokens;
  ++summary_.tokens;
  result.log_probability += log_probability;
  const bool ends = std::ranges::find(style_.ends, id) != style_.ends.end();
  if (ends && !options_.ignore_eos) return finish(text, "eos");
  text.ids.push_back(id);
  add_piece(text, text.stops.push(text.decoder.push(id)));
  if (text.stops.found) return finish(text, "stop");
  if (int64_t(result.tokens) == style_.max_new_tokens) return finish(text, "length");
  if (text.position < context_) return;
  if (!options_.sliding) return finish(text, "length");
  slide(text);
}

void Generator::add_piece(Writing& text, const std::string& piece) {
  if (piece.empty()) return;
  summary_.texts[text.number].text += piece;
  if (on_piece_) on_piece_(text.number, piece);
}

void Generator::finish(Writing& text, const char* reason) {
  if (!text.stops.found) {
    const std::string rest = text.stops.push(text.decoder.flush());
    add_piece(text, rest + text.stops.flush());
  }
  summary_.texts[text.number].finish_reason = reason;
}

// Forgets all but the newer half of what the model can read, which it then reads again from
// position 0.
void Generator::slide(Writing& text) {
  const auto kept = std::max<size_t>(1, size_t(context_) / 2);
  text.ids.erase(text.ids.begin(), text.ids.end() - ptrdiff_t(kept));
  text.unread = 0;
  text.position = 0;
  ++text.slides;
}

}  // namespace

GenerateSummary generate(
    const GenerateOptions& options,
    const std::function<void(size_t text, const std::string& piece)>& on_piece) {
  check(options);
  return Generator(options, on_piece).run();
}

void GenerateSummary::write_json(const std::function<void(const std::string&)>& write) const {
  write("{\n  \"texts\": [");
  const char* before = "\n    ";
  for (const GeneratedText& text : texts) {
    const OrderedJson json = {{"prompt", text.prompt},
                              {"text", text.text},
                              {"tokens", text.tokens},
                              {"finish_reason", text.finish_reason},
                              {"log_probability", text.log_probability}};
    write(before + json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    before = ",\n    ";
  }
  const OrderedJson rest = {{"tokens", tokens},
                            {"seconds", seconds},
                            {"tokens_per_second", tokens_per_second},
                            {"predicted_peak_bytes", predicted_peak_bytes},
                            {"measured_peak_bytes", measured_peak_bytes}};
  write("\n  ],\n" + rest.dump(2).substr(2));  // without its opening brace and line break
}

}  // namespace snug
