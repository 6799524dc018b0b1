#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "demi/train/names.h"

namespace demi::settings {

/// A run of a comparison: a precision with variants after colons, such as `fp16:no-scaler`,
/// `fp16:scale=128`, `bf16:no-autocast`.
struct RunSpec {
  /// The text, with Lightning's names replaced by demi's: the name of row, curve and files.
  std::string label;
  /// The precision that the text names.
  Precision precision;
  LossScale loss_scale;          // no-scaler, scaler, statistics, scale=NUMBER; the last counts
  bool autocast = true;          // no-autocast: false
  bool skip = true;              // no-skip: false
  std::string fp32_part = {};    // fp32-part=NAME; several by comma, as Config::fp32_part
  std::string op_policy = {};    // op-policy=FILE
  std::string weight_mode = {};  // split, split24, stochastic: as --weight-mode; empty: not given
  std::string cuda_graph = {};   // cuda-graph=WORD: as --cuda-graph; empty: not given
};

/// A run in that precision, without a variant.
DEMI_API RunSpec run_in(const Precision& precision);

/// Reads a run. Throws UsageError with the nearest known name for an unknown precision or variant,
/// and for a variant of the autocast region in a precision that has none.
DEMI_API RunSpec parse_run(std::string_view text);

/// Runs by name, separated by commas. Throws UsageError, also for two runs whose files would have
/// one name.
DEMI_API std::vector<RunSpec> parse_runs(std::string_view text);

/// The text that parse_loss_scale reads.
DEMI_API std::string to_text(const LossScale& scale);

/// The run as options of `demi train`: "fp16:scale=128" gives "--precision fp16 --loss-scale 128".
DEMI_API std::string typed_options(std::string_view run);

/// A run's label as part of a file name: "fp16:scale=128" becomes "fp16-scale-128".
DEMI_API std::string file_name(std::string_view label);

}  // namespace demi::settings
