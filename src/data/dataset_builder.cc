#include "data/dataset_builder.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/progress.h"
#include "data/row_stream.h"

namespace snug {
namespace {

// Bytes of the longest part without white space; 0 of a text in which none can be long.
uint64_t longest_word(std::string_view text) {
  constexpr size_t kShortText = 4 << 10;
  uint64_t longest = 0;
  if (text.size() <= kShortText) return longest;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \t\r\n", begin), text.size());
    longest = std::max<uint64_t>(longest, end - begin);
    begin = end + 1;
  }
  return longest;
}

constexpr size_t kBlockRows = 256;
constexpr size_t kBlockTextBytes = 64 << 10;
constexpr size_t kBlocksPerThread = 2;
constexpr int32_t kNoLabel[] = {-1};

struct BlockRow {
  size_t text_begin = 0, text_size = 0, pair_size = 0;
  bool has_pair = false, continues = false;
  size_t label_begin = 0, label_count = 0, word_begin = 0, word_count = 0;
  std::optional<AnswerPlace> answer;
  uint64_t line = 0, number = 0;
  bool wrong = false;
};

// Rows on their way through the tokenizer: texts in, records out.
struct Block {
  std::string text;  // of all rows, end to end
  std::vector<BlockRow> rows;
  std::vector<int32_t> labels;    // of all rows, end to end
  std::vector<TaggedWord> words;  // likewise
  std::vector<char> records;
  std::vector<uint32_t> sizes;
  std::vector<int32_t>
      ids;  // joined documents: of all rows, end to end; records are cut from them later
  std::vector<Error> wrong;  // of the rows that are, in their order
  uint64_t tokens = 0, long_rows = 0, encoded_rows = 0;
  uint32_t longest = 0;
  std::exception_ptr error;

  bool full() const { return rows.size() == kBlockRows || text.size() >= kBlockTextBytes; }

  // One giant row must not leave its memory behind in every block.
  void clear() {
    if (text.capacity() > 4 * kBlockTextBytes) text = {};
    text.clear();
    rows.clear();
    labels.clear();
    words.clear();
    records.clear();
    sizes.clear();
    ids.clear();
    wrong.clear();
    tokens = long_rows = encoded_rows = longest = 0;
    error = nullptr;
  }

  void add(const Row& row, uint64_t number, const RowLabels& labelled) {
    rows.push_back({.text_begin = text.size(),
                    .text_size = row.text.size(),
                    .pair_size = row.text_pair.value_or("").size(),
                    .has_pair = row.text_pair.has_value(),
                    .continues = row.continues,
                    .label_begin = labels.size(),
                    .label_count = labelled.labels.size(),
                    .word_begin = words.size(),
                    .word_count = labelled.words.size(),
                    .answer = labelled.answer,
                    .line = row.line,
                    .number = number});
    text.append(row.text).append(row.text_pair.value_or(""));
    labels.insert(labels.end(), labelled.labels.begin(), labelled.labels.end());
    words.insert(words.end(), labelled.words.begin(), labelled.words.end());
  }

  LabelledRow labelled(const BlockRow& row) const {
    LabelledRow result{.text = std::string_view(text).substr(row.text_begin, row.text_size),
                       .labels = std::span(labels).subspan(row.label_begin, row.label_count),
                       .words = std::span(words).subspan(row.word_begin, row.word_count),
                       .answer = row.answer};
    if (row.has_pair) {
      result.text_pair =
          std::string_view(text).substr(row.text_begin + row.text_size, row.pair_size);
    }
    return result;
  }
};

uint32_t cache_id_bytes(const Tokenizer& tokenizer) {
  return tokenizer.vocab_size() < 65536 ? 2 : 4;
}

class RowEncoder {
 public:
  RowEncoder(const Tokenizer& tokenizer, const DatasetOptions& options, std::string file)
      : tokenizer_(tokenizer),
        need_(options.labels),
        skips_(options.skip_bad_rows),
        documents_(options.documents),
        id_bytes_(cache_id_bytes(tokenizer)),
        file_(std::move(file)),
        max_length_(options.encoding.max_length),
        word_room_(options.encoding.word_room),
        encoder_(tokenizer, options.encoding) {}

  void encode(Block& block) {
    for (BlockRow& row : block.rows) {
      try {
        if (!documents_) {
          encode_row(block, row);
        } else if (documents_->joined) {
          encode_document(row, block);
          block.ids.insert(block.ids.end(), document_.begin(), document_.end());
        } else {
          encode_document(row, block);
          add_pieces(block, row);
        }
      } catch (const Error& error) {
        if (!is_of_row(error)) throw;
        const Error placed(error.kind(),
                           fmt::format("{}: line {}: {}", file_, row.line, error.what()),
                           error.hint());
        // Which rows are left out must not depend on the memory.
        if (!skips_ || error.kind() == ErrorKind::kBudget) throw placed;
        row.wrong = true;
        block.wrong.push_back(placed);
      }
    }
  }

