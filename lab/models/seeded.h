#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::models {

/// While it lives, LibTorch's CPU generator, from which layers draw their initial weights, gives
/// the numbers that follow `seed`; afterwards it continues as if nothing had happened. Models are
/// made on the CPU, so their weights are the same on any device. Not for several threads at once:
/// the generator is the process's.
class DEMI_API Seeded {
 public:
  explicit Seeded(uint64_t seed);
  ~Seeded();
  Seeded(const Seeded&) = delete;
  Seeded& operator=(const Seeded&) = delete;

 private:
  at::Tensor state_;  // of the generator before
};

}  // namespace demi::models
