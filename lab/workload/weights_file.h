#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/training_state.h"
#include "demi/core/export.h"
#include "demi/train/names.h"
#include "lab/settings/config.h"

namespace demi::workload {

/// Writes the weights file that one would ship: the parameters and buffers of `trained`, in
/// `precision.shipped()`, with normalisation layers and their running statistics in FP32 if that
/// is a 16-bit format. `spare` is a second module of the same architecture, which is overwritten:
/// it holds the shipped weights afterwards. The config goes into the file's metadata, in which data
/// have their base name alone, and `model_texts` (model_file.h), so that the file alone is enough.
/// Returns the file's bytes.
DEMI_API int64_t save_shipped_weights(const torch::nn::Module& trained, torch::nn::Module& spare,
                                      const Precision& precision, const std::filesystem::path& file,
                                      const settings::Config& config = {},
                                      checkpoint::Metadata model_texts = {});

/// Reads such a file back into `spare`, bit for bit, or changes nothing but its dtypes. Throws
/// DataError if names, shapes or dtypes do not fit.
DEMI_API void load_shipped_weights(torch::nn::Module& spare, const Precision& precision,
                                   const std::filesystem::path& file);

/// The run of a weights file or a checkpoint.
struct WeightsInfo {
  settings::Config config;
  Precision precision;
  std::optional<std::int64_t> steps = {};  // that it was trained; none in an older weights file
};

/// The info in a weights file, a checkpoint, or whatever names one (checkpoint::find): a run
/// folder names its last checkpoint. Reads no tensor. Throws DataError if it is missing, damaged or
/// without these texts.
DEMI_API WeightsInfo weights_info(const std::filesystem::path& path);
/// The info in metadata that were read; path and is_checkpoint are for messages.
WeightsInfo weights_info(const checkpoint::Metadata& text, const std::filesystem::path& path,
                         bool is_checkpoint);

/// Names of the optimizer's parameters, by number; empty for a checkpoint without names.
std::vector<std::string> parameter_names(const checkpoint::Checkpoint& saved);
/// Puts what 16-bit weights are trained as in their place, and takes it out of the state. Returns
/// whether there is any.
bool take_masters(checkpoint::Checkpoint& saved);

/// The weights that training would ship, before they are rounded for that: those of a weights file,
/// or of a checkpoint, where FP32 masters stand in for 16-bit weights, and the moving average for
/// the weights that have one. Throws DataError as checkpoint::load.
DEMI_API checkpoint::NamedTensors read_weights(const std::filesystem::path& path);

/// Puts such weights into a module of any floating point dtype, rounding where need be; all of them
/// or none. Throws DataError if names or shapes do not fit.
DEMI_API void load_weights(torch::nn::Module& module, checkpoint::NamedTensors weights);

}  // namespace demi::workload
