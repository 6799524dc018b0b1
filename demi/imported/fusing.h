#pragma once

namespace demi::imported {

/// The batch normalisations of an imported network that run, with what follows them, as one
/// operator (demi::batch_norm_relu) on a CPU.
enum class Fusing {
  low_precision,  // those of fp16 and bf16 inputs
  always,         // those of FP32 as well, whose results then differ from Python's in the last bits
  never,          // none
};

}  // namespace demi::imported
