#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/train/history.h"

namespace demi::recipes {

/// Options of `demi eval`.
struct EvalOptions {
  std::string precisions = {};  // by comma; empty: fp32 and the one that the model was trained in
  std::string device = "auto";  // as `--device`
  std::filesystem::path data_dir = {};   // empty: $DEMI_DATA_DIR, else as in training
  std::filesystem::path test_file = {};  // of labelled texts; empty: as in training
  std::filesystem::path graph = {};      // of a network from Python; empty: as in training
  int64_t limit = 0;                     // test examples, evenly spaced; 0: all
  int64_t top_k = 0;                     // as Config::top_k; 0: as in training
};

/// A saved model in one precision on its test set.
struct EvalRow {
  std::string precision;                     // the run's label
  train::Evaluation evaluation;              // loss, accuracy, metrics
  std::optional<double> difference_to_fp32;  // of the accuracy; none without fp32 among the runs
};

/// The results of `demi eval`.
struct EvalResult {
  std::string trained_in;  // empty: not known, as for Hugging Face's folders
  /// Notes for people: on differences from the test in the run's table (more or other examples), on
  /// data that were found by their name alone, on words that are new, on an older file.
  std::vector<std::string> notes;
  std::optional<double> unknown_words;  // share of <unk> in texts that the file's words number
  std::vector<EvalRow> runs;            // one for each precision
  int64_t top_k = 0;                    // of the metric besides the accuracy; 0: none
};

/// Evaluates a weights file of a run, a checkpoint, or the last checkpoint of a run folder, on the
/// test set of that run; a folder of Hugging Face's on EvalOptions::test_file. Classes, words and
/// normalisation are those that the file has, and training data need not be there; of an older file
/// without them they are made of the data. A mixed precision evaluates the weights in its 16-bit
/// format with normalisation in FP32, in an autocast region, as they are shipped; a "true" one
/// everything in the one format. Throws DataError (file, data), UsageError (precision, device, a
/// run without test data), DeviceError.
DEMI_API EvalResult evaluate_saved(const std::filesystem::path& path, const EvalOptions& options);

}  // namespace demi::recipes
