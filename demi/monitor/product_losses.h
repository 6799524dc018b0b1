#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "demi/core/export.h"
#include "demi/monitor/recipe_what_if.h"
#include "demi/quantization/layers.h"

namespace demi::monitor {

/// Sums over the calls of one product of one weight.
struct DEMI_API ProductSums {
  double error = 0, exact = 0, result = 0, dot = 0;  // squares of norms, and the dot product
  OperandLoss operands;
  std::int64_t operands_seen = 0;  // whose parts of `operands` are added up

  ProductSums& operator+=(const ProductSums& other);
  /// |result - exact| / |exact|; Inf for Inf or NaN, and for what should be 0 and is not.
  double relative_error() const;
  double cosine() const;
};

/// The products of a weight: output, input gradient, weight gradient.
using SumsOfWeight = std::array<ProductSums, 3>;

/// Compares each product of layers with a recipe with the exact one, and its operands with what was
/// read of them. Waits for the device.
class DEMI_API ProductLosses : public quantization::ProductObserver {
 public:
  void on_product(const quantization::QuantizedWeight& weight, quantization::Product product,
                  const quantization::SeenOperand& left, const quantization::SeenOperand& right,
                  const at::Tensor& result, const std::function<at::Tensor()>& exact) override;

  /// The sums since the last call, by QuantizedWeight::number.
  std::map<std::uint32_t, SumsOfWeight> take();

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, SumsOfWeight> sums_;
};

}  // namespace demi::monitor
