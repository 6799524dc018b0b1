#pragma once

#include <cstdint>

#include "demi/core/export.h"

namespace demi {

/// Asks the system for huge pages in this memory: those that are wholly inside, so that neighbours
/// in the heap stay as they are. `also_used`: for pages that were written to already, too;
/// otherwise only for what is written for the first time later. Does nothing where there are no
/// huge pages.
DEMI_API void prefer_huge_pages(const void* data, uint64_t bytes, bool also_used = false);

}  // namespace demi
