#include "demi/core/huge_pages.h"

#include <sys/mman.h>

namespace demi {

void prefer_huge_pages(const void* data, uint64_t bytes, bool also_used) {
  constexpr uint64_t kHuge = uint64_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, of Linux 6.1
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHuge - 1) / kHuge * kHuge;
  const uintptr_t end = (address + bytes) / kHuge * kHuge;
  if (begin >= end) return;
  auto* pages = reinterpret_cast<void*>(begin);
  if (::madvise(pages, end - begin, MADV_HUGEPAGE) == 0 && also_used)
    ::madvise(pages, end - begin, kCollapse);
}

}  // namespace demi
