#include "demi/nn/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include "demi/autocast/op_table.h"
#include "demi/autocast/parts.h"
#include "demi/autocast/region_rules.h"
#include "demi/core/error.h"
#include "demi/kernels/path.h"
#include "demi/nn/loss_by_classes.h"
#include "demi/nn/loss_pieces.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

using nn::HeadAndTargets;
using nn::WantedGradients;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kPieces = 14, kLeanPieces = 8;
constexpr std::int64_t kSmallBytes = 1 << 20;
constexpr std::int64_t kLeastWidthInBf16 = 16;
// A piece is 15 launches of 5 us of the host, 40 without a kernel: a GPU writes 64 MiB meanwhile.
constexpr std::int64_t kSmallBytesOfDevice = 64 << 20;

std::string sizes_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

[[noreturn]] void refuse_argument(std::string_view what, const std::string& seen,
                                  std::string_view accepted, std::string_view advice = {}) {
  refuse({.where = "nn.linear_cross_entropy",
          .what = what,
          .seen = seen,
          .accepted = accepted,
          .advice = advice});
}

void check_per_class(const at::Tensor& tensor, const at::Tensor& head, std::string_view what) {
  if (!tensor.defined()) return;
  if (tensor.dim() != 1 || tensor.size(0) != head.size(0))
    refuse_argument(what, sizes_of(tensor), "one number for each row of linear_weight");
  if (tensor.device() != head.device())
    refuse_argument(what, tensor.device().str(), "linear_weight's device");
}

void check_tensors(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target) {
  for (const at::Tensor* tensor : {&input, &weight})
    if (!tensor->defined() || !tensor->is_floating_point())
      refuse_argument("input and linear_weight must be floating point tensors",
                      tensor->defined() ? c10::toString(tensor->scalar_type()) : "no tensor",
                      "fp64, fp32, fp16, bf16");
  if (weight.dim() != 2 || weight.size(0) == 0)
    refuse_argument("linear_weight must be (classes, width)", sizes_of(weight),
                    "two dimensions, one class or more");
  if (input.dim() < 1 || input.size(-1) != weight.size(1))
    refuse_argument("input's last dimension is not the width of linear_weight", sizes_of(input),
                    std::to_string(weight.size(1)));
  if (!target.defined() || target.scalar_type() != at::kLong)
    refuse_argument("the target must hold classes",
                    target.defined() ? c10::toString(target.scalar_type()) : "no tensor", "int64",
                    "for probabilities call at::linear and at::cross_entropy_loss");
  if (target.sizes() != input.sizes().slice(0, size_t(input.dim() - 1)))
    refuse_argument("the target must have input's dimensions without the last one",
                    sizes_of(target), sizes_of(input) + " without the last");
  for (const at::Tensor* tensor : {&weight, &target})
    if (tensor->device() != input.device())
      refuse_argument("the tensors are on several devices", tensor->device().str(),
                      "input's device");
}

void check_options(const LinearCrossEntropyOptions& o, const at::Tensor& head) {
  check_per_class(o.linear_bias, head, "linear_bias does not fit");
  check_per_class(o.weight, head, "weight does not fit");
  if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1))
    refuse_argument("label_smoothing is out of range", std::to_string(o.label_smoothing), "0 to 1");
  if (!(o.softcap >= 0 && std::isfinite(o.softcap)))
    refuse_argument("softcap is out of range", std::to_string(o.softcap), "0 (none) or more");
  if (o.batch_chunk_size && *o.batch_chunk_size < 1)
    refuse_argument("batch_chunk_size is out of range", std::to_string(*o.batch_chunk_size),
                    "1 or more");
}

bool in_region(const at::Tensor& input) {
  const auto device = input.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device) &&
         at::autocast::is_eligible(input, device);
}

/// The dtype in which linear would run here: asked of linear itself, for a region's op policy.
c10::ScalarType dtype_of_linear(const at::Tensor& input, const at::Tensor& weight) {
  if (!in_region(input)) {
    if (input.scalar_type() != weight.scalar_type())
      refuse_argument("input and linear_weight have different dtypes",
                      std::string(c10::toString(input.scalar_type())) + ", " +
                          c10::toString(weight.scalar_type()),
                      "one dtype outside of a region");
    return input.scalar_type();
  }
  static const int linear = op_number("linear");
  if (const auto own = recipe_in_region(linear, input, weight))
    refuse_argument("the head is multiplied by pieces, for which there is no recipe",
                    std::string(own->recipe->name), "a head in the region's dtype or in FP32",
                    "set_part(HEAD, \"lower_precision\") in the policy, or call at::linear and "
                    "at::cross_entropy_loss");
  if (parts_in_use())
    for (const at::Tensor* tensor : {&weight, &input})
      if (dtype_of_part(*tensor)) return dtype_in_region(linear, input, weight);
  const at::NoGradGuard no_grad;
  return at::linear(at::zeros({1, 1}, input.options()), at::zeros({1, 1}, weight.options()))
      .scalar_type();
}

