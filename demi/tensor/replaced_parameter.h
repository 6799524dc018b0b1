#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/core/export.h"

// Parameters that are replaced by others of another number of rows (optim::replace_parameter), and
// the objects that know parameters by their tensors.
namespace demi::tensor {

/// A parameter and the one in its place from now on.
struct Replacement {
  at::Tensor old, by;  // of one dtype and device; shapes differ in the first dimension alone
  /// int64, (by.size(0)), on their device: the row of `old` that each row of `by` was; -1: none.
  at::Tensor rows;
};

/// The rows of `of_old`, which has as many as Replacement::old, in the order of the new parameter.
/// Rows that were none are those of `fill`, of any shape that broadcasts. Any dtype, any shape
/// behind the first dimension; the result is on the device of `of_old`. Nothing waits.
DEMI_API at::Tensor gathered(const Replacement& replacement, const at::Tensor& of_old,
                             const at::Tensor& fill);

/// The base of objects that know parameters by their tensors: an average of one's own, for example.
/// They hear of a replacement in the thread that makes it.
class DEMI_API ReplacementObserver {
 public:
  virtual ~ReplacementObserver();

  /// Throws UsageError if the object cannot follow now. Nothing has been changed then.
  virtual void require_replaceable(const Replacement&) const {}
  /// Takes Replacement::by in the place of Replacement::old. All have agreed. Must not throw.
  virtual void replace(const Replacement& replacement) = 0;

 protected:
  ReplacementObserver() = default;
  /// Hears of the same parameters.
  ReplacementObserver(const ReplacementObserver& other);
  ReplacementObserver& operator=(const ReplacementObserver& other);

  /// Hears of this parameter's replacement from now on, and of that of each one in its place.
  void observe(const at::Tensor& parameter);

 private:
  friend void tell_of(const Replacement& replacement);
  void listen_to(const c10::TensorImpl* parameter);
  void forget();

  std::vector<const c10::TensorImpl*> observed_;
};

}  // namespace demi::tensor
