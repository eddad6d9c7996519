// Writes a Unigram tokenizer as a Hugging Face folder has it: always under the generic class, which
// obeys tokenizer.json. The classes of the families build theirs anew from the vocabulary.
#include <fmt/format.h>

#include "core/file.h"
#include "text/tokenizer_save.h"
#include "text/unigram.h"

namespace snug {
namespace {

std::string model_json(const UnigramModel& model, const Vocabulary& vocabulary) {
  std::string pieces;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    pieces += fmt::format("{}[{},{}]", id == 0 ? "" : ",", Json(vocabulary.token(id)).dump(),
                          Json(model.scores[id]).dump());
  }
  return fmt::format(R"({{"type":"Unigram","unk_id":{},"vocab":[{}],"byte_fallback":{}}})",
                     model.unk_id ? Json(*model.unk_id).dump() : "null", pieces,
                     model.byte_fallback);
}

}  // namespace

void UnigramTokenizer::save(const std::filesystem::path& folder) const {
  make_directories(folder);
  write_file_atomically(folder / "tokenizer.json",
                        tokenizer_json_text(spec(), {.normalizer = model_.normalizer.dump(),
                                                     .pre_tokenizer = model_.pre_tokenizer.dump(),
                                                     .post_processor = spec().post_processor.dump(),
                                                     .decoder = spec().decoder.dump(),
                                                     .model = model_json(model_, vocabulary())}));
  save_tokenizer_config(folder, spec(), {{"tokenizer_class", "PreTrainedTokenizerFast"}});
}

}  // namespace snug
