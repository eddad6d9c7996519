// An operator for tests of graphs: a name, and nothing to compute.
#pragma once

#include <string>

#include "graph/op.h"

namespace snug {

class Named : public Op {
 public:
  explicit Named(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  void run(const Call&) const override {}

 private:
  std::string name_;
};

}  // namespace snug
