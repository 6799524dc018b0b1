#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "demi/add_norm/call.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"

namespace demi::add_norm {
namespace {

using kernels::AddNorm;
using kernels::AddNormPass;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<at::Tensor>;

// Elements that are worth a thread, as LibTorch counts.
constexpr std::int64_t kGrain = 32768;

void run(const AddNorm& norm, AddNormPass pass) {
  const auto* const kernels = kernels::cpu_kernels();
  const std::int64_t pieces = kernels::pieces_of(norm);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain * pieces / (norm.rows * norm.width));
  at::parallel_for(0, pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels->add_norm(norm, pass, begin, end);
  });
}

const void* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
const float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
at::Tensor in_fp32(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(at::kFloat) : tensor;
}
bool wants_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

/// The tensors that backward keeps of a call, and the call's numbers.
struct Saved {
  at::Tensor sum, weight, bias, statistics;
  bool centered;
  double eps;
  at::ScalarType added, normed;  // Undefined: nothing was added
};

/// Shapes and s, as the kernels read them. `statistics`: (2, rows), m and r.
AddNorm described(const at::Tensor& sum, const at::Tensor& statistics, bool centered, double eps) {
  AddNorm norm{};
  norm.storage = tensor::storage_of(sum.scalar_type());
  norm.added = norm.normed = norm.storage;
  norm.centered = centered;
  norm.width = sum.size(-1);
  norm.rows = sum.numel() / norm.width;
  norm.eps = static_cast<float>(eps);
  norm.input = sum.const_data_ptr();
  norm.mean = const_cast<float*>(statistics.const_data_ptr<float>());
  norm.inverse = norm.mean + norm.rows;
  return norm;
}

struct Forward {
  at::Tensor sum, normed, statistics;
};

Forward forward_of(const Call& call) {
  const at::Tensor& x = call.input;
  const at::Tensor statistics =
      at::empty({2, x.numel() / x.size(-1)}, x.options().dtype(at::kFloat));
  AddNorm norm = described(x, statistics, call.centered, call.eps);
  const at::Tensor weight = in_fp32(call.weight), bias = in_fp32(call.bias);
  const at::Tensor add = call.add.defined() ? call.add.contiguous() : at::Tensor();
  const auto dtype = call.dtype == at::ScalarType::Undefined ? x.scalar_type() : call.dtype;
  Forward result{add.defined() ? at::empty_like(x) : x, at::empty_like(x, dtype), statistics};
  norm.normed = tensor::storage_of(dtype);
  if (add.defined()) {
    norm.added = tensor::storage_of(add.scalar_type());
    norm.add = add.const_data_ptr();
    norm.sum = result.sum.mutable_data_ptr();
  }
  norm.weight = floats_of(weight);
  norm.bias = floats_of(bias);
  norm.output = result.normed.mutable_data_ptr();
  run(norm, AddNormPass::forward);
  return result;
}

/// Gradients of input, add, weight and bias.
struct Gradients {
  at::Tensor input, add, weight, bias;
};

/// The sums of a gradient's rows, of the pieces' blocks in their order, in FP64.
at::Tensor joined(const std::vector<float>& sums, std::int64_t width, std::size_t which,
                  const at::Tensor& like) {
  const auto n = static_cast<std::size_t>(width);
  std::vector<double> whole(n);
  for (std::size_t block = which * n; block < sums.size(); block += 2 * n)
    for (std::size_t c = 0; c < n; ++c) whole[c] += sums[block + c];
  const at::Tensor result = at::empty({width}, like.options().dtype(at::kFloat));
  std::copy(whole.begin(), whole.end(), result.mutable_data_ptr<float>());
  return result.to(like.scalar_type());
}

/// `of_sum` may be undefined.
Gradients by_kernels(const Saved& saved, const at::Tensor& of_sum, const at::Tensor& of_normed) {
  AddNorm norm = described(saved.sum, saved.statistics, saved.centered, saved.eps);
  const at::Tensor weight = in_fp32(saved.weight), above = of_normed.contiguous();
  const at::Tensor beside = of_sum.defined() ? of_sum.contiguous() : of_sum;
  norm.normed = tensor::storage_of(saved.normed);
  norm.weight = floats_of(weight);
  norm.sum_gradient = data_of(beside);
  norm.output_gradient = above.const_data_ptr();
  Gradients result{.input = at::empty_like(saved.sum)};
  norm.input_gradient = result.input.mutable_data_ptr();
  if (saved.added == saved.sum.scalar_type()) {
    result.add = result.input;
  } else if (saved.added != at::ScalarType::Undefined) {
    norm.added = tensor::storage_of(saved.added);
    result.add = at::empty_like(saved.sum, saved.added);
    norm.add_gradient = result.add.mutable_data_ptr();
  }
  std::vector<float> sums;
  if (wants_gradient(saved.weight) || wants_gradient(saved.bias)) {
    sums.resize(static_cast<std::size_t>(kernels::pieces_of(norm) * 2 * norm.width));
    norm.sums = sums.data();
  }
  run(norm, AddNormPass::backward);
  if (wants_gradient(saved.weight)) result.weight = joined(sums, norm.width, 0, saved.weight);
  if (wants_gradient(saved.bias)) result.bias = joined(sums, norm.width, 1, saved.bias);
  return result;
}

