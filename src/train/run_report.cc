#include "train/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"

namespace snug {
namespace {

struct Point {
  double x = 0, y = 0;
};

// Means of as many neighbours as keep the points few, however long the run is.
class Curve {
 public:
  void add(double x, double y) {
    sum_.x += x, sum_.y += y;
    if (++count_ < width_) return;
    points_.push_back({sum_.x / double(width_), sum_.y / double(width_)});
    sum_ = {}, count_ = 0;
    if (points_.size() < 2 * kPoints) return;
    for (size_t i = 0; i < kPoints; ++i) {
      points_[i] = {(points_[2 * i].x + points_[2 * i + 1].x) / 2,
                    (points_[2 * i].y + points_[2 * i + 1].y) / 2};
    }
    points_.resize(kPoints);
    width_ *= 2;
  }
  const std::vector<Point>& points() const { return points_; }

 private:
  static constexpr size_t kPoints = 200;
  std::vector<Point> points_;
  Point sum_;
  uint64_t count_ = 0, width_ = 1;
};

struct Curves {
  Curve training;
  std::vector<Point> validation;
};

Curves read_curves(const std::filesystem::path& file) {
  Curves curves;
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) {
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step")) continue;
    const double step = line.at("step");
    if (line.contains("loss")) curves.training.add(step, line.at("loss"));
    if (line.contains("eval_loss")) curves.validation.push_back({step, line.at("eval_loss")});
  }
  return curves;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string row(std::string_view name, std::string_view value) {
  return fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
}

// Both losses over steps, with the axes' ends written beside them.
std::string chart(const Curves& curves, uint64_t steps) {
  constexpr double kWidth = 720, kHeight = 260, kLeft = 56, kBelow = 28;
  std::vector<Point> all = curves.training.points();
  all.insert(all.end(), curves.validation.begin(), curves.validation.end());
  if (all.empty()) return "<p>No step was trained.</p>\n";
  const auto [least, most] = std::ranges::minmax_element(all, {}, &Point::y);
  const double low = least->y, range = std::max(most->y - low, 1e-9),
               last = std::max<double>(double(steps), 1);
  const auto place = [&](const Point& p) {
    return fmt::format("{:.1f},{:.1f}", kLeft + p.x / last * kWidth,
                       8 + (1 - (p.y - low) / range) * kHeight);
  };
  std::string line, dots;
  for (const Point& p : curves.training.points()) line += place(p) + " ";
  for (const Point& p : curves.validation) {
    const std::string at = place(p);
    const size_t comma = at.find(',');
    dots += fmt::format(
        "<circle cx=\"{}\" cy=\"{}\" r=\"4\"><title>step {:.0f}: {:.4f}</title></circle>\n",
        at.substr(0, comma), at.substr(comma + 1), p.x, p.y);
  }
  return fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"loss over steps\">\n"
      "<path d=\"M{2} 8V{3}H{4}\" class=\"axis\"/>\n"
      "<text x=\"{5}\" y=\"16\" text-anchor=\"end\">{6:.3g}</text><text x=\"{5}\" y=\"{3}\" "
      "text-anchor=\"end\">{7:.3g}</text>\n"
      "<text x=\"{4}\" y=\"{8}\" text-anchor=\"end\">step {9}</text>\n"
      "<polyline points=\"{10}\"/>\n{11}</svg>\n"
      "<p class=\"key\"><b class=\"line\"></b> training loss, means of neighbouring "
      "steps{12}</p>\n",
      kLeft + kWidth + 8, 8 + kHeight + kBelow, kLeft, 8 + kHeight, kLeft + kWidth, kLeft - 6,
      most->y, low, 8 + kHeight + 18, steps, line, dots,
      curves.validation.empty() ? "" : " &#160; <b class=\"dot\"></b> validation loss");
}

std::string memory_table(const TrainSummary& summary) {
  std::string rows;
  const double peak = double(std::max<uint64_t>(1, summary.plan.peak_bytes));
  for (const PlanItem& item : summary.plan.items) {
    rows += fmt::format(
        "<tr><th>{}</th><td>{}</td><td class=\"wide\"><i style=\"width:{:.1f}%\"></i></td></tr>\n",
        escaped(item.name), format_bytes(item.bytes), 100 * double(item.bytes) / peak);
  }
  return rows + row("planned peak", format_bytes(summary.plan.peak_bytes)) +
         row("measured peak", format_bytes(summary.measured_peak_bytes)) +
         row("budget", format_bytes(summary.plan.budget_bytes)) +
         row("least budget that works", format_bytes(summary.plan.minimum_budget_bytes));
}

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 "
    "1rem;color:#222;background:#fff}"
    "table{border-collapse:collapse}th{text-align:left;font-weight:400;padding:.1rem 1.5rem .1rem "
    "0}td{text-align:right}"
    "td.wide{width:18rem;padding-left:1rem}i{display:block;height:.7rem;background:#3a78b5}"
    "svg{width:100%}text{font-size:12px;fill:currentColor}.axis{fill:none;stroke:#999}polyline{"
    "fill:none;stroke:#3a78b5;stroke-width:1.5}"
    "circle,b.dot{fill:#c4571a;background:#c4571a}.key "
    "b{display:inline-block;width:.8rem;height:.8rem}b.line{background:#3a78b5}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}}";

}  // namespace

void write_run_report(const std::filesystem::path& folder, const TrainSummary& summary) {
  std::string results = row("steps", std::to_string(summary.steps)) +
                        row("mean training loss", fmt::format("{:.4f}", summary.train_loss));
  for (const auto& [name, value] : summary.eval) {
    results += row("validation " + name, fmt::format("{:.4f}", value));
  }
  results += row("time in steps", fmt::format("{:.1f} s", summary.seconds)) +
             row("speed", fmt::format("{:.0f} tokens/s, {:.1f} examples/s",
                                      summary.tokens_per_second, summary.examples_per_second)) +
             row("device", summary.plan.device) + row("precision", summary.plan.precision) +
             row("optimizer", summary.plan.optimizer) +
             row("batch", fmt::format("{} examples, in micro-batches of up to {} tokens",
                                      summary.plan.batch_size, summary.plan.micro_batch_tokens)) +
             row("recomputed", summary.plan.recompute);
  write_file_atomically(
      folder / "report.html",
      fmt::format("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta "
                  "charset=\"utf-8\"/>\n<title>snug: a training run</title>\n"
                  "<style>{}</style>\n</head>\n<body>\n<h1>A training "
                  "run</h1>\n{}<h2>Results</h2>\n<table>\n{}</table>\n"
                  "<h2>Memory</h2>\n<table>\n{}</table>\n<p>Written by snug {}; metrics.jsonl, "
                  "run.json and tensorboard/ have "
                  "the numbers.</p>\n</body>\n</html>\n",
                  kStyle, chart(read_curves(folder / "metrics.jsonl"), summary.steps), results,
                  memory_table(summary), SNUG_VERSION));
}

}  // namespace snug
