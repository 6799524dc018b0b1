#pragma once

#include <cmath>

namespace demi::optim {

/// Notices gradients that were clipped while they still carried the loss scale, as
/// torch::nn::utils::clip_grad_norm_ does before unscale_(): the norm of the scaled gradients is
/// the limit then, the same round number in one step after the other.
class ClipWatch {
 public:
  /// Call it once a step. Returns true in the third such step in a row.
  bool note(double scale, double scaled_norm) {
    constexpr double kLeastScale = 1024, kGreatestLimit = 100;
    const bool is_like_a_limit =
        scale >= kLeastScale && scaled_norm <= kGreatestLimit && is_round(scaled_norm);
    const bool same = is_like_a_limit && std::abs(scaled_norm - last_) <= kSlack * scaled_norm;
    in_a_row_ = same ? in_a_row_ + 1 : 1;
    last_ = is_like_a_limit ? scaled_norm : 0;
    return in_a_row_ == 3;
  }

 private:
  static constexpr double kSlack = 1e-5;  // of FP32 sums

  /// Whether the number has two digits: 0.25, 1, 40.
  static bool is_round(double number) {
    const double digits = number / std::pow(10, std::floor(std::log10(number)) - 1);
    return std::abs(digits - std::round(digits)) <= kSlack * digits;
  }

  double last_ = 0;
  int in_a_row_ = 0;
};

}  // namespace demi::optim
