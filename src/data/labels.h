// Class labels: the set, how a file's labels become ids, and everything that can be wrong with
// them, found while the file is read and said with value and line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/row_reader.h"

namespace snug {

// Class names in id order. Integers stay themselves where labels are exactly 0..n-1; otherwise
// names are sorted byte by byte.
struct LabelSet {
  std::vector<std::string> names;
  int32_t find(std::string_view name) const;  // -1 when unknown
};

// The labels of several files as one set, in the order that they would have from one. Refuses
// (kInput) names that differ only in case or spaces between files.
struct FileLabels {
  std::string file;
  const LabelSet* labels;
};
LabelSet merged_labels(std::span<const FileLabels> files);

// Refuses (kInput) what cannot be told apart: a single class, and -1 beside 0..n-1. `file` is for
// messages.
void check_classes(const LabelSet& labels, const std::string& file);

// Turns labels into ids in the order of their first appearance; the final order is known at the
// end.
class LabelCollector {
 public:
  struct Settings {
    const LabelSet* known = nullptr;  // when not null, the only labels allowed, and ids are final
    LabelNeed need = LabelNeed::kRequired;
    std::string file;  // for messages
  };
  explicit LabelCollector(Settings settings);

  // -1 where the row has no label and needs none. Errors are kInput.
  int32_t add(std::optional<std::string_view> label, uint64_t line);

  // Takes back what add() has counted for a row that is left out, and the names that came with it.
  void remove(int32_t id);
  size_t size() const { return names_.size(); }
  void forget_from(size_t size);

  // Refuses names that cannot be meant, then orders the rest. May be called once.
  struct Result {
    LabelSet labels;
    std::vector<int32_t> final_ids;  // [id given by add()]
    std::vector<uint64_t> counts;    // how often each was added, in the order of labels
  };
  Result finish();

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  int32_t find(std::optional<std::string_view> label, uint64_t line);
  int32_t insert(std::string_view label, uint64_t line);
  void check_spelling(std::string_view label, uint64_t line) const;
  [[noreturn]] void refuse_unknown(std::string_view label, uint64_t line) const;
  void refuse_variants() const;
  void refuse_minus_one(const std::vector<std::string>& sorted) const;

  Settings settings_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::string> names_;     // [id given by add()]
  std::vector<uint64_t> first_lines_;  // [id given by add()]
  std::vector<uint64_t> counts_;       // likewise
};

}  // namespace snug
