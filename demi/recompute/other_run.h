#pragma once

#include <string>

namespace demi::recomputation {

/// Throws UsageError: the second run of a function is not like the first.
[[noreturn]] void refuse_other_run(const std::string& what, const std::string& seen,
                                   const std::string& accepted);

}  // namespace demi::recomputation
