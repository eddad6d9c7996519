#include "cuda/product_choices.h"

#include <chrono>
#include <iterator>

#include "core/json.h"

namespace snug::cuda {
namespace {

// How long a process waits for its turn to time a product, which takes seconds at most: whoever has
// it for longer was stopped, or hangs. Meanwhile it looks at what others have chosen, since who had
// the last turn may well get the next one too.
constexpr std::chrono::milliseconds kPatience(60'000), kLookEvery(50);

Json to_json(const ProductShape& s) {
  return {int(s.kind), int(s.dtype),     s.rows,        s.in,         s.out,
          s.bias,      s.accumulate,     int(s.layout), s.out_stride, int(s.gelu),
          s.overwrite, int(s.gelu_form), s.rounds};
}
ProductShape shape_of(const Json& fields) {
  const auto number = [&](size_t i) { return fields.at(i).get<int>(); };
  return {ProductKind(number(0)), DType(number(1)),       fields.at(2),  fields.at(3),
          fields.at(4),           fields.at(5),           fields.at(6),  WeightLayout(number(7)),
          fields.at(8),           ProductGelu(number(9)), fields.at(10), Activation(number(11)),
          fields.at(12)};
}

Json to_json(const ProductAlgorithm& choice) {
  Json words = {choice.counter_bytes};
  for (const uint64_t word : choice.algorithm.data) words.push_back(word);
  return words;
}
ProductAlgorithm algorithm_of(const Json& words) {
  ProductAlgorithm choice{.counter_bytes = words.at(0)};
  for (size_t i = 0; i < std::size(choice.algorithm.data); ++i) {
    choice.algorithm.data[i] = words.at(1 + i).get<uint64_t>();
  }
  return choice;
}

template <class Key, class Choice>
const Choice* found(const std::map<Key, Choice>& choices, const Key& key) {
  const auto at = choices.find(key);
  return at == choices.end() ? nullptr : &at->second;
}

}  // namespace

ProductChoices::ProductChoices(const std::optional<std::filesystem::path>& file) {
  if (file) lines_.emplace(*file);
  take_in();
}

const ProductAlgorithm* ProductChoices::algorithm(const ProductShape& shape) const {
  return found(algorithms_, shape);
}

const ProductWay* ProductChoices::way(const FusedProduct& product) const {
  return found(ways_, product);
}

SharedLines::Turn ProductChoices::turn(const std::function<bool()>& is_known) {
  SharedLines::Turn turn;
  if (!lines_) return turn;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + kPatience;
  for (bool again = true; again;) {
    const auto start = Clock::now();
    turn = lines_->hold(kLookEvery);
    const auto now = Clock::now();
    take_in();
    // It comes back sooner where the file system knows no locks.
    again = !turn.held() && !is_known() && now - start >= kLookEvery && now < end;
  }
  return turn;
}

const ProductAlgorithm& ProductChoices::keep(const ProductShape& shape,
                                             const ProductAlgorithm& measured) {
  add(Json{{"product", to_json(shape)}, {"algorithm", to_json(measured)}}.dump());
  return algorithms_.try_emplace(shape, measured).first->second;
}

ProductWay ProductChoices::keep(const FusedProduct& product, ProductWay measured) {
  add(Json{{"product", to_json(product.shape)}, {"own", product.own}, {"way", int(measured)}}
          .dump());
  return ways_.try_emplace(product, measured).first->second;
}

void ProductChoices::add(const std::string& line) {
  if (!lines_) return;
  lines_->add(line);
  take_in();  // without a turn another may have been first
}

// The file is a convenience: a line that is no choice counts for nothing. Of two for one product
// the first counts, so that who used it gets the same bits again.
void ProductChoices::take_in() {
  if (!lines_) return;
  for (const std::string& line : lines_->fresh()) {
    try {
      const Json entry = Json::parse(line);
      const ProductShape shape = shape_of(entry.at("product"));
      if (!entry.contains("way")) {
        algorithms_.try_emplace(shape, algorithm_of(entry.at("algorithm")));
      } else if (const int way = entry["way"];
                 way >= int(ProductWay::kApart) && way <= int(ProductWay::kOwn)) {
        ways_.try_emplace({shape, entry.at("own").get<bool>()}, ProductWay(way));
      }
    } catch (const Json::exception&) {
      continue;
    }
  }
}

}  // namespace snug::cuda
