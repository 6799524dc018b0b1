#pragma once

#include <cstdint>

namespace demi::checkpoint {

/// Asks the system for huge pages where memory is about to be written for the first time. Fresh
/// memory of 4 KiB pages costs more than the copy into it, in a virtual machine several times as
/// much. Does nothing for small tensors, and where there are no huge pages.
void prefer_huge_pages(void* data, uint64_t bytes);

}  // namespace demi::checkpoint
