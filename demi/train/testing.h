#pragma once

#include <ATen/core/Tensor.h>

#include <stdexcept>

#include "demi/data/loader.h"

namespace demi::train::testing {

/// Batches of rows in their own order.
class Rows : public data::Loader {
 public:
  Rows(at::Tensor input, at::Tensor target, int64_t batch_size)
      : input_(std::move(input)), target_(std::move(target)), batch_size_(batch_size) {}
  int64_t examples() const override { return input_.size(0); }
  int64_t batches() const override { return (examples() + batch_size_ - 1) / batch_size_; }
  data::Batch batch(int64_t, int64_t position) const override {
    const int64_t start = position * batch_size_, end = std::min(start + batch_size_, examples());
    return {input_.slice(0, start, end), target_.slice(0, start, end), {}};
  }

 private:
  at::Tensor input_, target_;
  int64_t batch_size_;
};

/// Throws instead of returning its last batch.
class Broken : public Rows {
 public:
  explicit Broken(const Rows& rows) : Rows(rows) {}
  data::Batch batch(int64_t epoch, int64_t position) const override {
    if (position + 1 == batches()) throw std::runtime_error("broken");
    return Rows::batch(epoch, position);
  }
};

}  // namespace demi::train::testing
