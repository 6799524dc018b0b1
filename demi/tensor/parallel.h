#pragma once

#include <cstdint>

namespace demi::tensor {

/// The grain of at::parallel_for over the elements of a tensor: fewer are not worth waking a thread
/// for.
inline constexpr std::int64_t kElementsPerThread = 65536;

}  // namespace demi::tensor
