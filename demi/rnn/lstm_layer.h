#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::rnn {

/// The weights of one direction of one layer, with torch.nn.LSTM's names and layout: gates in the
/// order input, forget, candidate, output. Biases may be undefined.
struct LstmWeights {
  at::Tensor w_ih;  // (4 H, I)
  at::Tensor w_hh;  // (4 H, H)
  at::Tensor b_ih;  // (4 H)
  at::Tensor b_hh;  // (4 H)
};

struct LstmResult {
  at::Tensor output;  // (T, N, H): h of each step
  at::Tensor hidden;  // (N, H): h after the last step of each sequence
  at::Tensor cell;    // (N, H): c after that step
};

/// Whether lstm_layer() accepts these tensors: on the CPU, all of one 16-bit dtype, of matching
/// shapes, not empty, and this machine has kernels for them. Always false with DEMI_KERNELS=aten.
DEMI_API bool lstm_layer_takes(const at::Tensor& input, const LstmWeights& weights,
                               const at::Tensor& hidden, const at::Tensor& cell);

/// An LSTM layer in mixed precision, differentiable once: input (T, N, I), initial hidden and cell
/// (N, H). Products and the gates' sums are FP32, and c stays FP32 from step to step; h and the
/// gates that backward needs are kept in 16 bits. `reverse` reads from the last step to the first.
/// Threads split the N sequences among them and meet once a layer. Results and gradients have the
/// inputs' dtype.
///
/// `running` is given if sequences end at different times: the number of sequences that run at each
/// of the T times, as in PackedSequence::batch_sizes(). Longest sequences come first, so the
/// numbers do not increase; the first is N and the last 1 or more. Each sequence then consists of
/// its own steps alone, reverse or not. Rows of the output beyond a sequence's end are finite and
/// have no meaning; their gradients count as 0.
DEMI_API LstmResult lstm_layer(const at::Tensor& input, const LstmWeights& weights,
                               const at::Tensor& hidden, const at::Tensor& cell, bool reverse,
                               at::IntArrayRef running = {});

}  // namespace demi::rnn
