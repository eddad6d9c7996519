// What a run takes of its data: the first texts, a split by seed, files in stated shares.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/philox.h"
#include "data/dataset.h"

namespace snug {
namespace {

// A split is spread over at most this many stretches of the files.
constexpr uint64_t kMostStretches = 1000;

// Whole numbers in the ratio of the weights that add up to `total`: what rounding down leaves goes
// to the largest rests.
std::vector<uint64_t> quotas(std::span<const MixturePart> parts, uint64_t total) {
  const double sum =
      std::accumulate(parts.begin(), parts.end(), 0.0,
                      [](double so_far, const MixturePart& part) { return so_far + part.weight; });
  std::vector<uint64_t> result;
  std::vector<double> rests;
  uint64_t given = 0;
  for (const MixturePart& part : parts) {
    const double exact = double(total) * (part.weight / sum);
    result.push_back(std::min(uint64_t(exact), total - given));
    rests.push_back(exact - std::floor(exact));
    given += result.back();
  }
  while (given < total) {
    const auto most = std::ranges::max_element(rests);
    *most -= 1;
    ++result[size_t(most - rests.begin())];
    ++given;
  }
  return result;
}

}  // namespace

void Dataset::add_range(uint64_t first, uint64_t count) {
  if (count == 0) return;
  if (!ranges_.empty() && ranges_.back().first + ranges_.back().count == first) {
    ranges_.back().count += count;
  } else {
    ranges_.push_back({first, count, rows()});
  }
}

void Dataset::add_rows(const Dataset& other, uint64_t begin, uint64_t end) {
  if (begin == end) return;
  const Dataset piece = other.part(begin, end - begin);
  for (const Range& range : piece.ranges_) add_range(range.first, range.count);
}

Dataset Dataset::part(uint64_t first, uint64_t count) const {
  SNUG_CHECK(count > 0 && first + count <= rows() && shares_.empty());
  Dataset result(files_, {});
  for (const Range& range : ranges_) {
    const uint64_t begin = std::clamp(first, range.before, range.before + range.count);
    const uint64_t end = std::clamp(first + count, range.before, range.before + range.count);
    result.add_range(range.first + (begin - range.before), end - begin);
  }
  return result;
}

uint64_t Dataset::text_begin(uint64_t row) const {
  while (row > 0 && row < rows() && origin(row - 1).continues) ++row;
  return row;
}

Dataset Dataset::first_texts(uint64_t most) const {
  SNUG_CHECK(most > 0);
  uint64_t end = std::min(most, rows());
  if (has_windows()) {
    end = 0;
    for (uint64_t texts = 0; texts < most && end < rows(); ++texts) end = text_begin(end + 1);
  }
  return part(0, end);
}

Dataset::Split Dataset::split(double percentage, uint64_t seed) const {
  const auto wanted = uint64_t(std::ceil(double(rows()) * percentage / 100));
  SNUG_CHECK(wanted > 0);
  const uint64_t stretches = std::min(wanted, kMostStretches);
  Dataset held_out(files_, {}), kept(files_, {});
  uint64_t done = 0;
  for (uint64_t i = 0; i < stretches; ++i) {
    const uint64_t from = i * rows() / stretches, to = (i + 1) * rows() / stretches;
    const uint64_t size =
        std::min((i + 1) * wanted / stretches - i * wanted / stretches, to - from);
    const uint64_t begin = from + mix64(mix64(seed) ^ i) % (to - from - size + 1);
    const uint64_t first = has_windows() ? text_begin(begin) : begin;
    const uint64_t last = has_windows() ? text_begin(begin + size) : begin + size;
    kept.add_rows(*this, done, first);
    held_out.add_rows(*this, first, last);
    done = last;
  }
  kept.add_rows(*this, done, rows());
  if (kept.ranges_.empty() || held_out.ranges_.empty()) {
    fail(ErrorKind::kInput,
         "{}: too few texts to keep {} % of them for validation; give --validation FILE, or "
         "--validation-split-percentage 0",
         source().string(), percentage);
  }
  return {std::move(kept), std::move(held_out)};
}

std::optional<Dataset::Split> Dataset::split_ends(double percentage) const {
  Dataset held_out(files_, {}), kept(files_, {});
  uint64_t begin = 0;
  for (size_t file = 1; begin < rows(); ++file) {
    const uint64_t end = rows_before_file(file);
    if (begin == end) continue;
    // What is due by here, which small files may have left to later ones.
    const auto due = uint64_t(std::ceil(double(end) * percentage / 100)) - held_out.rows();
    const uint64_t first = text_begin(end - std::min(due, end - begin - 1));
    kept.add_rows(*this, begin, first);
    held_out.add_rows(*this, first, end);
    begin = end;
  }
  if (held_out.ranges_.empty()) return std::nullopt;
  return Split{std::move(kept), std::move(held_out)};
}

Dataset Dataset::unmixed() const { return Dataset(files_, ranges_); }

Dataset Dataset::mixed(std::span<const MixturePart> parts, uint64_t most) const {
  Dataset result(files_, ranges_);
  const std::vector<uint64_t> draws = quotas(parts, std::min(most, rows()));
  size_t file = 0;
  uint64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    file += parts[i].files;
    const uint64_t end = rows_before_file(file);
    if (end == first && draws[i] > 0) {
      fail(ErrorKind::kInput, "{}: no rows to draw from in part {} of the mixture",
           source().string(), i + 1);
    }
    const bool cut = most < rows();
    if (draws[i] > 0) {
      result.shares_.push_back(
          {first, cut ? std::min(end - first, draws[i]) : end - first, draws[i]});
    }
    first = end;
  }
  return result;
}

}  // namespace snug
