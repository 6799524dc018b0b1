#include "lab/profiler/flops.h"

#include <cstddef>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

namespace demi::profiler {
namespace {

using Shape = std::vector<std::int64_t>;

const Shape& shape(const Event& event, std::size_t at) {
  static const Shape none;
  return at < event.shapes.size() ? event.shapes[at] : none;
}

const Shape& numbers(const Event& event, std::size_t at) {
  static const Shape none;
  return at < event.numbers.size() ? event.numbers[at] : none;
}

double size_of(const Shape& all) {
  return std::accumulate(all.begin(), all.end(), 1.0, [](double product, std::int64_t n) {
    return product * static_cast<double>(n);
  });
}

// (..., m, k) by (..., k, n).
double of_product(const Shape& a, const Shape& b) {
  if (a.size() < 2 || b.size() < 2) return 0;
  return 2 * size_of(a) * static_cast<double>(b.back());
}

// One number stands for all dimensions.
std::int64_t number(const Shape& of_dimensions, std::size_t at, std::int64_t by_default) {
  if (of_dimensions.empty()) return by_default;
  return of_dimensions.size() == 1 ? of_dimensions[0] : of_dimensions[at];
}

// Each element of the output, or of the input if it is transposed, meets all weights of its group.
double of_weights(const Shape& elements, const Shape& weight) {
  if (elements.size() < 3 || weight.size() != elements.size()) return 0;
  return 2 * size_of(elements) * size_of(weight) / static_cast<double>(weight[0]);
}

// Arguments: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
double of_convolution(const Event& event) {
  const Shape& input = shape(event, 0);
  const Shape& weight = shape(event, 1);
  if (input.size() < 3 || weight.size() != input.size()) return 0;
  const Shape& transposed = numbers(event, 6);
  if (!transposed.empty() && transposed[0] != 0) return of_weights(input, weight);
  Shape output{input[0], weight[0]};
  for (std::size_t i = 0; i + 2 < input.size(); ++i) {
    const std::int64_t stride = number(numbers(event, 3), i, 1);
    const std::int64_t padding = number(numbers(event, 4), i, 0);
    const std::int64_t dilation = number(numbers(event, 5), i, 1);
    if (stride < 1) return 0;
    output.push_back((input[i + 2] + 2 * padding - dilation * (weight[i + 2] - 1) - 1) / stride +
                     1);
  }
  return of_weights(output, weight);
}

// Arguments: grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
// output_padding, groups, output_mask.
double of_convolution_backward(const Event& event) {
  const Shape& transposed = numbers(event, 7);
  const bool is_transposed = !transposed.empty() && transposed[0] != 0;
  const double one = of_weights(shape(event, is_transposed ? 1 : 0), shape(event, 2));
  const Shape& mask = numbers(event, 10);
  if (mask.size() < 2) return 2 * one;
  return one * static_cast<double>((mask[0] != 0) + (mask[1] != 0));
}

}  // namespace

double flops_of(const Event& event) {
  if (event.kind != Event::Kind::op) return 0;
  const std::string_view name = event.name;
  if (name == "aten::mm" || name == "aten::bmm")
    return of_product(shape(event, 0), shape(event, 1));
  if (name == "aten::addmm" || name == "aten::baddbmm")
    return of_product(shape(event, 1), shape(event, 2));
  if (name == "aten::linear") {  // the weight is (n, k)
    const Shape& weight = shape(event, 1);
    return weight.size() == 2 ? 2 * size_of(shape(event, 0)) * static_cast<double>(weight[0]) : 0;
  }
  if (name == "aten::convolution" || name == "aten::_convolution") return of_convolution(event);
  if (name == "aten::convolution_backward") return of_convolution_backward(event);
  return 0;
}

}  // namespace demi::profiler
