// Finding the text, its partner and the label among the names that a file gives its columns. Usual
// names come in groups, because "question" is a first text beside "sentence" (QNLI) but "sentence"
// alone is one too. For words the text is their list and the label the tags'; for questions the
// second text is the context, without which there is no question, and the label the answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/row_reader.h"

namespace snug {

struct ColumnMap {
  size_t count = 0;  // columns in the file
  size_t text = 0;
  std::optional<size_t> text_pair, label;
  Columns names;  // as the file spells them; empty where absent
};

// `file` is for messages. Errors (kInput) list the columns there are.
ColumnMap resolve_columns(const std::vector<std::string>& names, const RowReaderOptions& options,
                          const std::string& file);

// For formats with a separator: refuses a repeated name, and a single column whose name holds
// another separator ("is the separator ';'?").
void check_header(const std::vector<std::string>& names, char separator, const std::string& file);

// Refuses records with absurdly many columns while they are being cut, before they cost memory.
void check_column_limit(size_t columns, uint64_t line, const std::string& file);

// "#1", "#2", ... for files without a header.
std::vector<std::string> numbered_columns(size_t count);

}  // namespace snug
