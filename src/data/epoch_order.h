// The order of an epoch's examples: a pure function of (data, seed, epoch). All rows once,
// shuffled; or, of files that are drawn from in stated shares, so many draws of each, shuffled,
// where every file is gone through again and again, each time in another order, as if its passes
// lay end to end: after any number of epochs, two rows of a file have been drawn equally often, or
// one of them once more. Not shuffled, it is that of the files.
#pragma once

#include <cstdint>

#include "data/dataset.h"
#include "data/permutation.h"

namespace snug {

class EpochOrder {
 public:
  EpochOrder(const Dataset& data, uint64_t seed, uint64_t epoch)
      : data_(&data), seed_(seed), epoch_(epoch), order_(data.epoch_examples(), seed, epoch) {}
  static EpochOrder of_files(const Dataset& data);

  uint64_t operator()(uint64_t position) const;  // a row of the data

 private:
  const Dataset* data_;
  uint64_t seed_, epoch_;
  bool shuffled_ = true;
  Permutation order_;
};

}  // namespace snug
