#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "demi/core/export.h"

namespace demi::weights {

/// What `make` makes of the parameter's values: kept until the next write to the parameter, if it
/// is owned and the mode is Mode::keep; else made by each call. `key` tells apart what is made of
/// one parameter in several ways. The tensors must not be written to. They count in Stats::copies
/// and Stats::bytes, and what set_capacity() leaves no room for is not kept.
///
/// `make` is called without a lock, outside of every graph. Two threads that ask at once may both
/// call it. On a stream that is captured it is called each time, and what it gives is not kept: a
/// replay computes it anew.
DEMI_API std::vector<at::Tensor> derived(const at::Tensor& parameter, std::uint64_t key,
                                         const std::function<std::vector<at::Tensor>()>& make);

}  // namespace demi::weights
