#include "demi/quantization/layers.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <utility>

#include "demi/core/error.h"
#include "demi/products/no_autocast.h"
#include "demi/products/product_in_fp32.h"
#include "demi/quantization/native_products.h"
#include "demi/quantization/operand.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/derived.h"

namespace demi::quantization {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using How = std::shared_ptr<const QuantizedWeight>;

constexpr const char* kLinear = "quantization.linear";
constexpr const char* kConvolution = "quantization.convolution";

/// The roundings by chance of one backward pass.
class Chance {
 public:
  explicit Chance(const QuantizedWeight& how) : how_(how) {
    const std::uint32_t passes = how.backward_passes.fetch_add(1, std::memory_order_relaxed);
    const bool is_told = how.run->step.load(std::memory_order_relaxed) >= 0;
    step_ = is_told ? how.run->batch.load(std::memory_order_relaxed) : passes;
  }
  RandomRounding of(Product product) const {
    return {.seed = how_.run->seed,
            .tensor = how_.number,
            .product = static_cast<std::uint32_t>(product),
            .step = step_};
  }

 private:
  const QuantizedWeight& how_;
  std::uint32_t step_;
};

/// An operand of a product.
struct Read {
  at::Tensor given;
  std::optional<Quantized> quantized;  // absent: it is read as it is
  const Operand* how;
  bool in_bf16;                // as factored() has it
  bool is_transposed = false;  // the product reads the transposed matrix
};

Read transposed(Read read) {
  read.given = read.given.t();
  read.is_transposed = !read.is_transposed;
  return read;
}

/// The numbers by which the product computes. What is no bf16 and not quantized is multiplied in
/// FP32, which rounds nothing.
Factored numbers_of(const Read& read) {
  if (!read.quantized) {
    const bool stays = read.in_bf16 && read.given.scalar_type() == at::kBFloat16;
    return {read.given.to(stays ? at::kBFloat16 : at::kFloat), {}};
  }
  Factored numbers = factored(*read.quantized, read.in_bf16);
  if (read.is_transposed) numbers.values = numbers.values.t();
  return numbers;
}

/// The operand of a weight, from the codes that are kept of it. `down`: as options_of().
Read of_weight(const at::Tensor& weight, const Operand& operand, bool down, at::ScalarType dtype) {
  Read read{weight, std::nullopt, &operand, tensor::is_16_bit(dtype)};
  if (!operand.is_quantized) return read;
  const bool has_direction =
      !kernels::is_of_tensor(operand.scaling) && !kernels::is_square(operand.scaling);
  const auto key = (static_cast<std::uint64_t>(operand.format) << 16) |
                   (static_cast<std::uint64_t>(operand.scaling) << 8) |
                   static_cast<std::uint64_t>(down && has_direction);
  const auto kept = weights::derived(weight, key, [&] {
    const Quantized q = quantize_operand(weight, operand, down, std::nullopt);
    return std::vector<at::Tensor>{q.codes, q.scales, q.tensor_scale};
  });
  read.quantized = Quantized{.codes = kept[0],
                             .scales = kept[1],
                             .tensor_scale = kept[2],
                             .sizes = weight.sizes().vec(),
                             .format = operand.format,
                             .scaling = operand.scaling,
                             .down = down};
  return read;
}

Read of_matrix(const at::Tensor& matrix, const Operand& operand, bool down, at::ScalarType dtype,
               const std::optional<RandomRounding>& by_chance = std::nullopt) {
  Read read{matrix, std::nullopt, &operand, tensor::is_16_bit(dtype)};
  if (operand.is_quantized) read.quantized = quantize_operand(matrix, operand, down, by_chance);
  return read;
}

/// Tells the observer, if there is one.
template <class Exact>
void tell(const QuantizedWeight& how, Product product, const Read& left, const Read& right,
          const at::Tensor& result, const Exact& exact) {
  ProductObserver* observer = how.run->observer.load(std::memory_order_acquire);
  if (!observer) return;
  const auto seen = [](Read read) {
    read.in_bf16 = false;
    const Factored numbers = numbers_of(read);
    return SeenOperand{read.given.detach(), numbers.values, numbers.factor, read.how};
  };
  observer->on_product(how, product, seen(left), seen(right), result, exact);
}

/// a (m, k) b (k, n) with a's factor along m and b's along n.
at::Tensor product_of(const Factored& a, const Factored& b) {
  const bool are_alike = a.values.scalar_type() == b.values.scalar_type();
  at::Tensor sums = are_alike ? products::product_in_fp32(a.values, b.values)
                              : at::mm(a.values.to(at::kFloat), b.values.to(at::kFloat));
  const bool a_is_one = a.factor.defined() && a.factor.numel() == 1,
             b_is_one = b.factor.defined() && b.factor.numel() == 1;
  if (a_is_one && b_is_one) return sums.mul_(a.factor * b.factor);
  if (a.factor.defined()) sums.mul_(a_is_one ? a.factor : a.factor.unsqueeze(1));
  if (b.factor.defined()) sums.mul_(b.factor);
  return sums;
}

/// left right, of codes with FP32 scales of blocks: the sums of each slice of 128 are scaled on
/// their own, and added up in FP32, as DeepSeek-V3 does (arXiv 2412.19437, section 3.3.2).
at::Tensor product_of_slices(const Read& left, const Read& right) {
  Factored a = sliced(*left.quantized), b = sliced(*right.quantized);
  if (left.is_transposed) a.values = a.values.t();
  if (right.is_transposed) b.values = b.values.t();
  const std::int64_t k = a.values.size(1), block = kernels::block_of(left.quantized->scaling);
  at::Tensor sums = at::zeros({a.values.size(0), b.values.size(1)}, a.factor.options());
  for (std::int64_t slice = 0; slice * block < k; ++slice) {
    const std::int64_t first = slice * block, depth = std::min(block, k - first);
    at::Tensor part = products::product_in_fp32(a.values.narrow(1, first, depth),
                                                b.values.narrow(0, first, depth));
    sums.addcmul_(part.mul_(a.factor.select(1, slice).unsqueeze(1)), b.factor.select(1, slice));
  }
  return sums;
}

at::Tensor multiplied(const QuantizedWeight& how, Product product, const Read& left,
                      const Read& right) {
  at::Tensor sums;
  if (left.quantized && right.quantized)
    if (const auto native = native_product({*left.quantized, left.is_transposed},
                                           {*right.quantized, right.is_transposed}))
      sums = native->to(at::kFloat);
  const auto has_blocks = [](const Read& read) {
    return read.in_bf16 && read.quantized && has_fp32_blocks(*read.quantized);
  };
  if (!sums.defined())
    sums = has_blocks(left) && has_blocks(right) ? product_of_slices(left, right)
                                                 : product_of(numbers_of(left), numbers_of(right));
  tell(how, product, left, right, sums,
       [&] { return at::mm(left.given.to(at::kFloat), right.given.to(at::kFloat)); });
  return sums;
}

[[noreturn]] void refuse_second_derivative(const char* where) {
  throw UsageError({.where = where,
                    .what = "gradients of a quantized layer have no derivative",
                    .seen = "a backward pass with create_graph",
                    .accepted = "a backward pass without it",
                    .advice = "leave the part out of the policy, or compute the penalty in a "
                              "disabled region"});
}

/// What a graph holds of a weight.
struct Held : torch::CustomClassHolder {
  How how;
  explicit Held(How of) : how(std::move(of)) {}
};

void save_how(AutogradContext* context, const How& how) {
  context->saved_data["how"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(how));
}
const QuantizedWeight& saved_how(AutogradContext* context) {
  return *static_cast<const Held&>(*context->saved_data["how"].toCapsule()).how;
}

struct LinearByRecipe : torch::autograd::Function<LinearByRecipe> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const How& how,
                            at::ScalarType dtype) {
    const products::NoAutocast no_autocast;
    context->save_for_backward({x, weight});
    save_how(context, how);
    context->saved_data["dtype"] = static_cast<std::int64_t>(dtype);
    if (bias) context->saved_data["bias"] = static_cast<std::int64_t>(bias->scalar_type());
    const Recipe& recipe = *how->recipe;
    at::Tensor sums =
        multiplied(*how, Product::output, of_matrix(x, recipe.input, /*down=*/false, dtype),
                   transposed(of_weight(weight, recipe.weight, /*down=*/false, dtype)));
    if (bias) sums.add_(*bias);
    return sums.to(dtype);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list result(5);
    if (!gradients[0].defined()) return result;
    if (at::GradMode::is_enabled()) refuse_second_derivative(kLinear);
    const products::NoAutocast no_autocast;
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = gradients[0];
    const QuantizedWeight& how = saved_how(context);
    const Recipe& recipe = *how.recipe;
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    const Chance chance(how);
    if (context->needs_input_grad(0))
      result[0] = multiplied(how, Product::input_gradient,
                             of_matrix(dy, recipe.gradient, /*down=*/false, dtype,
                                       chance.of(Product::input_gradient)),
                             of_weight(weight, recipe.weight_for_input, /*down=*/true, dtype))
                      .to(x.scalar_type());
    if (context->needs_input_grad(1))
      result[1] = multiplied(how, Product::weight_gradient,
                             transposed(of_matrix(dy, recipe.gradient_for_weight, /*down=*/true,
                                                  dtype, chance.of(Product::weight_gradient))),
                             of_matrix(x, recipe.input_for_weight, /*down=*/true, dtype))
                      .to(weight.scalar_type());
    const auto bias = context->saved_data.find("bias");
    if (bias != context->saved_data.end() && context->needs_input_grad(2))
      result[2] = at::sum(dy, {0}, /*keepdim=*/false, at::kFloat)
                      .to(static_cast<at::ScalarType>(bias->second.toInt()));
    return result;
  }
};

