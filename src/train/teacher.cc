#include "train/teacher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/philox.h"
#include "model/adapter.h"
#include "model/weight_files.h"

namespace snug {
namespace {

constexpr const char* kSameTokenizer =
    "a teacher must read the same tokens as its student: take one with the same tokenizer";

void check_vocabulary(const ModelFolder& teacher, const ModelFolder& student) {
  const std::string path = teacher.path.string();
  const Tokenizer &theirs = *teacher.tokenizer, &ours = *student.tokenizer;
  if (theirs.vocab_size() != ours.vocab_size()) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: its tokenizer has {} tokens, the student's {}", path,
                            theirs.vocab_size(), ours.vocab_size()),
                kSameTokenizer);
  }
  for (int32_t id = 0; id < ours.vocab_size(); ++id) {
    if (theirs.token(id) == ours.token(id)) continue;
    throw Error(ErrorKind::kInput,
                fmt::format("{}: its tokenizer's token {} is \"{}\", the student's \"{}\"", path,
                            id, theirs.token(id), ours.token(id)),
                kSameTokenizer);
  }
  if (teacher.config.vocab_size != student.config.vocab_size) {
    fail(ErrorKind::kInput,
         "{}: config.json says vocab_size {}, the student's {}; their heads must be of one size",
         path, teacher.config.vocab_size, student.config.vocab_size);
  }
  // Without, it makes no difference between them.
  const bool has_types = teacher.config.type_vocab_size > 0;
  if (has_types && teacher.config.type_vocab_size < student.config.type_vocab_size) {
    fail(ErrorKind::kInput,
         "{}: config.json says type_vocab_size {}, the student's {}; the teacher must know as many "
         "kinds of text",
         path, teacher.config.type_vocab_size, student.config.type_vocab_size);
  }
}

// Weights that were trained differ nearly everywhere, so a few values of each tensor tell them
// apart.
uint64_t fingerprint_of(const WeightFolder& files) {
  constexpr uint64_t kValues = 16;
  uint64_t hash = 0;
  const auto add = [&](uint64_t x) { hash = mix64(hash ^ x); };
  for (const std::string_view name : files.names()) {
    const TensorEntry& tensor = *files.find(name);
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 &&
        tensor.dtype != DType::kBF16) {
      continue;
    }
    for (const char c : name) add(uint8_t(c));
    for (const int64_t extent : tensor.shape) add(uint64_t(extent));
    std::vector<float> values(size_t(std::min(kValues, tensor.elements())));
    files.read_as_f32(name, 0, values);
    for (const float x : values) add(std::bit_cast<uint32_t>(x));
  }
  return hash;
}

}  // namespace

Teacher open_teacher(const std::filesystem::path& path, const ModelFolder& student, Task task) {
  if (task != Task::kClassify && !is_language(task)) {
    fail(ErrorKind::kUsage,
         "--teacher: learning from a teacher is for clm, mlm, and classify with one label for each "
         "text, not {}",
         task_name(task));
  }
  const ModelFolder folder = open_model_folder(path, "--teacher");
  if (is_adapter_folder(path)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: holds adapters; a teacher is a whole model", path.string()),
                fmt::format("snug merge --adapter {} --output-dir DIR makes one", path.string()));
  }
  check_vocabulary(folder, student);
  const Head head = head_of(task);
  if (head == Head::kClassifier && folder.config.labels.empty()) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: has no classes (config.json names no labels)", path.string()),
                "train the teacher first: snug train --task classify");
  }
  const WeightFolder files(path);
  const LoadReport report = check_weights(files, *make_model(folder.config, head), {});
  if (!report.made_new.empty()) {
    throw Error(ErrorKind::kInput,
                fmt::format("{}: has no {}", path.string(), fmt::join(report.made_new, ", ")),
                fmt::format("train the teacher first: snug train --task {}", task_name(task)));
  }
  return {path, folder.config, folder.trained_labels(Head::kClassifier), fingerprint_of(files)};
}

void check_labels(const Teacher& teacher, const std::vector<std::string>& student) {
  const std::vector<std::string>& theirs =
      teacher.labels.names.empty() ? teacher.config.labels : teacher.labels.names;
  const bool same =
      teacher.labels.names.empty() ? theirs.size() == student.size() : theirs == student;
  if (same) return;
  fail(ErrorKind::kInput,
       "{}: its classes are {}, the student's {}; they must be the same in the same order",
       teacher.path.string(), fmt::join(theirs, ", "), fmt::join(student, ", "));
}

}  // namespace snug
