#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::rnn {

/// One direction of one layer, as torch.nn.LSTM names and lays them out: gates in the order input,
/// forget, candidate, output. Biases may be undefined.
struct LstmWeights {
  at::Tensor w_ih;  // (4 H, I)
  at::Tensor w_hh;  // (4 H, H)
  at::Tensor b_ih;  // (4 H)
  at::Tensor b_hh;  // (4 H)
};

struct LstmResult {
  at::Tensor output;  // (T, N, H): h of each step
  at::Tensor hidden;  // (N, H): h of the last step taken
  at::Tensor cell;    // (N, H): its c
};

/// Whether lstm_layer() runs this: CPU tensors, all of one 16-bit dtype, of matching shapes and not
/// empty, on a machine with kernels for it (never with DEMI_KERNELS=aten).
DEMI_API bool lstm_layer_takes(const at::Tensor& input, const LstmWeights& weights,
                               const at::Tensor& hidden, const at::Tensor& cell);

/// An LSTM layer in mixed precision, differentiable once: input (T, N, I), initial hidden and cell
/// (N, H). Products sum in FP32, c stays in FP32 from step to step and so do the gates' sums; h and
/// what backward needs of the gates are kept in 16 bits. `reverse` reads from the last step to the
/// first. Threads split the N sequences among them and meet once a layer. Results are of the
/// inputs' dtype, gradients too.
///
/// `running`, where sequences end at different times: how many run at each of the T times, as
/// PackedSequence::batch_sizes() has it: longest sequences first, so not increasing, the first one
/// N and the last one 1 or more. Each sequence then begins, reverse or not, and ends with its own
/// steps alone. The output's rows past an end are finite and mean nothing; their gradients are
/// taken for 0.
DEMI_API LstmResult lstm_layer(const at::Tensor& input, const LstmWeights& weights,
                               const at::Tensor& hidden, const at::Tensor& cell, bool reverse,
                               at::IntArrayRef running = {});

}  // namespace demi::rnn
