#pragma once

#include <string_view>

namespace demi {

/// What a profiler of LibTorch calls a kernel of demi's that no op of LibTorch is around begins
/// with this: "demi.attention". It is recorded as a range of the program (RecordScope::USER_SCOPE)
/// with its arguments, since observers of ops read what the outermost op gives, and a range gives
/// nothing.
inline constexpr std::string_view kKernelRange = "demi.";

}  // namespace demi
