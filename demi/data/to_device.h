#pragma once

#include <c10/core/Device.h>

#include "demi/core/export.h"
#include "demi/data/loader.h"

namespace demi::data {

/// The batch with its tensors on `device`; those that are there already are handed on. What the
/// host holds goes to a GPU through pinned memory, on the current stream, and the host does not
/// wait. Lengths, (N) int64, stay on the CPU as Batch has them:
/// torch::nn::utils::rnn::pack_padded_sequence takes them from nowhere else. A mask in their place
/// goes along.
DEMI_API Batch to_device(const Batch& batch, c10::Device device);

}  // namespace demi::data
