#include "train/run_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "model/adapter.h"

namespace snug {

void refuse_folder_with_model(const std::filesystem::path& folder) {
  for (const char* name : {"config.json", "bert_config.json", kAdapterConfig}) {
    if (!std::filesystem::exists(folder / name)) continue;
    fail(ErrorKind::kUsage, "{}: holds a model already; choose another --output-dir",
         folder.string());
  }
}

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const auto path = folder / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    fail(ErrorKind::kStorage, "{}: cannot create: {}", path.string(), std::strerror(errno));
  }
  if (lock_file(fd_, {})) return;
  ::close(fd_);
  throw Error(ErrorKind::kStorage, fmt::format("{}: another run is writing here", folder.string()),
              "wait for it, or choose another --output-dir");
}

FolderLock::~FolderLock() { ::close(fd_); }

namespace {

// One file, begun anew by every start with what is kept of metrics.jsonl, so that no step is in it
// twice.
std::filesystem::path event_path(const std::filesystem::path& folder) {
  make_directories(folder / "tensorboard");
  return folder / "tensorboard" / "events.out.tfevents.snug";
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& folder, uint64_t resumed_step)
    : path_(folder / "metrics.jsonl"), events_(event_path(folder)) {
  if (resumed_step == 0) {
    std::filesystem::remove(path_);
  } else if (std::ifstream in(path_); in) {
    OutputFile kept(path_);
    for (std::string text; std::getline(in, text);) {
      const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      // A line torn by a kill is no JSON; everything after the resumed step will be written again.
      if (!json.is_object() || json.value("step", ~uint64_t{0}) > resumed_step) continue;
      kept.write(text + "\n");
      add_events(json);
    }
    kept.commit();
  }
  file_ = std::fopen(path_.c_str(), "a");
  if (file_ == nullptr) {
    fail(ErrorKind::kStorage, "{}: cannot open: {}", path_.string(), std::strerror(errno));
  }
}

MetricsLog::~MetricsLog() { std::fclose(file_); }

void MetricsLog::line(const std::string& text) {
  if (std::fputs(text.c_str(), file_) < 0 || std::fputc('\n', file_) < 0 ||
      std::fflush(file_) != 0) {
    fail(ErrorKind::kStorage, "{}: cannot write: {}", path_.string(), std::strerror(errno));
  }
  add_events(Json::parse(text));
  events_.flush();
}

// "loss" is shown as train/loss, "eval_loss" as eval/loss.
void MetricsLog::add_events(const Json& line) {
  constexpr std::string_view kEval = "eval_";
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : line.items()) {
    if (!value.is_number() || name == "step") continue;
    const bool eval = name.starts_with(kEval);
    scalars.push_back(
        {(eval ? "eval/" : "train/") + name.substr(eval ? kEval.size() : 0), value.get<double>()});
  }
  events_.add(line.at("step"), scalars);
}

void MetricsLog::step(const StepMetrics& m) {
  line(fmt::format(
      R"({{"step":{},"epoch":{:.6f},"loss":{},"learning_rate":{},"grad_norm":{},"tokens":{},"examples":{},)"
      R"("seconds":{:.6f},"rows_checksum":"{:016x}"}})",
      m.step, m.epoch, m.loss, m.learning_rate, m.grad_norm, m.tokens, m.examples, m.seconds,
      m.rows_checksum));
}

void MetricsLog::evaluation(uint64_t step, double epoch,
                            const std::map<std::string, double>& metrics) {
  std::string text = fmt::format(R"({{"step":{},"epoch":{:.6f})", step, epoch);
  for (const auto& [name, value] : metrics) text += fmt::format(R"(,"eval_{}":{})", name, value);
  line(text + "}");
}

}  // namespace snug