 private:
  void encode_row(Block& block, const BlockRow& row) {
    const std::span<const EncodedExample> examples = encoder_.encode(block.labelled(row));
    for (const EncodedExample& example : examples) check_ids(example.encoding.ids);
    for (const EncodedExample& example : examples) {
      add_record(block, {.split = first_text_size(example.encoding),
                         .row = uint32_t(row.number),
                         .continues = example.continues,
                         .labels = example.labels,
                         .ids = example.encoding.ids,
                         .tags = example.tags});
    }
    block.long_rows += encoder_.was_long();
    ++block.encoded_rows;
  }

  // Without special tokens: documents end with the separator alone.
  void encode_document(const BlockRow& row, const Block& block) {
    const std::string_view text(block.text.data() + row.text_begin, row.text_size);
    tokenizer_.encode(
        text, std::nullopt,
        {.truncation = Truncation::kNone, .special_tokens = false, .word_room = word_room_},
        encoding_);
    for (const int32_t id : encoding_.ids) SNUG_CHECK(id >= 0 && id < tokenizer_.vocab_size());
    document_ = encoding_.ids;
    const bool ends = !row.continues && !document_.empty();
    if (ends && documents_->separator >= 0) document_.push_back(documents_->separator);
  }

  // A document of its own: an example, or as many as it takes. No token is lost.
  void add_pieces(Block& block, const BlockRow& row) {
    for (size_t first = 0; first < document_.size(); first += max_length_) {
      const auto ids = std::span<const int32_t>(document_).subspan(
          first, std::min(max_length_, document_.size() - first));
      add_record(block, {.split = uint32_t(ids.size()),
                         .row = uint32_t(row.number),
                         .continues = first + ids.size() < document_.size(),
                         .labels = kNoLabel,
                         .ids = ids,
                         .tags = {}});
    }
    ++block.encoded_rows;
  }

  void add_record(Block& block, const RecordContents& record) {
    const size_t before = block.records.size();
    append_record(record, id_bytes_, block.records);
    block.sizes.push_back(uint32_t(block.records.size() - before));
    block.tokens += record.ids.size();
    block.longest = std::max(block.longest, uint32_t(record.ids.size()));
  }

  void check_ids(std::span<const int32_t> ids) const {
    for (const int32_t id : ids) SNUG_CHECK(id >= 0 && id < tokenizer_.vocab_size());
    if (ids.empty() && need_ == LabelNeed::kRequired) {
      fail(ErrorKind::kInput, "the text gives no tokens: there is nothing to learn from");
    }
  }

  static uint32_t first_text_size(const Encoding& encoding) {
    const auto& types = encoding.type_ids;
    const auto second = std::ranges::find(types, 1);
    SNUG_CHECK(std::all_of(second, types.end(), [](int32_t type) { return type == 1; }));
    return types.empty() ? uint32_t(encoding.ids.size()) : uint32_t(second - types.begin());
  }