/// Numbers of a convolution that its function takes as one.
std::vector<std::int64_t> in_one(const ConvolutionShape& shape) {
  std::vector<std::int64_t> all;
  for (const auto* list : {&shape.stride, &shape.padding, &shape.dilation, &shape.output_padding})
    all.insert(all.end(), list->begin(), list->end());
  all.push_back(shape.transposed);
  all.push_back(shape.groups);
  return all;
}

ConvolutionShape from_one(const std::vector<std::int64_t>& all) {
  const auto spatial = static_cast<std::ptrdiff_t>((all.size() - 2) / 4);
  const auto list = [&](std::ptrdiff_t i) {
    return std::vector<std::int64_t>(all.begin() + i * spatial, all.begin() + (i + 1) * spatial);
  };
  return {.stride = list(0),
          .padding = list(1),
          .dilation = list(2),
          .transposed = all[all.size() - 2] != 0,
          .output_padding = list(3),
          .groups = all.back()};
}

struct ConvolutionByRecipe : torch::autograd::Function<ConvolutionByRecipe> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const ConvolutionShape& shape,
                            const How& how, at::ScalarType dtype) {
    const products::NoAutocast no_autocast;
    context->save_for_backward({x, weight});
    save_how(context, how);
    context->saved_data["shape"] = in_one(shape);
    if (bias) context->saved_data["bias"] = static_cast<std::int64_t>(bias->scalar_type());
    const Recipe& recipe = *how->recipe;
    const Read a = of_matrix(x, recipe.input, /*down=*/false, at::kFloat),
               b = of_weight(weight, recipe.weight, /*down=*/false, at::kFloat);
    const auto convolved = [&](const at::Tensor& input, const at::Tensor& by) {
      return at::convolution(input, by, {}, shape.stride, shape.padding, shape.dilation,
                             shape.transposed, shape.output_padding, shape.groups);
    };
    const Factored an = numbers_of(a), bn = numbers_of(b);
    at::Tensor sums = convolved(an.values, bn.values).mul_(an.factor * bn.factor);
    tell(*how, Product::output, a, b, sums,
         [&] { return convolved(a.given.to(at::kFloat), b.given.to(at::kFloat)); });
    if (bias) {
      std::vector<std::int64_t> of_channels(static_cast<std::size_t>(sums.dim()), 1);
      of_channels[1] = -1;
      sums.add_(bias->view(of_channels));
    }
    return sums.to(dtype);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list result(6);
    if (!gradients[0].defined()) return result;
    if (at::GradMode::is_enabled()) refuse_second_derivative(kConvolution);
    const products::NoAutocast no_autocast;
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = gradients[0];
    const QuantizedWeight& how = saved_how(context);
    const Recipe& recipe = *how.recipe;
    const ConvolutionShape shape = from_one(context->saved_data["shape"].toIntVector());
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const Read a = of_matrix(x, recipe.input_for_weight, /*down=*/false, at::kFloat),
               b = of_weight(weight, recipe.weight_for_input, /*down=*/false, at::kFloat),
               d = of_matrix(dy, recipe.gradient, /*down=*/false, at::kFloat);
    const auto gradients_by = [&](const at::Tensor& dys, const at::Tensor& xs, const at::Tensor& by,
                                  bool of_x, bool of_weights) {
      return at::convolution_backward(dys, xs, by, c10::nullopt, shape.stride, shape.padding,
                                      shape.dilation, shape.transposed, shape.output_padding,
                                      shape.groups, {of_x, of_weights, false});
    };
    const Factored an = numbers_of(a), bn = numbers_of(b), dn = numbers_of(d);
    const auto wide = [](const Read& read) { return read.given.to(at::kFloat); };
    auto [dx, dweight, dbias] =
        gradients_by(dn.values, an.values, bn.values, wants_x, wants_weight);
    if (wants_x) {
      dx = dx * (dn.factor * bn.factor);
      tell(how, Product::input_gradient, d, b, dx,
           [&] { return std::get<0>(gradients_by(wide(d), wide(a), wide(b), true, false)); });
      result[0] = dx.to(x.scalar_type());
    }
    if (wants_weight) {
      dweight = dweight * (dn.factor * an.factor);
      tell(how, Product::weight_gradient, d, a, dweight,
           [&] { return std::get<1>(gradients_by(wide(d), wide(a), wide(b), false, true)); });
      result[1] = dweight.to(weight.scalar_type());
    }
    const auto bias = context->saved_data.find("bias");
    if (bias != context->saved_data.end() && context->needs_input_grad(2)) {
      std::vector<std::int64_t> others{0};
      for (std::int64_t i = 2; i < dy.dim(); ++i) others.push_back(i);
      result[2] = at::sum(dy, others, /*keepdim=*/false, at::kFloat)
                      .to(static_cast<at::ScalarType>(bias->second.toInt()));
    }
    return result;
  }
};

