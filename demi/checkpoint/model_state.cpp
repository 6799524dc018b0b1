#include <torch/types.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/prepared_state.h"
#include "demi/checkpoint/training_state.h"
#include "demi/core/error.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/module_tensors.h"
#include "demi/tensor/range.h"

namespace demi::checkpoint {
namespace {

constexpr auto kModelAdvice = "load what was saved from the same model";

std::string form_of(const at::Tensor& tensor) {
  return c10::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
}

// Calls visit(name, first) for the names of a tensor but the first.
template <class Visit>
void each_further_name(const torch::nn::Module& module, const Visit& visit) {
  std::map<const at::TensorImpl*, std::string> first;
  const auto meet = [&](const auto& item) {
    if (!item.value().defined()) return;
    const auto [known, is_first] = first.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_first) visit(item.key(), known->second);
  };
  for (const auto& parameter : module.named_parameters()) meet(parameter);
  for (const auto& buffer : module.named_buffers()) meet(buffer);
}

// By which NaN, and dtypes without arithmetic, compare, too.
at::Tensor flat_bytes(const at::Tensor& values) {
  return values.resolve_conj().contiguous().view({-1}).view(at::kByte);
}

// One tensor of a module cannot become both.
void require_same(const std::string& name, const at::Tensor& value, const std::string& first,
                  const at::Tensor& of_first) {
  if (value.sizes() == of_first.sizes() && value.scalar_type() == of_first.scalar_type() &&
      flat_bytes(value).to(of_first.device()).equal(flat_bytes(of_first)))
    return;
  refuse({.where = kRestore,
          .what = "the checkpoint has different values of " + first + " and " + name +
                  ", which are one tensor of the model",
          .seen = form_of(of_first) + " and " + form_of(value),
          .accepted = "the same values under both names, or one of the names",
          .advice = "load it into a model in which they are two tensors"});
}

}  // namespace

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more"
                               : text;
}

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& [name, parameter] : tensor::parameters_once(module))
    all[name] = parameter.detach();
  for (const auto& [name, buffer] : tensor::buffers_once(module)) all[name] = buffer.detach();
  return all;
}

void use_first_names(NamedTensors& values, const torch::nn::Module& module) {
  each_further_name(module, [&](const std::string& name, const std::string& first) {
    auto value = values.extract(name);
    if (value.empty()) return;
    if (const auto own = values.find(first); own != values.end())
      return require_same(name, value.mapped(), first, own->second);
    value.key() = first;
    values.insert(std::move(value));
  });
}

void add_further_names(NamedTensors& values, const torch::nn::Module& module) {
  each_further_name(module, [&](const std::string& name, const std::string& first) {
    if (const auto value = values.find(first); value != values.end())
      values.emplace(name, value->second);
  });
}

void check_fits(const NamedTensors& values, const NamedTensors& module, const char* what) {
  std::vector<std::string> missing, unknown;
  for (const auto& [name, tensor] : module)
    if (!values.contains(name)) missing.push_back(name);
  for (const auto& [name, tensor] : values)
    if (!module.contains(name)) unknown.push_back(name);
  if (!missing.empty() || !unknown.empty()) {
    std::string seen = std::to_string(values.size()) + " tensors";
    if (!missing.empty()) seen += ", missing " + some_of(missing);
    if (!unknown.empty()) seen += ", unknown " + some_of(unknown);
    refuse({.where = kRestore,
            .what = std::string("the checkpoint does not fit ") + what,
            .seen = seen,
            .accepted = "the " + std::to_string(module.size()) + " tensors of the module",
            .advice = kModelAdvice});
  }
  for (const auto& [name, tensor] : module) {
    const at::Tensor& value = values.at(name);
    // Module::to makes counts of batches floating point numbers, too.
    const bool same_kind =
        value.is_complex() == tensor.is_complex() &&
        (value.scalar_type() == at::kBool) == (tensor.scalar_type() == at::kBool);
    if (value.sizes() == tensor.sizes() && same_kind) continue;
    refuse({.where = kRestore,
            .what = "the tensor " + name + " does not fit " + what,
            .seen = form_of(value),
            .accepted = form_of(tensor),
            .advice = kModelAdvice});
  }
}

void check_range(const NamedTensors& values, const NamedTensors& module) {
  for (const auto& [name, tensor] : module) {
    // Module::to makes a count of batches fp16, too, which holds few of them in any case.
    if (tensor.is_floating_point() && c10::isIntegralType(values.at(name).scalar_type(), true))
      continue;
    const std::optional<double> value = tensor::beyond_range(values.at(name), tensor.scalar_type());
    if (!value) continue;
    const std::string dtype = tensor::name_of(tensor.scalar_type());
    refuse(
        {.where = kRestore,
         .what = "a value of " + name + " is beyond the range of " + dtype +
                 ", where it would be another",
         .seen = c10::str(*value),
         .accepted = "numbers that " + dtype + " holds",
         .advice = "load it into a wider dtype: bf16 has the range of FP32, FP64 a greater one"});
  }
}

void assign(const NamedTensors& module, NamedTensors values) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : module) at::Tensor(tensor).copy_(values.extract(name).mapped());
}

}  // namespace demi::checkpoint
