#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "lab/models/resnet.h"

namespace demi::models {

/// The name in torchvision's ResNet of what ResNet with these options calls `name`. Of ResNet-18:
/// "stem.0.weight" is "conv1.weight", "stages.3.body.1.bias" is "layer2.1.bn1.bias",
/// "classifier.weight" is "fc.weight". Both have the same tensors in the same order, and with
/// ResNetStem::imagenet of the same shapes. Throws UsageError if ResNet has no such name.
DEMI_API std::string torchvision_name(std::string_view name, const ResNetOptions& options);

}  // namespace demi::models
