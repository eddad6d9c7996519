// Any bytes as a data file of the format SNUG_FUZZ_FORMAT with rows of the kind SNUG_FUZZ_KIND:
// they are read to the end or refused with an Error, nothing else; or wrong rows are left out. The
// first byte chooses the options.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "data/row_stream.h"

namespace {

using namespace snug;

// Views must lie in memory, and words in their text.
void touch(std::string_view text) {
  if (text.empty()) return;
  volatile char ends = char(text.front() + text.back());
  (void)ends;
}

void touch(const Row& row) {
  touch(row.text);
  touch(row.text_pair.value_or(""));
  touch(row.label.value_or(""));
  touch(row.id);
  for (const Word& word : row.words) {
    SNUG_CHECK(word.begin <= word.end && word.end <= row.text.size());
    touch(word.label);
  }
  for (const Answer& answer : row.answers) {
    SNUG_CHECK(row.text_pair->find(answer.text) != std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  RowReaderOptions options{.kind = RowKind::SNUG_FUZZ_KIND,
                           .labels = LabelNeed(data[0] % 3),
                           .has_header = (data[0] & 4) == 0,
                           .max_record_bytes = 1 << 16};
  if (!options.has_header) options.columns.text = "#1";
  try {
    SkippedRows skipped;
    RowStream rows(open_rows(memory_source(bytes), "fuzz." SNUG_FUZZ_FORMAT, options), "fuzz",
                   data[0] & 8 ? &skipped : nullptr);
    for (Row row; rows.next(row);) {
      SNUG_CHECK(rows.number() <= bytes.size());  // every row, wrong ones too, takes a byte
      touch(row);
    }
  } catch (const Error&) {
  }
  return 0;
}
