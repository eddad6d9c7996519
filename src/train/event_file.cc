#include "train/event_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/wire_writer.h"

namespace snug {
namespace {

std::string checksum(const std::string& bytes) {
  return wire::fixed(masked_crc32c(crc32c(std::as_bytes(std::span(bytes)))));
}

}  // namespace

EventFile::EventFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = std::fopen(path_.c_str(), "wb");
  if (file_ == nullptr) {
    fail(ErrorKind::kStorage, "{}: cannot create: {}", path_.string(), std::strerror(errno));
  }
  write_event(wire::bytes_field(3, "brain.Event:2"));  // the format's name for itself
}

EventFile::~EventFile() { std::fclose(file_); }

void EventFile::add(uint64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    summary += wire::bytes_field(
        1, wire::bytes_field(1, scalar.tag) + wire::fixed_field(2, float(scalar.value)));
  }
  write_event(wire::number_field(2, step) + wire::bytes_field(5, summary));
}

void EventFile::write_event(const std::string& fields) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string event = wire::fixed_field(1, now) + fields,
                    length = wire::fixed(uint64_t(event.size()));
  const std::string record = length + checksum(length) + event + checksum(event);
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size()) {
    fail(ErrorKind::kStorage, "{}: cannot write: {}", path_.string(), std::strerror(errno));
  }
}

void EventFile::flush() {
  if (std::fflush(file_) != 0) {
    fail(ErrorKind::kStorage, "{}: cannot write: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace snug
