#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <ostream>

#include "demi/add_norm/add_norm.h"
#include "demi/autocast/normalisation.h"
#include "demi/core/export.h"
#include "demi/nn/cloneable.h"

namespace demi::nn {

/// The kinds of normalisation.
enum class NormKind { layer_norm, rms_norm };

/// Sizes and parameters of a normalisation.
struct NormOptions {
  std::int64_t width = 0;                ///< Size of the last dimension, 1 or more.
  NormKind kind = NormKind::layer_norm;  // which normalisation
  bool weight = true;                    ///< A factor for each feature.
  bool bias = true;                      ///< LayerNorm alone, with weight.
  double eps = 1e-5;  // added to the variance, or to the mean of the squares; 0 or more
};

/// LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) over the last dimension, with
/// parameters `weight` and `bias` where asked for. (*, width) to (*, width), in the input's dtype.
class DEMI_API NormImpl : public Cloneable<NormImpl>, public Normalisation {
 public:
  /// Throws UsageError for a width below 1 or an eps below 0.
  explicit NormImpl(const NormOptions& options);

  /// Registers new parameters, as the constructor does.
  void reset() override;
  /// Its kind and sizes.
  void pretty_print(std::ostream& stream) const override;

  /// (*, width) to (*, width), in the input's dtype. Throws UsageError for other inputs.
  at::Tensor forward(const at::Tensor& input);

  /// The end of a residual branch and the norm behind it in one pass over memory (add_layer_norm,
  /// add_rms_norm): input + add, and its rows normalised, in `dtype`, by default the sum's. `add`,
  /// (*, width), may be undefined. Throws UsageError for other inputs.
  SumAndNorm forward_add(const at::Tensor& input, const at::Tensor& add,
                         std::optional<at::ScalarType> dtype = std::nullopt);

  at::Tensor weight, bias;  // undefined: none

 private:
  NormOptions options_;
};
TORCH_MODULE(Norm);

}  // namespace demi::nn