/// Gradients by LibTorch's operators, which autograd differentiates again in grad mode. Autograd of
/// the forward operators could not give them: the sum is a result of this very node.
Gradients by_operators(const Saved& saved, const at::Tensor& of_sum, const at::Tensor& of_normed) {
  const auto dtype = at::promote_types(saved.sum.scalar_type(), at::kFloat);
  const at::Tensor s = saved.sum.to(dtype), dy = of_normed.to(dtype);
  const at::Tensor d = saved.centered ? s - s.mean(-1, /*keepdim=*/true) : s;
  const at::Tensor r = at::rsqrt(d.square().mean(-1, true) + saved.eps), h = d * r;
  const at::Tensor g = saved.weight.defined() ? dy * saved.weight.to(dtype) : dy;
  const at::Tensor apart = saved.centered ? g - g.mean(-1, true) : g;
  Gradients result{.input = r * (apart - h * (g * h).mean(-1, true))};
  if (of_sum.defined()) result.input = result.input + of_sum;
  if (saved.added != at::ScalarType::Undefined) result.add = result.input.to(saved.added);
  result.input = result.input.to(saved.sum.scalar_type());
  const auto of_features = [](const at::Tensor& rows, const at::Tensor& features) {
    return rows.sum_to_size(features.sizes()).to(features.scalar_type());
  };
  if (wants_gradient(saved.weight)) result.weight = of_features(dy * h, saved.weight);
  if (wants_gradient(saved.bias)) result.bias = of_features(dy, saved.bias);
  return result;
}

}  // namespace

/// Autograd's node. Its name is what graphs and messages show. Its results are the normed rows, and
/// before them the sum if that has a gradient.
struct AddNormBackward : torch::autograd::Function<AddNormBackward> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const Optional& add, const Optional& weight, const Optional& bias,
                               const Call* call) {
    const Forward result = forward_of(*call);
    context->save_for_backward({result.sum, weight.value_or(at::Tensor()),
                                bias.value_or(at::Tensor()), result.statistics});
    context->set_materialize_grads(false);
    auto& data = context->saved_data;
    data["centered"] = call->centered;
    data["eps"] = call->eps;
    data["added"] = static_cast<std::int64_t>(add ? add->scalar_type() : at::ScalarType::Undefined);
    data["normed"] = static_cast<std::int64_t>(result.normed.scalar_type());
    const bool returns_sum = add || input.requires_grad();
    return returns_sum ? variable_list{result.sum, result.normed} : variable_list{result.normed};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const products::NoAutocast none;
    const at::Tensor of_sum = gradients.size() == 2 ? gradients[0] : at::Tensor();
    const at::Tensor& of_normed = gradients.back();
    auto& data = context->saved_data;
    const auto dtype_at = [&](const char* name) {
      return static_cast<at::ScalarType>(data[name].toInt());
    };
    const auto added = dtype_at("added");
    if (!of_normed.defined()) {
      const bool adds = added != at::ScalarType::Undefined && of_sum.defined();
      return {of_sum, adds ? of_sum.to(added) : at::Tensor(), {}, {}, {}};
    }
    const auto tensors = context->get_saved_variables();
    const Saved saved{.sum = tensors[0],
                      .weight = tensors[1],
                      .bias = tensors[2],
                      .statistics = tensors[3],
                      .centered = data["centered"].toBool(),
                      .eps = data["eps"].toDouble(),
                      .added = added,
                      .normed = dtype_at("normed")};
    const bool for_kernels = !at::GradMode::is_enabled() && products::is_ordinary({&of_normed}) &&
                             products::is_ordinary({&saved.sum, &of_sum}) && kernels::cpu_kernels();
    const Gradients result =
        for_kernels ? by_kernels(saved, of_sum, of_normed) : by_operators(saved, of_sum, of_normed);
    return {result.input, result.add, result.weight, result.bias, at::Tensor()};
  }
};

Results fused(const Call& call) {
  const bool is_differentiated =
      at::GradMode::is_enabled() && (wants_gradient(call.input) || wants_gradient(call.add) ||
                                     wants_gradient(call.weight) || wants_gradient(call.bias));
  if (!is_differentiated) {
    const Forward result = forward_of(call);
    return {result.sum, result.normed};
  }
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? Optional(tensor) : Optional();
  };
  const variable_list results = AddNormBackward::apply(call.input, given(call.add),
                                                       given(call.weight), given(call.bias), &call);
  return {results.size() == 2 ? results[0] : call.input, results.back()};
}

}  // namespace demi::add_norm
