// Writes a SentencePiece tokenizer as a Hugging Face folder has it: the model file as it came,
// under the name that its family's class looks for.
#include "core/file.h"
#include "text/sentencepiece_tokenizer.h"
#include "text/tokenizer_save.h"

namespace snug {
namespace {

struct FamilyFiles {
  const char* model;
  const char* tokenizer_class;  // nullptr: none in particular
};

FamilyFiles files_of(SentencePieceFamily family) {
  switch (family) {
    case SentencePieceFamily::kAlbert:
      return {"spiece.model", "AlbertTokenizer"};
    case SentencePieceFamily::kXlnet:
      return {"spiece.model", "XLNetTokenizer"};
    case SentencePieceFamily::kXlmRoberta:
      return {"sentencepiece.bpe.model", "XLMRobertaTokenizer"};
    case SentencePieceFamily::kT5:
      return {"spiece.model", "T5Tokenizer"};
    case SentencePieceFamily::kPlain:
      break;
  }
  return {"tokenizer.model", nullptr};
}

}  // namespace

void SentencePieceTokenizer::save(const std::filesystem::path& folder) const {
  make_directories(folder);
  const FamilyFiles files = files_of(family_);
  write_file_atomically(folder / files.model, model_.bytes());
  OrderedJson settings = OrderedJson::object();
  if (files.tokenizer_class) settings["tokenizer_class"] = files.tokenizer_class;
  if (family_ == SentencePieceFamily::kAlbert || family_ == SentencePieceFamily::kXlnet) {
    settings["do_lower_case"] = tidying_.do_lower_case;
    settings["remove_space"] = tidying_.remove_space;
    settings["keep_accents"] = tidying_.keep_accents;
  }
  if (family_ == SentencePieceFamily::kT5) {
    settings["extra_ids"] = vocabulary().size() - static_cast<int32_t>(ids_.size());
  }
  save_tokenizer_config(folder, spec(), settings);
}

}  // namespace snug
