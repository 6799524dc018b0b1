#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/train/network.h"
#include "lab/data/kind.h"
#include "lab/predict/inputs.h"
#include "lab/settings/resolved.h"
#include "lab/workload/model_file.h"
#include "lab/workload/workload.h"

namespace demi::predict {

/// Options of a prediction.
struct Options {
  std::string precision = "fp32";    // as `--precision`
  std::string device = "auto";       // as `--device`
  std::filesystem::path graph = {};  // of a network from Python; empty: as in training
  std::string fuse = {};             // likewise, as `--fuse`
  int64_t batch_size = 0;            // 0: that of the run's tests
  int64_t top_k = 0;                 // classes of a prediction, 1 to all; 0: the three likeliest
  int64_t workers = 0;               // threads that decode pictures ahead; 0: between the batches
};

/// A class and its probability, 0 to 1.
struct Likely {
  int64_t number = 0;      // of the class
  double probability = 0;  // 0 to 1
};

/// The result for one input: the likeliest classes, the first is the model's answer; or why there
/// is none.
struct Prediction {
  std::size_t input = 0;               // its place among the inputs, from 0
  std::vector<Likely> likeliest = {};  // the first is the answer; empty: there is an error
  std::string error = {};              // why there is no answer; empty: there is one
};

/// How many inputs there were.
struct Counts {
  /// Inputs in all, and those without an answer.
  int64_t inputs = 0, errors = 0;
  int64_t not_finite = 0;  // of the errors: the model's output is NaN or Inf
};

/// A saved model, ready to be asked.
struct Model {
  settings::Resolved run;                           // its settings, as the file has them
  std::shared_ptr<const workload::ModelData> data;  // its classes, and what it reads
  bool is_older = false;        // its file has no classes: they have numbers for names
  std::string note = {};        // for people: that its network is another one; mostly empty
  train::Network network = {};  // on the device, in evaluation mode
  /// The values of Options, resolved.
  int64_t batch_size = 1, top_k = 1, workers = 0;
};

/// Reads a model file, a checkpoint or what names one. Throws DataError for a damaged file and an
/// older one of texts, which has no words; UsageError for a model of rows and options out of range;
/// DeviceError.
DEMI_API Model load_model(const std::filesystem::path& file, const Options& options);

/// Calls `done` for each input, in their order, as soon as those before it are known. The network's
/// input is that of evaluation (recipes::evaluate_saved), bit for bit, and so is its arithmetic.
/// Notes on all inputs go to `say`. Throws UsageError if this build cannot decode a picture.
DEMI_API Counts predict(const Model& model, std::span<const Input> inputs,
                        const std::function<void(const Prediction&)>& done,
                        const std::function<void(const std::string&)>& say);

/// Whether a file is of texts and without their words.
DEMI_API bool lacks_words(const workload::ModelTexts& texts);

}  // namespace demi::predict
