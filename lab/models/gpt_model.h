#pragma once

#include "demi/core/export.h"
#include "lab/models/gpt.h"
#include "lab/models/model_info.h"
#include "lab/values/setting.h"

namespace demi::models {

/// The options of the GPT that make_model makes. Throws UsageError.
DEMI_API GPTOptions gpt_options(const ModelOptions& given);

/// The settings by which make_model makes a GPT of these options; vocabulary, context and recompute
/// are not among them. A value that equals a default of the form is written as that (0, auto).
DEMI_API values::Texts gpt_settings(GPTOptions options);

}  // namespace demi::models
