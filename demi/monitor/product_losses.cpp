#include "demi/monitor/product_losses.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "demi/monitor/unobserved.h"

namespace demi::monitor {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

double sum_of_squares(const at::Tensor& values) {
  return values.to(c10::kDouble).square_().sum().item<double>();
}

void add(OperandLoss& to, const OperandLoss& more) {
  to.elements += more.elements;
  to.saturated += more.saturated;
  to.underflowed += more.underflowed;
  to.lost += more.lost;
  to.of_saturated += more.of_saturated;
  to.of_underflowed += more.of_underflowed;
}

// Squares by the place that the product sums over; a convolution sums over several.
at::Tensor by_place(const at::Tensor& values, bool is_left) {
  const at::Tensor squares = values.to(c10::kDouble).square_();
  return squares.dim() == 2 ? squares.sum(is_left ? 0 : 1) : squares.sum().view({1});
}

// A number that is not 0 afterwards loses at most a third of its magnitude by rounding to nearest,
// at the least of the format's numbers, and less than half by chance. An operand behind a transform
// has no numbers of its own to compare.
void add_operand(ProductSums& to, const quantization::SeenOperand& seen, bool is_left) {
  if (!seen.how->is_quantized || seen.how->hadamard) return;
  const at::Tensor given = seen.given.to(c10::kFloat);
  at::Tensor read = seen.values;
  if (seen.factor.defined())
    read = read * (is_left && seen.factor.numel() > 1 ? seen.factor.unsqueeze(1) : seen.factor);
  const at::Tensor lost = given - read, magnitude = given.abs();
  const at::Tensor is_zero = read.eq(0).logical_and_(magnitude.gt(0));
  const at::Tensor is_cut =
      magnitude.gt(read.abs().mul_(seen.how->by_chance ? 2.0 : 1.5)).logical_and_(read.ne(0));
  to.operands.elements += given.numel();
  to.operands.saturated += is_cut.sum().item<std::int64_t>();
  to.operands.underflowed += is_zero.sum().item<std::int64_t>();
  const at::Tensor energy = by_place(given, is_left).clamp_min_(std::numeric_limits<double>::min());
  const auto share = [&](const at::Tensor& part) {
    return by_place(part, is_left).div_(energy).mean().item<double>();
  };
  to.operands.lost += share(lost);
  to.operands.of_saturated += share(lost * is_cut);
  to.operands.of_underflowed += share(lost * is_zero);
  ++to.operands_seen;
}

}  // namespace

ProductSums& ProductSums::operator+=(const ProductSums& other) {
  error += other.error;
  exact += other.exact;
  result += other.result;
  dot += other.dot;
  add(operands, other.operands);
  operands_seen += other.operands_seen;
  return *this;
}

double ProductSums::relative_error() const {
  if (!std::isfinite(error)) return kUnbounded;
  if (exact > 0) return std::sqrt(error / exact);
  return error > 0 ? kUnbounded : 0;
}

double ProductSums::cosine() const {
  const double norms = std::sqrt(exact * result);
  if (!std::isfinite(norms) || !std::isfinite(dot)) return 0;
  if (norms > 0) return std::clamp(dot / norms, -1.0, 1.0);
  return exact == result ? 1 : 0;
}

void ProductLosses::on_product(const quantization::QuantizedWeight& weight,
                               quantization::Product product, const quantization::SeenOperand& left,
                               const quantization::SeenOperand& right, const at::Tensor& result,
                               const std::function<at::Tensor()>& exact) {
  const Unobserved unobserved;
  const at::Tensor wanted = exact();
  ProductSums sums{.error = sum_of_squares(result - wanted),
                   .exact = sum_of_squares(wanted),
                   .result = sum_of_squares(result),
                   .dot = (result.to(c10::kDouble) * wanted).sum().item<double>()};
  add_operand(sums, left, /*is_left=*/true);
  add_operand(sums, right, /*is_left=*/false);
  const std::lock_guard lock(mutex_);
  sums_[weight.number][static_cast<std::size_t>(product)] += sums;
}

std::map<std::uint32_t, SumsOfWeight> ProductLosses::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(sums_, {});
}

}  // namespace demi::monitor
