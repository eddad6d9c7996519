#include "train/run_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace snug {

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const auto path = folder / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ErrorKind::kStorage, "{}: cannot create: {}", path.string(), std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  ::close(fd_);
  throw Error(ErrorKind::kStorage, fmt::format("{}: another run is writing here", folder.string()),
              "wait for it, or choose another --output-dir");
}

FolderLock::~FolderLock() { ::close(fd_); }

MetricsLog::MetricsLog(const std::filesystem::path& file, uint64_t resumed_step) : path_(file) {
  if (resumed_step == 0) {
    std::filesystem::remove(file);
  } else if (std::ifstream in(file); in) {
    OutputFile kept(file);
    for (std::string text; std::getline(in, text);) {
      const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      // A line torn by a kill is no JSON; everything after the resumed step will be written again.
      if (json.is_object() && json.value("step", ~uint64_t{0}) <= resumed_step) kept.write(text + "\n");
    }
    kept.commit();
  }
  file_ = std::fopen(file.c_str(), "a");
  if (file_ == nullptr) fail(ErrorKind::kStorage, "{}: cannot open: {}", file.string(), std::strerror(errno));
}

MetricsLog::~MetricsLog() { std::fclose(file_); }

void MetricsLog::line(const std::string& text) {
  if (std::fputs(text.c_str(), file_) < 0 || std::fputc('\n', file_) < 0 || std::fflush(file_) != 0) {
    fail(ErrorKind::kStorage, "{}: cannot write: {}", path_.string(), std::strerror(errno));
  }
}

void MetricsLog::step(const StepMetrics& m) {
  line(fmt::format(R"({{"step":{},"epoch":{:.6f},"loss":{},"learning_rate":{},"grad_norm":{},"tokens":{},"examples":{},)"
                   R"("seconds":{:.6f},"rows_checksum":"{:016x}"}})",
                   m.step, m.epoch, m.loss, m.learning_rate, m.grad_norm, m.tokens, m.examples, m.seconds, m.rows_checksum));
}

void MetricsLog::evaluation(uint64_t step, double epoch, const std::map<std::string, double>& metrics) {
  std::string text = fmt::format(R"({{"step":{},"epoch":{:.6f})", step, epoch);
  for (const auto& [name, value] : metrics) text += fmt::format(R"(,"eval_{}":{})", name, value);
  line(text + "}");
}

}  // namespace snug
