#pragma once

#include <cmath>

namespace demi::optim {

/// Notices gradients that were clipped while they still carried the loss scale, as
/// torch::nn::utils::clip_grad_norm_ does before unscale_(): the norm of the scaled gradients is
/// the limit then, in one step after the other, which no training gives by chance.
class ClipWatch {
 public:
  /// Once a step; true in the third such step in a row.
  bool note(float scale, float scaled_norm) {
    constexpr float kLeastScale = 1024, kGreatestLimit = 100, kSame = 1e-4F;
    const bool is_like_a_limit = scale >= kLeastScale && scaled_norm <= kGreatestLimit;
    const bool same = is_like_a_limit && std::abs(scaled_norm - last_) <= kSame * scaled_norm;
    in_a_row_ = same ? in_a_row_ + 1 : 1;
    last_ = is_like_a_limit ? scaled_norm : 0;
    return in_a_row_ == 3;
  }

 private:
  float last_ = 0;
  int in_a_row_ = 0;
};

}  // namespace demi::optim
