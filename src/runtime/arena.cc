#include "runtime/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/progress.h"

namespace snug {

Arena::Arena(size_t bytes) : bytes_(bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    fail(ErrorKind::kBudget, "the system does not give the {} that the plan needs",
         format_bytes(bytes));
  }
  base_ = static_cast<std::byte*>(mapped);
  // Large pages where the system offers them: matrix products walk far.
  (void)::madvise(mapped, bytes, MADV_HUGEPAGE);
  std::memset(mapped, 0, bytes);
}

Arena::~Arena() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

void Arena::read(size_t offset, std::span<std::byte> to) const {
  std::memcpy(to.data(), base_ + offset, to.size());
}

void Arena::write(size_t offset, std::span<const std::byte> from) {
  std::memcpy(base_ + offset, from.data(), from.size());
}

size_t Arena::resident_bytes() const {
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  constexpr size_t kPagesAtOnce = 1 << 16;
  std::vector<unsigned char> state(kPagesAtOnce);
  size_t resident = 0;
  for (size_t at = 0; at < bytes_; at += kPagesAtOnce * page) {
    const size_t span = std::min(bytes_ - at, kPagesAtOnce * page);
    if (::mincore(base_ + at, span, state.data()) != 0) return 0;
    for (size_t p = 0; p < (span + page - 1) / page; ++p) resident += (state[p] & 1) ? page : 0;
  }
  return resident;
}

}  // namespace snug
