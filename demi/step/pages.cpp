#include "demi/step/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace demi::optim {

void ask_for_huge_pages(const at::Tensor& tensor) {
#if defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kHuge = std::uintptr_t{2} << 20;
  constexpr std::uintptr_t kLeast = 4 * kHuge;  // smaller arrays fit into the translation caches
  constexpr int kCollapse = 25;                 // MADV_COLLAPSE, of Linux 6.1
  if (!tensor.is_cpu() || tensor.nbytes() < kLeast) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  const std::uintptr_t first = (begin + kHuge - 1) / kHuge * kHuge;
  const std::uintptr_t last = (begin + tensor.nbytes()) / kHuge * kHuge;
  auto* pages = reinterpret_cast<void*>(first);
  if (madvise(pages, last - first, MADV_HUGEPAGE) == 0) madvise(pages, last - first, kCollapse);
#endif
}

}  // namespace demi::optim