/// Null: tensor operations do what they would.
const kernels::CudaKernels* kernels_for(c10::ScalarType linear, const at::Tensor& input) {
  if (!input.is_cuda() || linear == at::kDouble) return nullptr;
  const c10::DeviceGuard guard(input.device());  // not a context on the machine's first GPU
  return kernels::path_for(kernels::Device::cuda) == kernels::Path::cuda ? kernels::cuda_kernels()
                                                                         : nullptr;
}

/// 16 bits where they are fast. fp16 by demi's kernels alone, which give gradients a factor of
/// their own: what is smaller than its range would be lost before the loss scale is known.
c10::ScalarType dtype_of_products(c10::ScalarType linear, const at::Tensor& input,
                                  bool has_kernels) {
  if (linear == at::kDouble) return at::kDouble;
  if (linear == at::kHalf && has_kernels) return at::kHalf;
  // oneDNN fills narrow operands up: to 64 times the memory of one of width 1.
  const bool slow =
      input.is_cpu() && (products::slow_in(linear) || input.size(-1) < kLeastWidthInBf16);
  return linear == at::kBFloat16 && !slow ? at::kBFloat16 : at::kFloat;
}

void check_range(const HeadAndTargets& of) {
  if (!of.target.is_cpu() || of.target.numel() == 0) return;
  const auto [least, most] = at::aminmax(of.target);
  const auto low = least.item<std::int64_t>(), high = most.item<std::int64_t>();
  const std::int64_t classes = of.weight.size(0);
  if (low < 0 || high >= classes)
    refuse_argument("a target is out of range", std::to_string(low < 0 ? low : high),
                    "0 to " + std::to_string(classes - 1) + ", or ignore_index");
}

/// A part of the rows, but not of so few bytes that cutting them costs more than it saves.
std::int64_t rows_of_piece(const HeadAndTargets& of) {
  const std::int64_t rows = of.target.numel(), classes = of.weight.size(0),
                     width = of.weight.size(1), copies = of.softcap > 0 ? 2 : 1;
  if (nn::is_faster_by_classes(of)) return nn::kRowsByClasses;
  // Logits and a copy of a block, the input in another dtype, sums of its gradient, one a thread.
  const std::int64_t held = std::int64_t(c10::elementSize(of.sums)) *
                            (copies * classes * 5 / 4 + width * (2 + classes / 256));
  // A kernel keeps 16-bit logits, their gradient in their place, and nothing besides.
  const bool lean = of.kernels && c10::elementSize(of.products) == 2;
  const std::int64_t pieces = lean ? kLeanPieces : copies * kPieces;
  const std::int64_t small = of.input.is_cpu() ? kSmallBytes : kSmallBytesOfDevice;
  return std::max({std::int64_t{1}, (rows + pieces - 1) / pieces, small / held});
}

HeadAndTargets arranged(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
                        const LinearCrossEntropyOptions& o) {
  const auto linear = dtype_of_linear(input, weight);
  const auto* kernels = kernels_for(linear, input);
  HeadAndTargets of{.input = input.detach().reshape({target.numel(), input.size(-1)}),
                    .weight = weight.detach(),
                    .counts = target.reshape(-1).ne(o.ignore_index),
                    .smoothing = o.label_smoothing,
                    .softcap = o.softcap,
                    .products = dtype_of_products(linear, input, kernels),
                    .sums = linear == at::kDouble ? at::kDouble : at::kFloat,
                    .kernels = kernels};
  if (tensor::is_16_bit(of.products) && in_region(input) && weight.scalar_type() == at::kFloat) {
    const at::NoGradGuard no_grad;
    of.weight = weights::low_precision(weight, of.products).detach();
  }
  of.target = target.reshape(-1).masked_fill(of.counts.logical_not(), 0);
  of.rows = o.batch_chunk_size.value_or(rows_of_piece(of));
  if (o.linear_bias.defined()) of.bias = o.linear_bias.detach();
  if (o.weight.defined()) of.class_weight = o.weight.detach().to(of.sums).contiguous();
  check_range(of);
  return of;
}

at::Tensor scaled(at::Tensor gradient, const at::Tensor& by, bool in_place, c10::ScalarType dtype) {
  if (!gradient.defined()) return gradient;
  if (in_place) return gradient.detach().mul_(by).to(dtype);
  return (gradient * by).to(dtype);
}

void refuse_second_order() {
  if (at::GradMode::is_enabled())
    refuse({.where = "nn.linear_cross_entropy",
            .what = "gradients of its gradients are not made (create_graph)",
            .advice = "call at::linear and at::cross_entropy_loss"});
}

