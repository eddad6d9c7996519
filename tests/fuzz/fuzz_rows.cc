// Any bytes as a data file of the format SNUG_FUZZ_FORMAT: they are read to the end or refused with an Error, nothing else.
// The first byte chooses the options.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "data/row_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  snug::RowReaderOptions options{.labels = snug::LabelNeed(data[0] % 3),
                                 .has_header = (data[0] & 4) == 0,
                                 .max_record_bytes = 1 << 16};
  if (!options.has_header) options.columns.text = "#1";
  try {
    const auto reader = snug::open_rows(snug::memory_source(bytes), "fuzz." SNUG_FUZZ_FORMAT, options);
    for (snug::Row row; reader->next(row);) {
      // The views must lie in memory: touch both ends.
      if (!row.text.empty() && row.text.front() + row.text.back() == 1) return 0;
      if (row.label && !row.label->empty() && row.label->front() + row.label->back() == 1) return 0;
    }
  } catch (const snug::Error&) {
  }
  return 0;
}
