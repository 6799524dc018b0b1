#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "demi/core/export.h"
#include "demi/data/epoch_on_device.h"
#include "demi/data/loader.h"
#include "demi/data/order.h"

namespace demi::data {

/// Batches of rows of two tensors, input (N, ...) and target (N, ...), on the tensors' device.
class DEMI_API TensorLoader : public Loader {
 public:
  /// The tensors are shared, not copied. Throws UsageError if they differ in N.
  TensorLoader(at::Tensor input, at::Tensor target, const OrderOptions& order = {});

  int64_t examples() const override { return order_.examples(); }
  int64_t all_examples() const override { return order_.all_examples(); }
  int64_t left_out() const override { return order_.left_out(); }
  int64_t batches() const override { return order_.batches(); }
  Batch batch(int64_t epoch, int64_t position) const override;
  /// (N): the rows. Undefined if the tensors lie on the CPU or on two devices.
  at::Tensor choice(int64_t epoch, int64_t position) const override;
  Batch chosen(const at::Tensor& choice) const override;

 private:
  at::Tensor input_, target_;
  bool in_order_;  // not shuffled: batches are views
  Order order_;
  std::optional<EpochOnDevice> chosen_;  // the order; none if there are no choices
};

/// Random rows, the data of the AMP recipe: input (N, in) and target (N, out), fp32 on the CPU.
struct SyntheticRows {
  at::Tensor input, target;  // (N, in) and (N, out), fp32 on the CPU
};
/// Normally distributed rows, a function of the seed.
DEMI_API SyntheticRows synthetic_rows(int64_t examples, int64_t in, int64_t out, uint64_t seed);

}  // namespace demi::data
