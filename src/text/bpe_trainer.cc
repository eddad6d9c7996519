#include "text/bpe_trainer.h"

#include <string>
#include <vector>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/gpt2_split.h"
#include "text/pair_merger.h"

namespace snug {
namespace {

// GPT-2's pattern never joins the characters of one of these into a word, so no merge spells it.
struct Specials {
  std::vector<std::string> first, last;

  size_t size() const { return first.size() + last.size(); }
};

Specials specials_of(BpeFamily family) {
  if (family == BpeFamily::kGpt2) return {{}, {"<|endoftext|>"}};
  return {{"<s>", "<pad>", "</s>", "<unk>"}, {"<mask>"}};
}

}  // namespace

BpeTrainer::BpeTrainer(const BpeTrainerOptions& options)
    : options_(options), counts_(options.max_distinct_words) {}

void BpeTrainer::feed(std::string_view text) {
  Gpt2Splitter splitter(text);
  for (std::string_view word; !(word = splitter.next()).empty();) {
    if (splitter.ill_formed()) {
      counts_.add(replace_invalid_utf8(word));
    } else {
      counts_.add(word);
    }
  }
}

BpeVocabulary BpeTrainer::train(size_t vocab_size, BpeFamily family) const {
  const Specials specials = specials_of(family);
  if (counts_.size() == 0) fail(ErrorKind::kInput, "no words to learn a vocabulary from");
  if (vocab_size < 256 + specials.size()) {
    fail(ErrorKind::kUsage,
         "a vocabulary of {} tokens has no room for the 256 bytes and {} special tokens",
         vocab_size, specials.size());
  }
  PairMerger merger([](const std::string& left, const std::string& right) { return left + right; });
  std::vector<PairMerger::Symbol> symbol_of(256);
  for (uint8_t byte : byte_order()) {
    symbol_of[byte] = merger.symbol(std::string(1, static_cast<char>(byte)));
  }
  for (const auto& [text, count] : counts_.ranked()) {
    PairMerger::Word word{{}, count};
    for (char byte : text) word.symbols.push_back(symbol_of[static_cast<uint8_t>(byte)]);
    merger.add_word(std::move(word));
  }
  merger.run(vocab_size - specials.size(), options_.min_pair_count);

  BpeVocabulary vocabulary;
  vocabulary.tokens = specials.first;
  for (const std::string& text : merger.texts()) vocabulary.tokens.push_back(spell_bytes(text));
  vocabulary.tokens.insert(vocabulary.tokens.end(), specials.last.begin(), specials.last.end());
  for (const auto& [left, right] : merger.merges()) {
    vocabulary.merges.emplace_back(spell_bytes(merger.texts()[left]),
                                   spell_bytes(merger.texts()[right]));
  }
  return vocabulary;
}

}  // namespace snug
