#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/settings/config.h"

namespace demi::doctor {

/// A dimension of a product that is no multiple of 8, in elements.
struct Dimension {
  std::string module;  // "classifier"
  std::string name;    // in_features, out_features, input_size, hidden_size or batch_size
  /// The dimension in elements, and the next multiple of 8.
  int64_t value = 0, next = 0;
  int64_t m = 0, k = 0, n = 0;                 // the layer's product, (m, k) by (k, n)
  int64_t next_m = 0, next_k = 0, next_n = 0;  // the same with `next`
  int64_t times = 1;   // that a forward pass makes the product: an LSTM's, for each step
  double speedup = 0;  // of that product with `next` in its place; 0: not measured

  /// Floating point operations of a training step: forward, and the gradients of both factors.
  DEMI_API double flops() const;
};

/// The batch to which a model's layers are applied.
struct Batch {
  int64_t examples = 1;  // the batch size
  int64_t tokens = 1;    // of an example of a language model, each of which is a row of a layer
  int64_t words = 1;     // of a text, which are the steps of an LSTM
};

/// The batch of that many examples. Its words are `max_length`, which longer texts are cut to;
/// without it they are not known, and count as one.
DEMI_API Batch batch_of(const settings::Config& config, int64_t batch_size);

/// The products of a model.
struct ModelCheck {
  /// Names of recipe and model; empty for a module of yours.
  std::string recipe, model;
  /// Examples of a batch; layers that were looked at, and convolutions, which are exempt.
  int64_t batch_size = 0, products = 0, convolutions = 0;
  std::vector<Dimension> dimensions;  // those that are no multiple of 8
};

/// Checks linear and LSTM layers of the module for such batches: a linear layer has a row for each
/// token of each example. Convolutions are counted and exempt: cuDNN pads their channels since 7.3.
DEMI_API ModelCheck check_dimensions(const torch::nn::Module& module, const Batch& batch);

/// The check_dimensions() of a recipe's network. Its data are not read: a text's vocabulary is left
/// out, and a folder of pictures has as many classes as the setting `classes`. The products of a
/// .pt2 file are those of operations `linear` and `lstm` that read a weight of the file. Throws
/// UsageError: no such recipe; DataError: as models::imported_file.
DEMI_API ModelCheck check_recipe(const std::string& recipe);

/// Measures what the next multiple of 8 gains each product, in that dtype. A product of more than
/// 1,024 rows is measured with 1,024, and with those beyond its last multiple of 8.
DEMI_API void measure(ModelCheck& check, const std::string& dtype, c10::Device device);

}  // namespace demi::doctor
