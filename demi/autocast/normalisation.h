#pragma once

#include "demi/core/export.h"

namespace demi {

/// A layer whose parameters and statistics to_precision leaves in FP32 in a model of 16 bits, as
/// those of LibTorch's normalisations. A normalisation of your own is derived from this, too:
///
///     class RootMeanSquareImpl : public torch::nn::Module, public demi::Normalisation { ... };
class DEMI_API Normalisation {
 public:
  virtual ~Normalisation();

 protected:
  Normalisation() = default;
  Normalisation(const Normalisation&) = default;
  Normalisation& operator=(const Normalisation&) = default;
};

}  // namespace demi
