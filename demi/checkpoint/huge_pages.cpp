#include "demi/checkpoint/huge_pages.h"

#include <sys/mman.h>

namespace demi::checkpoint {

void prefer_huge_pages(void* data, uint64_t bytes) {
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  // The huge pages that lie wholly inside, so that neighbours in the heap stay as they are.
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace demi::checkpoint
