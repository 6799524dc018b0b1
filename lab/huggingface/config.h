#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <string>

#include "lab/models/gpt.h"

namespace demi::huggingface {

/// Reads the config.json of a GPT-2 or a Llama, with transformers' defaults for entries that it
/// lacks. Throws DataError: another model_type, a value out of range, and, by name, a setting that
/// demi::models::GPT does not have (rope_scaling, quantization_config, another activation).
models::GPTOptions read_config(const std::filesystem::path& file);

/// config.json of such a model, with tensors of that dtype. `end`: the token that ends a text,
/// below 0 if there is none. `source`: a folder whose config.json says it in place of `end`, and
/// which tokens begin and pad a text; empty: none. Throws UsageError for a form that transformers
/// lacks: nanochat, and gpt2 with shared key heads; DataError as read_config.
std::string write_config(const models::GPTOptions& options, c10::ScalarType dtype, int64_t end,
                         const std::filesystem::path& source);

}  // namespace demi::huggingface
