#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <optional>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/backends/backends.h"
#include "demi/core/export.h"
#include "demi/loop/precision.h"

namespace demi::loop {

/// The backend settings of a fit and an evaluation: those that the caller gives, and FP32's by the
/// precision where the caller gives none. In `tf32` products, convolutions and recurrent layers may
/// use TF32 on CUDA, in every other precision they may not. On a CPU they are FP32 in any case,
/// even if at::Context::setFloat32MatmulPrecision allows less.
DEMI_API Backends backends_in(const Precision& precision, const Backends& given);

/// The autocast region of a mixed precision on the device; a disabled region for other precisions.
/// Ops run as `ops` says. Without it, if the precision is that of demi::global_policy(), this is
/// the policy's region, which runs softmax in FP32.
DEMI_API Autocast region_of(const Precision& precision, c10::Device device,
                            const std::optional<OpPolicy>& ops = std::nullopt);

/// Applies OpPolicy::of_recipe to a model, if the precision has a recipe and a region, and no
/// weight of the model has one (demi::apply).
DEMI_API void apply_recipe(const Precision& precision, torch::nn::Module& model);

/// Switches off, while it lives, the regions that the caller has open for the CPU or `device`: a
/// fit or an evaluation computes the same wherever it is called.
class DEMI_API OutsideRegions {
 public:
  explicit OutsideRegions(c10::Device device);
  ~OutsideRegions();
  OutsideRegions(const OutsideRegions&) = delete;
  OutsideRegions& operator=(const OutsideRegions&) = delete;

 private:
  std::vector<c10::DeviceType> left_;
};

}  // namespace demi::loop