  const Tokenizer& tokenizer_;
  LabelNeed need_;
  bool skips_;
  std::optional<DocumentOptions> documents_;
  uint32_t id_bytes_;
  std::string file_;
  size_t max_length_;
  uint64_t word_room_;
  ExampleEncoder encoder_;
  Encoding encoding_;              // of a document
  std::vector<int32_t> document_;  // its ids and the separator
};

// Blocks go round: filled by the owner, encoded by any thread, collected by the owner in order.
class EncoderThreads {
 public:
  EncoderThreads(RowEncoder encoder, int threads) : blocks_(size_t(threads) * kBlocksPerThread) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this, encoder] { work(encoder); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~EncoderThreads() { stop(); }
  EncoderThreads(const EncoderThreads&) = delete;

  size_t ring() const { return blocks_.size(); }
  Block& block(uint64_t number) { return blocks_[number % blocks_.size()].block; }

  void submit(uint64_t number) {
    {
      const std::lock_guard lock(mutex_);
      blocks_[number % blocks_.size()].done = false;
      submitted_ = number + 1;
    }
    work_ready_.notify_one();
  }

  // Waits for the block and rethrows what went wrong in it.
  Block& collect(uint64_t number) {
    Slot& slot = blocks_[number % blocks_.size()];
    std::unique_lock lock(mutex_);
    block_done_.wait(lock, [&] { return slot.done; });
    if (slot.block.error) std::rethrow_exception(slot.block.error);
    return slot.block;
  }

 private:
  struct Slot {
    Block block;
    bool done = false;
  };

  Slot* take() {
    std::unique_lock lock(mutex_);
    work_ready_.wait(lock, [&] { return stopping_ || taken_ < submitted_; });
    return stopping_ ? nullptr : &blocks_[taken_++ % blocks_.size()];
  }

  void work(RowEncoder encoder) {
    while (Slot* slot = take()) {
      try {
        encoder.encode(slot->block);
      } catch (...) {
        slot->block.error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        slot->done = true;
      }
      block_done_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::vector<Slot> blocks_;
  std::mutex mutex_;
  std::condition_variable work_ready_, block_done_;
  uint64_t submitted_ = 0, taken_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

class Builder {
 public:
  Builder(const std::filesystem::path& source, const Tokenizer& tokenizer,
          const DatasetOptions& options, const CacheKey& key)
      : source_(source),
        file_(source),
        key_(key),
        skipped_(key.skipped_list()),
        rows_(open_rows(hashing_source(file_source(source), &source_hash_), source.string(),
                        {.kind = row_kind(options.encoding.labelling),
                         .columns = options.columns,
                         .labels = options.labels,
                         .has_header = options.has_header,
                         .documents = options.documents && options.documents->joined,
                         .label_separator = label_list_separator(options.encoding.labelling,
                                                                 options.label_separator)}),
              source.string(), options.skip_bad_rows ? &skipped_ : nullptr),
        labels_(options.encoding.labelling, {options.known_labels, options.labels, source.string()},
                options.label_separator),
        documents_(options.documents),
        max_length_(options.encoding.max_length),
        header_(initial_header(tokenizer, options, key)),
        writer_(key.cache),
        progress_("reading " + source.filename().string(), file_.size(), "bytes"),
        threads_(RowEncoder(tokenizer, options, source.string()), std::max(options.threads, 1)) {}

  void run() {
    uint64_t submitted = 0, collected = 0;
    std::exception_ptr reading_failed;
    for (bool more = true; more;) {
      if (submitted - collected == threads_.ring()) write(threads_.collect(collected++));
      try {
        more = fill(threads_.block(submitted));
      } catch (...) {
        reading_failed = std::current_exception();
        more = false;
      }
      threads_.submit(submitted++);
    }
    // Rows still on their way are from earlier lines, so their errors come first.
    while (collected < submitted) write(threads_.collect(collected++));
    if (reading_failed) std::rethrow_exception(reading_failed);
    finish();
  }

 private:
  // Clocks of file systems tick in milliseconds or seconds. A source written that recently could
  // change again under the same time: 0 makes later uses compare its hash instead.
  int64_t settled_mtime_ns() const {
    using namespace std::chrono;
    const int64_t now_ns = nanoseconds(system_clock::now().time_since_epoch()).count();
    return now_ns - file_.mtime_ns() > nanoseconds(2s).count() ? file_.mtime_ns() : 0;
  }

  static CacheHeader initial_header(const Tokenizer& tokenizer, const DatasetOptions& options,
                                    const CacheKey& key) {
    CacheHeader header;
    if (options.documents && options.documents->joined && !options.documents->attention_crosses) {
      header.separator = options.documents->separator;
    }
    header.key = key.contents;
    header.labelling = uint64_t(options.encoding.labelling);
    header.vocab = uint32_t(tokenizer.vocab_size());
    header.id_bytes = cache_id_bytes(tokenizer);
    return header;
  }

  // False when the file has ended.
  bool fill(Block& block) {
    block.clear();
    Row row;
    bool more = true;
    while (!block.full() && (more = rows_.next(row))) {
      any_text_ = any_text_ || row.text.find_first_not_of(" \t\r\n") != std::string_view::npos;
      try {
        labels_.add(row, labelled_);
      } catch (const Error& error) {
        rows_.leave_out(error);
        continue;
      }
      block.add(row, rows_.number(), labelled_);
      header_.longest_text_bytes = std::max<uint64_t>(
          header_.longest_text_bytes, row.text.size() + row.text_pair.value_or("").size());
      for (const std::string_view text : {row.text, row.text_pair.value_or("")}) {
        header_.longest_word_bytes = std::max(header_.longest_word_bytes, longest_word(text));
      }
      ++rows_read_;
    }
    progress_.update(rows_.reader().bytes_read());
    return more;
  }

  void write(const Block& block) {
    leave_out_wrong(block);
    if (documents_ && documents_->joined) return write_joined(block.ids, /*last=*/false);
    writer_.append(block.records, block.sizes);
    header_.rows += block.sizes.size();
    header_.source_rows += block.encoded_rows;
    header_.tokens += block.tokens;
    header_.long_rows += block.long_rows;
    header_.longest = std::max(header_.longest, block.longest);
  }

  void leave_out_wrong(const Block& block) {
    if (block.wrong.empty()) return;
    for (const BlockRow& row : block.rows) {
      if (!row.wrong) continue;
      const LabelledRow labelled = block.labelled(row);
      labels_.remove(labelled.labels, labelled.words);
    }
    for (const Error& error : block.wrong) rows_.leave_out(error);
  }

  // Cuts what has come so far into rows; the rest waits for more.
  void write_joined(std::span<const int32_t> ids, bool last) {
    joined_.insert(joined_.end(), ids.begin(), ids.end());
    size_t done = 0;
    for (size_t left = joined_.size(); left >= max_length_ || (last && left > 0);
         left = joined_.size() - done) {
      const auto row = std::span(joined_).subspan(done, std::min(left, max_length_));
      done += row.size();
      record_.clear();
      ++header_.rows, ++header_.source_rows;
      append_record({.split = uint32_t(row.size()), .labels = kNoLabel, .ids = row},
                    header_.id_bytes, record_);
      const auto size = uint32_t(record_.size());
      writer_.append(record_, {&size, 1});
      header_.tokens += row.size();
      header_.longest = std::max(header_.longest, uint32_t(row.size()));
      if (header_.separator >= 0) {
        const auto cuts = std::ranges::count(row.first(row.size() - 1), header_.separator);
        header_.most_sequences = std::max(header_.most_sequences, uint32_t(cuts + 1));
      }
    }
    joined_.erase(joined_.begin(), joined_.begin() + ptrdiff_t(done));
  }

  void finish() {
    if (documents_ && documents_->joined) write_joined({}, /*last=*/true);
    if (skipped_.count() > 0 && header_.rows == 0) {
      fail(ErrorKind::kInput, "{}: all {} rows are wrong; the first: {}", source_.string(),
           skipped_.count(), skipped_.first()[0]);
    }
    if (rows_read_ == 0) fail(ErrorKind::kInput, "{}: no rows of data", source_.string());
    if (!any_text_) {
      fail(ErrorKind::kInput, "{}: the text is empty in every row (column \"{}\")",
           source_.string(), rows_.reader().columns().text);
    }
    if (header_.rows == 0) {
      fail(ErrorKind::kInput, "{}: its text gives no tokens", source_.string());
    }
    const LabelCollector::Result labels = labels_.finish();
    if (header_.labelling == uint64_t(Labelling::kTags) && labels.labels.names.size() >= kNoTag) {
      fail(ErrorKind::kInput, "{}: {} different labels of words, expected at most {}",
           source_.string(), labels.labels.names.size(), kNoTag - 1);
    }
    const InputFile now(source_);
    if (now.size() != file_.size() || now.mtime_ns() != file_.mtime_ns()) {
      fail(ErrorKind::kInput, "{}: changed while it was being read; run again when it is complete",
           source_.string());
    }
    header_.source_bytes = file_.size();
    header_.source_mtime_ns = settled_mtime_ns();
    header_.source_hash = source_hash_;
    header_.skipped_rows = skipped_.count();
    header_.fingerprint = dataset_fingerprint(key_, source_hash_);
    skipped_.commit();
    writer_.commit(header_, labels);
  }

  const std::filesystem::path& source_;
  InputFile file_;
  const CacheKey& key_;
  uint64_t source_hash_ = 0;
  SkippedRows skipped_;
  RowStream rows_;
  RowLabeller labels_;
  RowLabels labelled_;
  std::optional<DocumentOptions> documents_;
  size_t max_length_;
  std::vector<int32_t> joined_;  // tokens that do not fill a row yet
  std::vector<char> record_;
  CacheHeader header_;
  CacheWriter writer_;
  Progress progress_;
  bool any_text_ = false;
  uint64_t rows_read_ = 0;
  EncoderThreads threads_;  // last: joined before what its blocks come from goes
};

}  // namespace

uint64_t dataset_fingerprint(const CacheKey& key, uint64_t source_hash) {
  const uint64_t parts[] = {key.contents, source_hash};
  return XXH3_64bits(parts, sizeof parts);
}

void build_cache(const std::filesystem::path& source, const Tokenizer& tokenizer,
                 const DatasetOptions& options, const CacheKey& key) {
  // Temporary files are named by process: two threads must not build one cache at a time.
  static std::mutex building;
  const std::lock_guard lock(building);
  make_directories(key.cache.parent_path());
  Builder(source, tokenizer, options, key).run();
}

}  // namespace snug
