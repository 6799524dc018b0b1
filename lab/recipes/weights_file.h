#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "demi/core/export.h"
#include "demi/train/history.h"
#include "demi/train/precision.h"
#include "lab/recipes/config.h"

namespace demi::train {

/// Writes the weights file that one would ship: the parameters and buffers of `trained`, in
/// `precision.shipped()`, with normalisation layers and their running statistics in FP32 if that
/// is a 16-bit format. `spare` is a second module of the same architecture, which is overwritten:
/// it holds the shipped weights afterwards. The config goes into the file's metadata, so that the
/// file alone is enough for `demi eval`. Returns the file's bytes.
DEMI_API int64_t save_shipped_weights(const torch::nn::Module& trained, torch::nn::Module& spare,
                                      const Precision& precision, const std::filesystem::path& file,
                                      const Config& config = {});

/// Reads such a file back into `spare`. Throws DataError if names or shapes do not fit.
DEMI_API void load_shipped_weights(torch::nn::Module& spare, const Precision& precision,
                                   const std::filesystem::path& file);

/// Reads a weights file into a module of any floating point dtype, rounding where need be. Throws
/// DataError if names or shapes do not fit.
DEMI_API void load_weights(torch::nn::Module& module, const std::filesystem::path& file);

/// What a weights file says about the run that made it.
struct WeightsInfo {
  Config config;
  Precision precision;
  int64_t bytes = 0;
};

/// Throws DataError if the file is missing, damaged or without these metadata.
DEMI_API WeightsInfo weights_info(const std::filesystem::path& file);

/// Writes what is needed to go on training: FP32 parameters, buffers, the optimizer's state
/// ("optimizer/0.exp_avg" ...; of an optimizer that is not demi's its archive, "optimizer") and
/// where the run stands. Equal runs write equal files with demi's optimizers. Returns the file's
/// bytes.
DEMI_API int64_t save_training_state(const torch::nn::Module& module,
                                     const torch::optim::Optimizer& optimizer,
                                     const History& history, const std::filesystem::path& file);

}  // namespace demi::train
