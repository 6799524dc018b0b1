#include "lab/profiler/flops.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <vector>

#include "demi/core/kernel_range.h"

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

// The number of a dimension; a single number is that of all dimensions.
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

bool drop_suffix(std::string_view& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  name.remove_suffix(suffix.size());
  return true;
}

bool is_attention(std::string_view forward) {
  constexpr std::array<std::string_view, 6> kAll{
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_scaled_dot_product_fused_attention_overrideable",
      "demi.attention"};
  return std::ranges::find(kAll, forward) != kAll.end();
}

// Queries (..., T, E), keys (..., S, E) and values (..., S, F), from that argument on: each query
// by each key, and each weight by a value.
double of_attention(const Event& event, std::size_t first) {
  const Shape &q = shape(event, first), &k = shape(event, first + 1), &v = shape(event, first + 2);
  if (q.size() < 3 || k.size() != q.size() || v.size() != q.size()) return 0;
  const Shape queries(q.begin(), q.end() - 1);
  return 2 * size_of(queries) * static_cast<double>(k[k.size() - 2]) *
         static_cast<double>(q.back() + v.back());
}

// Operations of so many rows by each of the weights.
double of_rows(double rows, const Shape& w_ih, const Shape& w_hh) {
  const auto weights = [](const Shape& w) { return w.size() == 2 ? size_of(w) : 0; };
  return 2 * rows * (weights(w_ih) + weights(w_hh));
}

// A layer in one direction, of arguments: input (T, N, I), weights (G H, I) and (G H, H).
double of_recurrent_layer(const Event& event) {
  const Shape& input = shape(event, 0);
  if (input.empty()) return 0;
  return of_rows(size_of({input.begin(), input.end() - 1}), shape(event, 1), shape(event, 2));
}

// All layers. Arguments from `first` on: mode (0 and 1: one gate; 2: LSTM; 3: GRU), hidden_size,
// proj_size, num_layers, batch_first, dropout, train, bidirectional.
double of_cudnn(const Event& event, std::size_t first) {
  const auto one = [&](std::size_t at) {
    const Shape& given = numbers(event, first + at);
    return given.empty() ? 0 : static_cast<double>(given[0]);
  };
  const Shape& input = shape(event, 0);
  if (input.empty() || one(1) == 0) return 0;
  constexpr std::array<double, 4> kGates{1, 1, 4, 3};
  const double gates = kGates[static_cast<std::size_t>(one(0)) % kGates.size()];
  const double hidden = one(1), projected = one(2), directions = one(7) == 0 ? 1 : 2;
  const double output = projected > 0 ? projected : hidden;
  double weights = 0, inputs = static_cast<double>(input.back());
  for (auto layer = static_cast<std::int64_t>(one(3)); layer-- > 0;) {
    weights += directions * hidden * (gates * (inputs + output) + projected);
    inputs = directions * output;
  }
  return 2 * size_of({input.begin(), input.end() - 1}) * weights;
}

// demi's own kernels. The layer's last argument is its number of rows.
double of_own_lstm(const Event& event, bool is_backward) {
  const Shape& rows = numbers(event, is_backward ? 1 : 3);
  if (rows.empty()) return 0;
  return of_rows(static_cast<double>(rows[0]), is_backward ? Shape() : shape(event, 1),
                 shape(event, is_backward ? 0 : 2));
}

// Operations of attention and recurrent layers; 0 for other events.
double of_fused(const Event& event) {
  std::string_view name = event.name;
  const bool is_backward = drop_suffix(name, "_backward");
  if (is_attention(name)) return is_backward ? 2 * of_attention(event, 1) : of_attention(event, 0);
  const double times = is_backward ? 2 : 1;
  if (name == "aten::mkldnn_rnn_layer") return times * of_recurrent_layer(event);
  if (name == "aten::_cudnn_rnn") return times * of_cudnn(event, is_backward ? 10 : 6);
  if (name == "demi.lstm") return of_own_lstm(event, is_backward);
  return 0;
}

}  // namespace

bool counts_for_its_calls(const Event& event) { return event.name.starts_with(kKernelRange); }

double flops_of(const Event& event) {
  if (event.kind != Event::Kind::op) return 0;
  std::string_view name = event.name;
  drop_suffix(name, "_");  // addmm_
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_scaled_mm" ||
      name == "demi.product")
    return of_product(shape(event, 0), shape(event, 1));
  if (name == "aten::addmm" || name == "aten::baddbmm" || name == "aten::addbmm" ||
      name == "aten::_addmm_activation")
    return of_product(shape(event, 1), shape(event, 2));
  if (name == "aten::mv" || name == "aten::dot" || name == "aten::vdot")
    return shape(event, 0).empty() ? 0 : 2 * size_of(shape(event, 0));
  if (name == "aten::addmv") return shape(event, 1).empty() ? 0 : 2 * size_of(shape(event, 1));
  if (name == "aten::linear") {  // the weight is (n, k)
    const Shape& weight = shape(event, 1);
    return weight.size() == 2 ? 2 * size_of(shape(event, 0)) * static_cast<double>(weight[0]) : 0;
  }
  if (name == "aten::convolution" || name == "aten::_convolution") return of_convolution(event);
  if (name == "aten::convolution_backward") return of_convolution_backward(event);
  return of_fused(event);
}

}  // namespace demi::profiler
