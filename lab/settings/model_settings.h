#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/kind.h"
#include "lab/settings/config.h"

// The models' part of a run's settings (models::ModelInfo::settings).
namespace demi::settings {

/// The settings of the models that read such data, each name once: the first kind of data, as
/// data::Kind counts them, has what models of several kinds share.
std::vector<Setting> settings_of_models(data::Kind kind);

/// Whether it is one that a model brings.
DEMI_API bool is_of_models(std::string_view setting);

/// Why a setting that models bring, or share, does nothing for the config's: "it is about the model
/// gpt with
/// --block gpt2". "": it does something, or is about no model.
std::string why_not_of_model(const Config& config, std::string_view setting);

}  // namespace demi::settings
