// Tags of words, and the entities that a sequence of them spells. Rules are seqeval's, word for
// word: its default, which is conlleval's and takes any of IOB1, IOB2 and IOBES with whatever a
// model makes of them, and its strict schemes, where only a sequence without a mistake is an
// entity.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace snug {

enum class TagScheme { kConll, kIob1, kIob2, kIobes, kBilou };

// BILOU where the labels have L- or U-, which conlleval does not know; else kConll.
TagScheme scheme_of(std::span<const std::string> labels);

struct Entity {
  int32_t type;        // among TagSet::types()
  size_t first, last;  // words, both inside

  bool operator==(const Entity&) const = default;
};

class TagSet {
 public:
  // Labels by id: "O", "B-PER". A label that is empty, or not of a strict scheme, is kInput.
  TagSet(std::span<const std::string> labels, TagScheme scheme);

  // Sorted; "_" is the type of labels without one.
  const std::vector<std::string>& types() const { return types_; }

  // In the order of the words; `entities` is overwritten.
  void find_entities(std::span<const int32_t> tags, std::vector<Entity>& entities) const;

 private:
  struct Tag {
    char prefix;
    int32_t type;
  };

  void find_loosely(std::span<const int32_t> tags, std::vector<Entity>& entities) const;
  void find_strictly(std::span<const int32_t> tags, std::vector<Entity>& entities) const;

  TagScheme scheme_;
  std::vector<std::string> types_;
  std::vector<Tag> tags_;  // by label
  Tag outside_;
};

}  // namespace snug
