#pragma once

#include <c10/core/Device.h>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/data/order.h"

namespace demi::data {

/// Rows of two tensors that the user has: input (N, ...) and target (N, ...), kept where they are;
/// batches too.
class DEMI_API TensorLoader : public Loader {
 public:
  /// The tensors are shared, not copied. Throws UsageError where they differ in N.
  TensorLoader(at::Tensor input, at::Tensor target, const OrderOptions& order = {});

  int64_t examples() const override { return order_.examples(); }
  int64_t batches() const override { return order_.batches(); }
  Batch batch(int64_t epoch, int64_t position) const override;

 private:
  at::Tensor input_, target_;
  bool in_order_;  // batches are views
  Order order_;
};

/// Rows from randn, made once on the CPU in fp32 from the seed: what the AMP recipe trains on.
/// input (N, in), target (N, out).
struct SyntheticRows {
  at::Tensor input, target;
};
DEMI_API SyntheticRows synthetic_rows(int64_t examples, int64_t in, int64_t out, uint64_t seed);

}  // namespace demi::data
