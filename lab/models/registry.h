#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/recompute/recompute.h"
#include "demi/train/network.h"
#include "lab/data/kind.h"
#include "lab/models/model_info.h"

namespace demi::models {

/// All of them, in the order in which help shows them.
DEMI_API std::span<const ModelInfo> models();

/// The model of that name, or the network of that file (imported_file). Throws UsageError with the
/// nearest right name, and as imported_file.
DEMI_API const ModelInfo& find_model(std::string_view name);

/// The model of that name; null: a file's, or none.
DEMI_API const ModelInfo* model_named(std::string_view name);

/// Whether the model can read such data.
DEMI_API bool reads(const ModelInfo& model, data::Kind kind);

/// The model of that name with the initial weights that belong to `seed`. Throws UsageError: no
/// such name, sizes or settings out of range.
DEMI_API train::Network make_model(std::string_view name, const ModelOptions& options,
                                   uint64_t seed);

/// The name of the module of that model which gives its outputs: "classifier", "layers.4".
DEMI_API std::string head_of(const ModelInfo& info, const torch::nn::Module& model);

/// Parameters that are trained, counted by element, each once however often it is registered.
DEMI_API int64_t parameter_count(const torch::nn::Module& module);

/// "none" (nothing is recomputed), "blocks" or "products". Throws UsageError.
DEMI_API std::optional<Keep> parse_recompute(std::string_view name);

}  // namespace demi::models
