// Reads a data file once and writes its cache. The calling thread reads rows and writes results in
// order; tokenizer threads work on a fixed ring of blocks between, which bounds the memory.
#pragma once

#include <filesystem>

#include "data/cache_file.h"
#include "data/dataset.h"

namespace snug {

struct CacheKey {
  uint64_t contents = 0;        // of everything but the path and the source's contents
  std::filesystem::path cache;  // the file's place

  // The list of the rows that were left out, where wrong ones are.
  std::filesystem::path skipped_list() const {
    return cache.parent_path() / (cache.stem().string() + "-skipped.jsonl");
  }
};

// Throws the error of the lowest line. The cache appears whole or not at all.
void build_cache(const std::filesystem::path& source, const Tokenizer& tokenizer,
                 const DatasetOptions& options, const CacheKey& key);

// Of a source with this hash read under this key.
uint64_t dataset_fingerprint(const CacheKey& key, uint64_t source_hash);

}  // namespace snug
