#pragma once

#include "demi/core/export.h"
#include "lab/models/model_info.h"

namespace demi::models {

/// One more model in models(), which has no line in list.h: that of a test. To be called before
/// anything asks for models or settings.
DEMI_API void add_model(ModelInfo info);

}  // namespace demi::models
