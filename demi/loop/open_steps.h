#pragma once

#include <vector>

#include "demi/loop/job.h"

namespace demi::loop {

/// A Step's hold on its scaler and optimizers, which no other Step may have, and whether a step has
/// begun on them.
class Claim {
 public:
  /// Throws UsageError for a scaler or an optimizer that another claim holds.
  explicit Claim(const Job& job);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  bool is_open() const { return is_open_; }
  void set_open(bool open);

 private:
  friend void require_no_open_step(const Job& job, const char* where);

  const GradScaler* scaler_;  // null: none
  std::vector<torch::optim::Optimizer*> optimizers_;
  bool is_open_ = false;
};

/// Throws UsageError with `where` if a Step has begun a step on one of the job's optimizers or
/// models and has not finished it: gradients are no part of a checkpoint.
void require_no_open_step(const Job& job, const char* where);

}  // namespace demi::loop