/// LibTorch's modules pass an undefined tensor where they have no bias.
std::optional<at::Tensor> defined(const std::optional<at::Tensor>& bias) {
  return bias && bias->defined() ? bias : std::nullopt;
}

void require_float(const char* where, const char* what, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat || tensor::is_16_bit(tensor.scalar_type())) return;
  throw UsageError(
      {.where = where,
       .what = std::string("a layer with a recipe takes no ") + what + " of this dtype",
       .seen = tensor::name_of(tensor.scalar_type()),
       .accepted = "fp32, bf16, fp16"});
}

void require_operands(const char* where, const at::Tensor& x, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias) {
  require_float(where, "input", x);
  require_float(where, "weight", weight);
  if (bias) require_float(where, "bias", *bias);
}

/// Whether each list has a number for each dimension of space, and the bias one for each channel of
/// the result.
bool fits_weight(const ConvolutionShape& shape, const std::optional<at::Tensor>& bias,
                 const at::Tensor& weight) {
  for (const auto* list : {&shape.stride, &shape.padding, &shape.dilation, &shape.output_padding})
    if (static_cast<std::int64_t>(list->size()) + 2 != weight.dim()) return false;
  const std::int64_t channels = shape.transposed ? weight.size(1) * shape.groups : weight.size(0);
  return !bias || bias->sizes() == at::IntArrayRef{channels};
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight,
                  const std::optional<at::Tensor>& given_bias,
                  std::shared_ptr<const QuantizedWeight> how, at::ScalarType dtype) {
  const std::optional<at::Tensor> bias = defined(given_bias);
  require_operands(kLinear, x, weight, bias);
  const bool fits = weight.dim() == 2 && x.dim() > 0 && x.size(-1) == weight.size(1) &&
                    (!bias || bias->sizes() == at::IntArrayRef{weight.size(0)});
  if (!fits)
    throw UsageError({.where = kLinear,
                      .what = "the shapes do not fit",
                      .seen = c10::str("x ", x.sizes(), ", weight ", weight.sizes(), ", bias ",
                                       bias ? c10::str(bias->sizes()) : "none"),
                      .accepted = "x (..., in), weight (out, in), bias (out)"});
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const at::Tensor rows = x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2);
  how->was_multiplied.store(true, std::memory_order_relaxed);
  return LinearByRecipe::apply(rows, weight, bias, how, dtype).view(sizes);
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight,
                       const std::optional<at::Tensor>& given_bias, const ConvolutionShape& shape,
                       std::shared_ptr<const QuantizedWeight> how, at::ScalarType dtype) {
  const std::optional<at::Tensor> bias = defined(given_bias);
  require_operands(kConvolution, x, weight, bias);
  require(how->recipe->takes_convolutions, {.where = kConvolution,
                                            .what = "the recipe has no form for convolutions",
                                            .seen = std::string(how->recipe->name),
                                            .accepted = "fp8"});
  if (!fits_weight(shape, bias, weight))
    refuse({.where = kConvolution,
            .what = "the bias or the shape does not fit the weight",
            .seen = c10::str("weight ", weight.sizes(), ", bias ",
                             bias ? c10::str(bias->sizes()) : "none", ", stride ",
                             at::IntArrayRef(shape.stride)),
            .accepted = "bias (out), and a number of the shape for each dimension of space"});
  how->was_multiplied.store(true, std::memory_order_relaxed);
  return ConvolutionByRecipe::apply(x, weight, bias, shape, how, dtype);
}

}  // namespace demi::quantization
