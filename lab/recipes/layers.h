#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::recipes {

/// The difference of a tensor in low precision from the same one in FP32. Computed in FP64 on the
/// CPU.
struct Difference {
  double error = 0;  // |low - exact| / |exact|, L2 norms; Inf if nonfinite is not 0
  /// Cosine of the angle between the two as vectors: 1 if they point the same way, 0 if one of them
  /// is all zeros and the other is not.
  double cosine = 1;
  double flushed = 0;     // share of exact's elements other than 0 that are 0 in low
  int64_t nonfinite = 0;  // elements that are Inf or NaN in low and not in exact
  double least = 0;       // of exact's magnitudes above 0; 0: there are none
  double greatest = 0;    // of exact's magnitudes
};

/// The difference of two tensors of one shape. Elements that are Inf or NaN in `exact` are left
/// out.
DEMI_API Difference difference(const at::Tensor& exact, const at::Tensor& low);

/// A layer's tensors in one forward and backward pass. FP32 copies; undefined if there is none.
struct LayerTrace {
  std::string
      name;        // of the module that has the weights: "layers.0"; its second use "layers.0 (2)"
  std::string op;  // the op that gave the output: "addmm"
  at::Tensor output;                         // of forward
  at::Tensor gradient;                       // of the loss with respect to the output, unscaled
  std::vector<at::Tensor> weight_gradients;  // unscaled; with the layer's first use
};

/// A forward and backward pass of a network in training mode, without dropout, in the precision of
/// the run, with the loss times `loss_scale`.
struct NetworkTrace {
  std::vector<LayerTrace> layers;  // in the order of forward
  double loss = 0;                 // of the batch, without the scale
  bool finite_gradients = true;    // of all weights
};
/// Runs the network on the batch and keeps what each layer gave.
DEMI_API NetworkTrace trace_layers(const settings::Resolved& run, const train::Network& network,
                                   const data::Batch& batch, double loss_scale);

/// A layer in FP32 and in low precision.
struct LayerDifference {
  /// The layer, and the op that gave its output.
  std::string name, op;
  /// Differences of the layer's output, of the loss's gradient with respect to it, and of the
  /// weights' gradients.
  Difference output, gradient, weight_gradient;
  /// The greatest error of the three.
  DEMI_API double harm() const;
};

/// The effect of a run's precision on the layers of a network on one batch.
struct LayerComparison {
  settings::RunSpec spec;  // the run in low precision
  /// The scale that the run's loss was multiplied by, its loss, and the loss in FP32.
  double loss_scale = 1, loss = 0, exact_loss = 0;
  std::vector<LayerDifference>
      layers;  // by harm, the worst first; of Inf or NaN the first to appear
};

/// Options of `demi compare --layers`.
struct LayerOptions {
  settings::Config config = {};               // the recipe's settings
  std::vector<settings::Resolved> runs = {};  // fp32 is the reference, and left out
  int64_t steps = 0;                          // that the network is trained in FP32 before
  c10::Device device = c10::kCPU;             // that both networks run on
};

/// Compares the layers of a network, with the same weights and the same batch, in FP32 and in each
/// of the runs. A dynamic loss scale is lowered from init_scale until the weights' gradients are
/// finite, as training would, down to 1. Throws as load_workload and apply_policy; UsageError if
/// all of the runs are fp32.
DEMI_API std::vector<LayerComparison> compare_layers(const LayerOptions& options,
                                                     const workload::Workload& workload);

}  // namespace demi::recipes
