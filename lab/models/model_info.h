#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/imported/fusing.h"
#include "demi/recompute/recompute.h"
#include "demi/train/network.h"
#include "lab/data/kind.h"
#include "lab/values/setting.h"

namespace demi::models {

/// What a network is made of: the sizes by which it fits its data, and the model's own settings.
/// What a model does not have is ignored; what is not given is the model's default.
struct ModelOptions {
  std::optional<int64_t> channels = {}, size = {}, classes = {};  // of pictures; of the answer
  std::optional<int64_t> in = {}, out = {};                       // features of rows
  std::optional<int64_t> vocabulary = {}, context = {};  // tokens known; tokens of a row at most
  /// Values by the names of ModelInfo::settings: {{"depth", "2"}}.
  values::Texts settings = {};
  std::optional<Keep> recompute = {};  // of a model that recomputes
  std::string_view output = "";        // of a network from Python, as ImportedModel::select_output
  /// Likewise, as ImportedModel::fuse.
  imported::Fusing fusing = imported::Fusing::low_precision;
  bool channels_last = false;  // likewise, as ImportedModel::to(MemoryFormat)
};

/// Pictures of (channels, size, size), in so many classes.
struct PictureShape {
  /// Channels and size of the pictures; classes of the answer.
  int64_t channels = 3, size = 32, classes = 10;
};

/// What torchvision calls a model's tensors.
struct TorchvisionNames {
  /// torchvision's name for the model's `own`; "": torchvision's model has no such tensor.
  std::string (*name_of)(std::string_view own);
  /// The module of torchvision's model that has no counterpart; "": none.
  std::string left_out = {};
};

/// What of a model a setting decides: which tensors it has, what it computes with the same tensors,
/// or its training alone.
enum class Decides { tensors, result, training };

/// A setting of a model's own.
struct ModelSetting {
  values::Setting<values::Texts> setting;  // over the values of ModelOptions::settings
  Decides decides = Decides::tensors;      // what of the network
  std::string key = {};                    // of the value in a model file
  /// Whether the setting does something in a network of those settings.
  std::function<bool(const values::Texts&)> counts = {};
  /// When it does: "with --block gpt2"; "": always.
  std::string counts_if = {};
};

/// A model that a config can name.
struct ModelInfo {
  std::string name;   // as `--model` names it
  std::string title;  // one line for people
  data::Kind reads;   // the kind of data that it reads
  /// Makes a network of these options, with new weights. Throws UsageError.
  std::function<train::Network(const ModelOptions&)> make;
  /// Its own, in the order of --help. Models may share a name, with one default.
  std::vector<ModelSetting> settings = {};
  std::optional<PictureShape> pictures = PictureShape();  // that it is made for; none: of any size
  bool one_logit_for_two_classes = false;                 // for binary cross entropy
  /// The module whose size is that of the outputs: other classes have another one. Of a Sequential
  /// the last part (head_of).
  std::string head = "classifier";
  /// Names of torchvision's model of this kind; none: it has none.
  std::optional<TorchvisionNames> torchvision = {};
  bool recomputes = false;            // ModelOptions::recompute counts
  bool has_second_derivative = true;  // which a gradient penalty needs
  /// A network from Python: its initial weights and their strides are the file's, integers that it
  /// reads are texts or tokens, and its loss is the run's.
  bool is_file = false;
  /// Multiplications and additions of training on one token of a whole row; null: not known.
  double (*training_flop)(const ModelOptions&) = nullptr;
};

}  // namespace demi::models