// Arguments: input, weight, bias as differentiated, the problem, its row scale, what is wanted.
struct SummedLoss : torch::autograd::Function<SummedLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const HeadAndTargets& of,
                            const at::Tensor& row_scale, const at::Tensor& total,
                            WantedGradients wanted, at::Tensor* right) {
    auto made = nn::loss_pieces(of, row_scale, wanted, right != nullptr);
    if (right) *right = made.right;
    ctx->saved_data["sizes"] = input.sizes();
    ctx->saved_data["input"] = int64_t(input.scalar_type());
    ctx->saved_data["weight"] = int64_t(weight.scalar_type());
    ctx->saved_data["bias"] = int64_t(bias.scalar_type());
    ctx->save_for_backward({made.input, made.weight, made.bias});
    return made.losses.sum() / total;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_order();
    const auto saved = ctx->get_saved_variables();
    const bool in_place = !torch::autograd::get_current_graph_task_keep_graph();
    const auto dtype = [&](const char* name) {
      return c10::ScalarType(ctx->saved_data[name].toInt());
    };
    at::Tensor input = scaled(saved[0], gradients[0], in_place, dtype("input"));
    if (input.defined()) input = input.reshape(ctx->saved_data["sizes"].toIntVector());
    return {input,
            scaled(saved[1], gradients[0], in_place, dtype("weight")),
            scaled(saved[2], gradients[0], in_place, dtype("bias")),
            {},
            {},
            {},
            {},
            {}};
  }
};

// The gradients wait for the one of each loss: backward computes the logits again.
struct LossOfEach : torch::autograd::Function<LossOfEach> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const HeadAndTargets& of,
                            const WantedGradients& wanted, at::Tensor* right) {
    ctx->save_for_backward({input, weight, bias, of.target, of.counts, of.class_weight});
    ctx->saved_data["numbers"] = std::vector<int64_t>{
        int64_t(of.products), int64_t(of.sums), of.rows, wanted.input, wanted.weight, wanted.bias};
    ctx->saved_data["smoothing"] = of.smoothing;
    ctx->saved_data["softcap"] = of.softcap;
    auto made = nn::loss_pieces(of, {}, {}, right != nullptr);
    if (right) *right = made.right;
    return made.losses;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    refuse_second_order();
    const auto saved = ctx->get_saved_variables();
    const auto numbers = ctx->saved_data["numbers"].toIntVector();
    const HeadAndTargets of{.input = saved[0].reshape({saved[3].numel(), saved[0].size(-1)}),
                            .weight = saved[1],
                            .bias = saved[2].numel() > 0 ? saved[2] : at::Tensor(),
                            .target = saved[3],
                            .counts = saved[4],
                            .class_weight = saved[5],
                            .smoothing = ctx->saved_data["smoothing"].toDouble(),
                            .softcap = ctx->saved_data["softcap"].toDouble(),
                            .products = c10::ScalarType(numbers[0]),
                            .sums = c10::ScalarType(numbers[1]),
                            .rows = numbers[2],
                            .kernels = kernels_for(c10::ScalarType(numbers[1]), saved[0])};
    const at::Tensor scale = gradients[0].to(of.sums).masked_fill(of.counts.logical_not(), 0);
    auto made = nn::loss_pieces(of, scale, {numbers[3] != 0, numbers[4] != 0, numbers[5] != 0});
    const auto as = [](const at::Tensor& gradient, const at::Tensor& like) {
      return gradient.defined() ? gradient.reshape(like.sizes()).to(like.scalar_type()) : gradient;
    };
    return {
        as(made.input, saved[0]), as(made.weight, saved[1]), as(made.bias, saved[2]), {}, {}, {}};
  }
};

at::Tensor loss_of(const at::Tensor& input, const at::Tensor& linear_weight,
                   const at::Tensor& target, const LinearCrossEntropyOptions& o,
                   at::Tensor* right) {
  check_tensors(input, linear_weight, target);
  check_options(o, linear_weight);
  const auto result = in_region(input) ? at::kFloat : input.scalar_type();
  const HeadAndTargets of = arranged(input, linear_weight, target, o);
  const bool grad = at::GradMode::is_enabled();
  const WantedGradients wanted{
      .input = grad && input.requires_grad(),
      .weight = grad && linear_weight.requires_grad(),
      .bias = grad && o.linear_bias.defined() && o.linear_bias.requires_grad()};
  // A Function takes no undefined tensor.
  const at::Tensor bias =
      o.linear_bias.defined() ? o.linear_bias : at::empty({0}, linear_weight.options());
  if (o.reduction == Reduction::none)
    return LossOfEach::apply(input, linear_weight, bias, of, wanted, right)
        .to(result)
        .reshape(target.sizes());
  at::Tensor row_scale = of.counts.to(of.sums), total = at::ones({}, row_scale.options());
  if (o.reduction == Reduction::mean) {
    total = nn::target_weights(of).sum();
    row_scale = at::where(of.counts, row_scale / total, 0);
  }
  return SummedLoss::apply(input, linear_weight, bias, of, row_scale, total, wanted, right)
      .to(result);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& linear_weight,
                                const at::Tensor& target,
                                const LinearCrossEntropyOptions& options) {
  return loss_of(input, linear_weight, target, options, nullptr);
}

LossAndRight linear_cross_entropy_and_right(const at::Tensor& input,
                                            const at::Tensor& linear_weight,
                                            const at::Tensor& target,
                                            const LinearCrossEntropyOptions& options) {
  LossAndRight result;
  result.loss = loss_of(input, linear_weight, target, options, &result.right);
  result.right = result.right.reshape(target.sizes());
  return result;
}

}  // namespace demi
