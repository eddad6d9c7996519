#include "data/byte_source.h"

#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace snug {
namespace {

constexpr size_t kCompressedChunk = 64 << 10;

// The window a decoder must support by RFC 8878, and all that `zstd -19` uses. It bounds the
// decoder's memory, which the memory plan counts.
constexpr int kZstdWindowLog = 23;

class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path) : file_(path) {}

  size_t read(char* destination, size_t bytes) override {
    const size_t count = file_.read_some(offset_, destination, bytes);
    offset_ += count;
    return count;
  }
  uint64_t stored_bytes() const override { return offset_; }

 private:
  InputFile file_;
  uint64_t offset_ = 0;
};

class StdinSource final : public ByteSource {
 public:
  size_t read(char* destination, size_t bytes) override {
    for (;;) {
      const ssize_t count = ::read(STDIN_FILENO, destination, bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        fail(ErrorKind::kInput, "standard input: cannot read: {}", std::strerror(errno));
      }
      offset_ += uint64_t(count);
      return size_t(count);
    }
  }
  uint64_t stored_bytes() const override { return offset_; }

 private:
  uint64_t offset_ = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}

  size_t read(char* destination, size_t bytes) override {
    const size_t count = std::min(bytes, bytes_.size() - offset_);
    std::copy_n(bytes_.data() + offset_, count, destination);
    offset_ += count;
    return count;
  }
  uint64_t stored_bytes() const override { return offset_; }

 private:
  std::string_view bytes_;
  size_t offset_ = 0;
};

class HashingSource final : public ByteSource {
 public:
  HashingSource(std::unique_ptr<ByteSource> stored, uint64_t* hash)
      : stored_(std::move(stored)), state_(XXH3_createState(), XXH3_freeState), hash_(hash) {
    XXH3_64bits_reset(state_.get());
  }

  size_t read(char* destination, size_t bytes) override {
    const size_t count = stored_->read(destination, bytes);
    if (count == 0) {
      *hash_ = XXH3_64bits_digest(state_.get());
    } else {
      XXH3_64bits_update(state_.get(), destination, count);
    }
    return count;
  }
  uint64_t stored_bytes() const override { return stored_->stored_bytes(); }

 private:
  std::unique_ptr<ByteSource> stored_;
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
  uint64_t* hash_;
};

// What both decompressors share: a chunk of compressed bytes and where in the file it ends.
class Decompressor : public ByteSource {
 public:
  Decompressor(std::unique_ptr<ByteSource> stored, std::string name)
      : stored_(std::move(stored)), name_(std::move(name)), chunk_(kCompressedChunk) {}
  uint64_t stored_bytes() const override { return stored_->stored_bytes(); }

 protected:
  size_t refill() { return stored_->read(chunk_.data(), chunk_.size()); }

  [[noreturn]] void fail_truncated(std::string_view kind) const {
    fail(ErrorKind::kInput, "{}: {} data ends early at byte {}; was the file cut off?", name_, kind,
         stored_bytes());
  }
  [[noreturn]] void fail_corrupt(std::string_view kind, size_t unused, const char* reason) const {
    fail(ErrorKind::kInput, "{}: damaged {} data near byte {}: {}", name_, kind,
         stored_bytes() - unused, reason);
  }

  std::unique_ptr<ByteSource> stored_;
  std::string name_;
  std::vector<char> chunk_;
};

class GzipSource final : public Decompressor {
 public:
  GzipSource(std::unique_ptr<ByteSource> stored, std::string name)
      : Decompressor(std::move(stored), std::move(name)) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  GzipSource(const GzipSource&) = delete;
  ~GzipSource() override { inflateEnd(&stream_); }

  size_t read(char* destination, size_t bytes) override {
    const uInt wanted = uInt(std::min<size_t>(bytes, 1 << 30));
    stream_.next_out = reinterpret_cast<Bytef*>(destination);
    stream_.avail_out = wanted;
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) {
        stream_.avail_in = uInt(refill());
        stream_.next_in = reinterpret_cast<Bytef*>(chunk_.data());
      }
      if (stream_.avail_in == 0) {
        if (!between_members_) fail_truncated("gzip");
        return 0;
      }
      step();
    }
    return wanted - stream_.avail_out;
  }

 private:
  void step() {
    between_members_ = false;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      between_members_ = true;
      inflateReset(&stream_);
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail_corrupt("gzip", stream_.avail_in, stream_.msg ? stream_.msg : "not gzip data");
    }
  }

  z_stream stream_{};
  bool between_members_ = false;
};

class ZstdSource final : public Decompressor {
 public:
  ZstdSource(std::unique_ptr<ByteSource> stored, std::string name)
      : Decompressor(std::move(stored), std::move(name)),
        stream_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (!stream_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kZstdWindowLog);
  }

  size_t read(char* destination, size_t bytes) override {
    ZSTD_outBuffer out{destination, bytes, 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size && !output_pending_) in_ = {chunk_.data(), refill(), 0};
      if (in_.size == 0) {
        if (!between_frames_) fail_truncated("zstd");
        return 0;
      }
      const size_t result = ZSTD_decompressStream(stream_.get(), &out, &in_);
      if (ZSTD_isError(result)) fail_frame(result);
      between_frames_ = result == 0;
      // A full output buffer may leave decoded bytes inside the decoder: ask again before reading.
      output_pending_ = out.pos == out.size && result != 0;
    }
    return out.pos;
  }

 private:
  [[noreturn]] void fail_frame(size_t result) const {
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
      fail(ErrorKind::kInput,
           "{}: compressed with a window over {} MiB; compress it again with "
           "zstd -19 or less, without --long",
           name_, (1 << kZstdWindowLog) >> 20);
    }
    fail_corrupt("zstd", in_.size - in_.pos, ZSTD_getErrorName(result));
  }

  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> stream_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool between_frames_ = false;
  bool output_pending_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> file_source(const std::filesystem::path& path) {
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<ByteSource> stdin_source() { return std::make_unique<StdinSource>(); }

std::unique_ptr<ByteSource> memory_source(std::string_view bytes) {
  return std::make_unique<MemorySource>(bytes);
}

std::unique_ptr<ByteSource> gzip_source(std::unique_ptr<ByteSource> stored, std::string name) {
  return std::make_unique<GzipSource>(std::move(stored), std::move(name));
}

std::unique_ptr<ByteSource> zstd_source(std::unique_ptr<ByteSource> stored, std::string name) {
  return std::make_unique<ZstdSource>(std::move(stored), std::move(name));
}

std::unique_ptr<ByteSource> hashing_source(std::unique_ptr<ByteSource> stored, uint64_t* hash) {
  return std::make_unique<HashingSource>(std::move(stored), hash);
}

}  // namespace snug
