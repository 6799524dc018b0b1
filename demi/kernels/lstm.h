#pragma once

#include <cstdint>

#include "demi/kernels/storage.h"

namespace demi::kernels {

/// One time step of an LSTM for `rows` sequences (Hochreiter and Schmidhuber 1997 with the forget
/// gate of Gers et al. 2000; gates in the order of torch.nn.LSTM: input i, forget f, candidate g,
/// output o):
///
///     c = f c_before + i g,    h = o tanh(c)
///
/// Arrays are dense, row after row. Arithmetic is FP32; gates and outputs are rounded to `storage`.
struct LstmForward {
  std::int64_t rows, hidden;
  Storage storage;
  const float* sums;         // (rows, 4 hidden): x W_ih' + h_before W_hh'
  const float* bias;         // (4 hidden)
  const float* cell_before;  // (rows, hidden)
  float* cell;               // (rows, hidden); may be cell_before
  void* gates;               // (rows, 4 hidden) after sigmoid and tanh, for backward; or null
  void* output;              // (rows, hidden): h
  float* widened;            // (rows, hidden): h as rounded; or null
};

/// The backward pass of such a time step.
struct LstmBackward {
  std::int64_t rows, hidden;
  Storage storage;
  const void* output_gradient;   // (rows, hidden): of h from above; or null: 0
  const float* hidden_gradient;  // (rows, hidden): of h from the step after
  float* cell_gradient;          // (rows, hidden): of c; becomes that of c_before
  const void* gates;
  const float* cell_before;
  const float* cell;
  void* sums_gradient;  // (rows, 4 hidden): of `sums`, and so of the bias
  float* widened;       // (rows, 4 hidden): the same as rounded; or null
};

}  // namespace demi::kernels
