#pragma once

#include <string_view>

namespace demi {

/// The beginning of the name that LibTorch's profiler shows for a kernel of demi's outside any op
/// of LibTorch: "demi.attention". Such a kernel is recorded as a range of the program
/// (RecordScope::USER_SCOPE) with its arguments: observers of ops read the outputs of the outermost
/// op, and a range has none.
inline constexpr std::string_view kKernelRange = "demi.";

}  // namespace demi
