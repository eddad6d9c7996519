#include "data/epoch_order.h"

#include "core/error.h"
#include "core/philox.h"

namespace snug {

EpochOrder EpochOrder::of_files(const Dataset& data) {
  EpochOrder order(data, 0, 0);
  order.shuffled_ = false;
  return order;
}

uint64_t EpochOrder::operator()(uint64_t position) const {
  if (!shuffled_) return position;
  uint64_t slot = order_(position);
  if (data_->shares().empty()) return slot;
  uint64_t number = 0;
  for (const EpochShare& share : data_->shares()) {
    ++number;
    if (slot >= share.draws) {
      slot -= share.draws;
      continue;
    }
    const uint64_t draw = epoch_ * share.draws + slot;  // of this share since the run began
    const Permutation pass(share.rows, mix64(seed_) ^ number, draw / share.rows);
    return share.first + pass(draw % share.rows);
  }
  SNUG_CHECK(false);
  return 0;
}

}  // namespace snug
