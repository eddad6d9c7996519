// What an evaluation says: numbers by name, and tables of precision and recall where there are
// classes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace snug {

struct ScoreRow {
  std::string name;
  double precision = 0, recall = 0, f1 = 0;
  uint64_t support = 0;  // how often it is in the data
};

struct ScoreReport {
  std::string unit;  // what a row is about: class, label, entity; empty where there are no tables
  std::vector<ScoreRow> rows;
  std::vector<ScoreRow> averages;  // micro, macro, weighted; of several labels a text also samples
  // [expected][predicted] in the order of rows; empty where an example may have several labels, and
  // for many classes.
  std::vector<std::vector<uint64_t>> confusion;

  std::string to_text() const;  // for a terminal: of many rows those that are worst
};

struct Evaluation {
  std::map<std::string, double> metrics;
  ScoreReport report;

  std::string to_text() const;
  std::string to_json() const;
};

}  // namespace snug
