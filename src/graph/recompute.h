// What backward makes again instead of keeping it from forward, chosen for each segment of a graph.
// Operators are pure functions of their inputs and of counter-based randomness, so whatever is
// chosen, the bits are the same.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// The parts of a layer. The first two are made from other values that are kept; the rest by running
// operators again.
enum class Part : uint8_t {
  kNorms = 1,        // a norm's output, from its input and statistics
  kActivations = 2,  // the MLP's inner values, from the argument of the activation
  kMlp = 4,          // that argument, by the first product of the MLP
  kAttention = 8,    // query, key, value and context
  kSums =
      16,  // the products that lead back, and the residual sums; also whatever has no other part
};

struct PartName {
  Part part;
  std::string_view name;
};
inline constexpr std::array kPartNames = {
    PartName{Part::kNorms, "norms"}, PartName{Part::kActivations, "activations"},
    PartName{Part::kMlp, "mlp"}, PartName{Part::kAttention, "attention"},
    PartName{Part::kSums, "sums"}};

class Parts {
 public:
  constexpr Parts() = default;
  constexpr Parts(std::initializer_list<Part> parts) {
    for (const Part part : parts) bits_ |= uint8_t(part);
  }
  static constexpr Parts all() {
    return {Part::kNorms, Part::kActivations, Part::kMlp, Part::kAttention, Part::kSums};
  }

  constexpr bool has(Part part) const { return (bits_ & uint8_t(part)) != 0; }
  constexpr bool none() const { return bits_ == 0; }
  constexpr void add(Part part) { bits_ |= uint8_t(part); }
  constexpr auto operator<=>(const Parts&) const = default;

 private:
  uint8_t bits_ = 0;
};

// By segment: embeddings, layers, head. Shorter ones mean nothing for the rest.
using Recomputation = std::vector<Parts>;

// "none", "all", or names joined by commas. parse_parts() returns false for a name that there is
// not.
std::string to_string(const Parts& parts);
bool parse_parts(std::string_view text, Parts& parts);

// A whole choice in words, for a model of so many layers: "norms in 12, mlp in 3 of 12 layers".
std::string describe(const Recomputation& recomputation, int layers);

}  // namespace snug
