#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/recompute/recompute.h"
#include "demi/train/network.h"
#include "lab/data/kind.h"
#include "lab/models/lstm_classifier.h"

namespace demi::models {

struct GPTOptions;

/// Sizes by which a model fits its data. What a model does not have is ignored; what is not given
/// is the model's default.
struct ModelOptions {
  std::optional<int64_t> channels = {}, size = {}, classes = {};        // of pictures
  std::optional<int64_t> in = {}, out = {}, layers = {};                // of the MLP
  std::optional<int64_t> vocabulary = {}, embedding = {}, hidden = {};  // of texts
  Pool pool = Pool::last;                                               // of texts
  bool bidirectional = false;                                           // of texts
  // Of a GPT, whose layers, vocabulary and embedding (its width) are those above.
  /// Tokens of a row at most; heads of queries.
  std::optional<int64_t> context = {}, heads = {};
  int64_t key_heads = 0, feed_forward = 0;  // 0: as many as heads; the block's usual width
  std::string_view block = "gpt2";          // gpt2, llama or nanochat: GPTForm
  bool bias = true;                         // of linear layers and norms
  /// Of a GPT: GPTOptions has their meaning.
  double dropout = 0, norm_eps = 1e-5, rope_theta = 10000;
  std::optional<bool> tied_head = {};  // empty: as GPTOptions
  std::optional<Keep> recompute = {};  // of a GPT and a ResNet
  std::string_view output = "";        // of a network from Python, as ImportedModel::select_output
};

/// Pictures of (channels, size, size), in so many classes.
struct PictureShape {
  /// Of the pictures; of the answer.
  int64_t channels = 3, size = 32, classes = 10;
};

/// What torchvision calls a model's tensors.
struct TorchvisionNames {
  /// By the model's own name; "": torchvision's model has no such tensor.
  std::string (*name_of)(std::string_view own);
  /// The module of torchvision's model that has no counterpart; "": none.
  std::string left_out = {};
};

/// A model that a config can name.
struct ModelInfo {
  std::string name;   // as `--model` names it
  std::string title;  // one line for people
  data::Kind reads;   // the kind of data that it reads
  /// Makes a network of these sizes, with new weights.
  std::function<train::Network(const ModelOptions&)> make;
  std::optional<PictureShape> pictures = PictureShape();  // that it is made for; none: of any size
  bool one_logit_for_two_classes = false;                 // for binary cross entropy
  /// The module whose size is that of the outputs: other classes have another one. Of a Sequential
  /// the last part (head_of).
  std::string head = "classifier";
  /// Names of torchvision's model of this kind; none: it has none.
  std::optional<TorchvisionNames> torchvision = {};
  /// A network from Python: its initial weights and their strides are the file's, integers that it
  /// reads are texts or tokens, and its loss is the run's.
  bool is_file = false;
  /// Multiplications and additions of training on one token of a whole row; null: not known.
  double (*training_flop)(const ModelOptions&) = nullptr;
};

/// All of them, in the order in which help shows them.
DEMI_API std::span<const ModelInfo> models();

/// The model of that name, or the network of that file (imported_file). Throws UsageError with the
/// nearest right name, and as imported_file.
DEMI_API const ModelInfo& find_model(std::string_view name);

/// Whether the model can read such data.
DEMI_API bool reads(const ModelInfo& model, data::Kind kind);

/// The model of that name with the initial weights that belong to `seed`. Throws UsageError: no
/// such name, sizes out of range.
DEMI_API train::Network make_model(std::string_view name, const ModelOptions& options,
                                   uint64_t seed);

/// Those of the GPT that make_model makes.
DEMI_API GPTOptions gpt_options(const ModelOptions& options);

/// The name of the module of that model which gives its outputs: "classifier", "layers.4".
DEMI_API std::string head_of(const ModelInfo& info, const torch::nn::Module& model);

/// Parameters that are trained, counted by element, each once however often it is registered.
DEMI_API int64_t parameter_count(const torch::nn::Module& module);

/// "auto" (as GPTOptions), "on" or "off". Throws UsageError.
DEMI_API std::optional<bool> parse_tied_head(std::string_view name);

/// "none" (nothing is recomputed), "blocks" or "products". Throws UsageError.
DEMI_API std::optional<Keep> parse_recompute(std::string_view name);

/// "last", "mean" or "max". Throws UsageError.
DEMI_API Pool parse_pool(std::string_view name);

}  // namespace demi::models
