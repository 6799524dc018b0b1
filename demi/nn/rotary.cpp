#include "demi/nn/rotary.h"

#include <ATen/ATen.h>

#include <cmath>

#include "demi/nn/require.h"

namespace demi::nn {

RotaryAngles rotary_angles(const at::Tensor& positions, std::int64_t size, double theta) {
  constexpr std::string_view kWhere = "nn.rotary_angles";
  require(kWhere, size >= 2 && size % 2 == 0, "the head size does not fit", size,
          "an even number, 2 or more");
  require(kWhere, positions.dim() == 1 || positions.dim() == 2, "the positions do not fit",
          positions.sizes(), "(T) or (N, T)");
  require(kWhere, positions.scalar_type() == at::kLong, "the positions do not fit",
          positions.scalar_type(), "int64");
  const at::Tensor pair = at::arange(0, size, 2, positions.options().dtype(at::kDouble));
  const at::Tensor frequency = at::exp(pair * (-std::log(theta) / double(size)));
  at::Tensor angle = positions.to(at::kDouble).unsqueeze(-1) * frequency;
  if (angle.dim() == 3) angle = angle.unsqueeze(1);
  return {.cos = angle.cos().to(at::kFloat), .sin = angle.sin().to(at::kFloat)};
}

at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  const std::int64_t half = x.size(-1) / 2;
  require("nn.rotate",
          angles.defined() && angles.cos.size(-1) == half && angles.cos.size(-2) == x.size(-2),
          "the angles do not fit x", x.sizes(), "their tokens, and twice their size");
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor first = wide.narrow(-1, 0, half), second = wide.narrow(-1, half, half);
  return at::cat(
             {first * angles.cos - second * angles.sin, second * angles.cos + first * angles.sin},
             -1)
      .to(x.scalar_type());
}

at::Tensor document_positions(const at::Tensor& cu_seqlens, std::int64_t rows,
                              std::int64_t tokens) {
  const at::Tensor starts = cu_seqlens.to(at::kLong);
  const std::int64_t last = starts.numel() > 0 ? starts[-1].item<std::int64_t>() : 0;
  require("nn.document_positions", last == rows * tokens, "the documents do not add up", last,
          std::to_string(rows * tokens) + " tokens");
  const at::Tensor token = at::arange(rows * tokens, starts.options());
  const at::Tensor document = at::searchsorted(starts, token, false, /*right=*/true) - 1;
  return (token - starts.index_select(0, document)).view({rows, tokens});
}

}  // namespace demi::nn
