// What a CPU run keeps outside of its arena: a file without a name. It is read and written, never
// mapped, so that no page of it is the process's own; the pages stay in the system's cache while
// there is room.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

#include "core/memory.h"
#include "core/nameless_file.h"

namespace snug {

class OutsideFile : public Memory {
 public:
  // In a folder that is made if need be; zeros. 0 bytes: no file. Throws Error (kStorage) when the
  // disk has no room.
  OutsideFile(const std::filesystem::path& folder, size_t bytes);

  void read(size_t offset, std::span<std::byte> to) const override;
  void write(size_t offset, std::span<const std::byte> from) override;

 private:
  std::optional<NamelessFile> file_;
};

}  // namespace snug
