#include "demi/nn/rotary.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "demi/attention/document_starts.h"
#include "demi/nn/require.h"

namespace demi::nn {
namespace {

/// Broadcast to x's halves they leave its shape as it is.
bool fits(const at::Tensor& angles, const at::Tensor& x) {
  std::vector<std::int64_t> half = x.sizes().vec();
  half.back() /= 2;
  return angles.defined() && angles.is_floating_point() && angles.dim() >= 2 &&
         angles.size(-1) == half.back() && angles.size(-2) == x.size(-2) &&
         at::is_expandable_to(angles.sizes(), half) && angles.device() == x.device();
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes() << " on " << tensor.device();
  return text.str();
}

}  // namespace

RotaryAngles rotary_angles(const at::Tensor& positions, std::int64_t size, double theta) {
  constexpr std::string_view kWhere = "nn.rotary_angles";
  require(kWhere, size >= 2 && size % 2 == 0, "the head size does not fit", size,
          "an even number, 2 or more");
  require(kWhere, std::isfinite(theta) && theta > 0, "theta is out of range", theta,
          "a number above 0");
  require(kWhere, positions.defined() && (positions.dim() == 1 || positions.dim() == 2),
          "the positions do not fit", positions.sizes(), "(T) or (N, T)");
  require(kWhere, positions.scalar_type() == at::kLong, "the positions do not fit",
          positions.scalar_type(), "int64");
  const at::Tensor pair = at::arange(0, size, 2, positions.options().dtype(at::kDouble));
  const at::Tensor frequency = at::exp(pair * (-std::log(theta) / double(size)));
  at::Tensor angle = positions.to(at::kDouble).unsqueeze(-1) * frequency;
  if (angle.dim() == 3) angle = angle.unsqueeze(1);
  return {.cos = angle.cos().to(at::kFloat), .sin = angle.sin().to(at::kFloat)};
}

at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  constexpr std::string_view kWhere = "nn.rotate";
  require_floating(kWhere, "x", x);
  require(kWhere, x.dim() >= 2 && x.size(-1) % 2 == 0, "x does not fit", x.sizes(),
          "(N, H, T, size), of an even size");
  if (!fits(angles.cos, x) || !fits(angles.sin, x))
    refuse({.where = kWhere,
            .what = "the angles do not fit x",
            .seen = text_of(angles.cos) + ", " + text_of(angles.sin),
            .accepted = "for rows, tokens and half the size of " + text_of(x)});
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor first = wide.narrow(-1, 0, half), second = wide.narrow(-1, half, half);
  return at::cat(
             {first * angles.cos - second * angles.sin, second * angles.cos + first * angles.sin},
             -1)
      .to(x.scalar_type());
}

at::Tensor document_positions(const at::Tensor& cu_seqlens, std::int64_t rows,
                              std::int64_t tokens) {
  constexpr std::string_view kWhere = "nn.document_positions";
  require(kWhere, rows >= 0, "rows is negative", rows, "0 or more");
  require(kWhere, tokens >= 0, "tokens is negative", tokens, "0 or more");
  sdpa::document_starts(kWhere, cu_seqlens, rows, tokens);
  const at::Tensor starts = cu_seqlens.to(at::kLong);
  const at::Tensor token = at::arange(rows * tokens, starts.options());
  const at::Tensor document = at::searchsorted(starts, token, false, /*right=*/true) - 1;
  return (token - starts.index_select(0, document)).view({rows, tokens});
}

}  // namespace demi::nn
