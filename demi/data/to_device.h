#pragma once

#include <c10/core/Device.h>

#include "demi/core/export.h"
#include "demi/data/loader.h"

namespace demi::data {

/// The batch with its tensors on `device`; tensors that are there already are shared. Tensors of
/// the host go to a GPU through pinned memory, on the current stream, and the host does not wait.
/// Lengths, (N) int64, stay on the CPU, because torch::nn::utils::rnn::pack_padded_sequence reads
/// them there. A mask in their place is moved.
DEMI_API Batch to_device(const Batch& batch, c10::Device device);

}  // namespace demi::data
