// The formats behind open_rows(). Nothing outside this folder includes this.
#pragma once

#include <memory>

#include "data/row_reader.h"
#include "data/text_window.h"

namespace snug {

std::unique_ptr<RowReader> csv_reader(TextWindow window, const RowReaderOptions& options);
std::unique_ptr<RowReader> tsv_reader(TextWindow window, const RowReaderOptions& options);
std::unique_ptr<RowReader> jsonl_reader(TextWindow window, const RowReaderOptions& options);
std::unique_ptr<RowReader> text_reader(TextWindow window, const RowReaderOptions& options);
// RowKind::kWords:
std::unique_ptr<RowReader> conll_reader(TextWindow window, const RowReaderOptions& options);
std::unique_ptr<RowReader> jsonl_words_reader(TextWindow window, const RowReaderOptions& options);
// RowKind::kQuestions:
std::unique_ptr<RowReader> squad_reader(TextWindow window, const RowReaderOptions& options);
std::unique_ptr<RowReader> jsonl_questions_reader(TextWindow window,
                                                  const RowReaderOptions& options);

}  // namespace snug
