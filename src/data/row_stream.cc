#include "data/row_stream.h"

namespace snug {

Error with_place(const Error& error, const std::string& file, const Row& row) {
  const std::string question =
      row.id.empty() ? std::string() : fmt::format("question \"{}\": ", row.id);
  return Error(error.kind(),
               fmt::format("{}: line {}: {}{}", file, row.line, question, error.what()),
               error.hint());
}

bool RowStream::next(Row& row) {
  for (;;) {
    const uint64_t before = reader_->passed();
    try {
      const bool more = reader_->next(row);
      passed_ += more;
      return more;
    } catch (const Error& error) {
      if (reader_->passed() == before) throw;  // there is no going on
      ++passed_;
      leave_out(error);
    }
  }
}

void RowStream::leave_out(const Error& error) {
  if (skipped_ == nullptr || error.kind() != ErrorKind::kInput) throw error;
  skipped_->add(file_, error);
}

}  // namespace snug
