#include "demi/checkpoint/parameter_names.h"

#include <torch/types.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "demi/checkpoint/prepared_state.h"
#include "demi/core/error.h"
#include "demi/tensor/module_tensors.h"

namespace demi::checkpoint {
namespace {

constexpr auto kAdvice =
    "make the optimizer over the parameters that it was saved with, or load the weights alone by "
    "load(path, model, device)";

std::vector<std::string> all_of(const ParameterGroups& groups) {
  std::vector<std::string> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

std::vector<std::size_t> sizes_of(const ParameterGroups& groups) {
  std::vector<std::size_t> sizes;
  for (const auto& group : groups) sizes.push_back(group.size());
  return sizes;
}

/// A parameter of several names may have been saved under another one than the first.
void use_first_names(ParameterGroups& groups, const torch::nn::Module& module) {
  std::map<const at::TensorImpl*, std::string> first;
  std::map<std::string, std::string> first_of;
  for (const auto& item : module.named_parameters())
    if (item.value().defined())
      first_of[item.key()] =
          first.emplace(item.value().unsafeGetTensorImpl(), item.key()).first->second;
  for (auto& group : groups)
    for (std::string& name : group)
      if (const auto known = first_of.find(name); known != first_of.end()) name = known->second;
}

bool have_same_members(const ParameterGroups& a, const ParameterGroups& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return std::multiset<std::string>(x.begin(), x.end()) ==
           std::multiset<std::string>(y.begin(), y.end());
  });
}

/// The names in `a` that are not in `b`.
std::vector<std::string> missing_in(const std::vector<std::string>& b,
                                    const std::vector<std::string>& a) {
  const std::set<std::string> known(b.begin(), b.end());
  std::vector<std::string> missing;
  for (const std::string& name : a)
    if (!known.contains(name)) missing.push_back(name);
  return missing;
}

[[noreturn]] void refuse_others(const std::string& part, const std::vector<std::string>& saved,
                                const std::vector<std::string>& names) {
  const std::vector<std::string> fresh = missing_in(saved, names), left = missing_in(names, saved);
  std::string seen;
  if (!left.empty()) seen = "without " + some_of(left);
  if (!fresh.empty())
    seen += std::string(seen.empty() ? "" : "; ") + "with " + some_of(fresh) +
            ", which had no state in it";
  refuse(
      {.where = kRestore,
       .what = "the " + part + " holds other parameters than the checkpoint's",
       .seen = seen.empty() ? "a name twice" : seen,
       .accepted = "its " + std::to_string(saved.size()) + " parameters, in any order and groups",
       .advice = kAdvice});
}

/// The number in `names` of each name of `saved`.
std::vector<std::size_t> numbers_by_name(const std::string& part,
                                         const std::vector<std::string>& saved,
                                         const std::vector<std::string>& names) {
  std::map<std::string, std::size_t> number;
  for (std::size_t i = 0; i < names.size(); ++i) number.emplace(names[i], i);
  std::set<std::string> once(saved.begin(), saved.end());
  if (once.size() != saved.size() || saved.size() != names.size() ||
      !missing_in(names, saved).empty())
    refuse_others(part, saved, names);
  std::vector<std::size_t> now;
  for (const std::string& name : saved) now.push_back(number.at(name));
  return now;
}

/// Checkpoints of older versions have the groups' sizes alone, and those of LibTorch's optimizers
/// not even these; their archive is checked where it is read.
void require_sizes(const Checkpoint& checkpoint, const std::string& part,
                   const std::vector<std::size_t>& sizes) {
  const auto numbers = checkpoint.numbers.find(part);
  if (numbers == checkpoint.numbers.end()) return;
  std::vector<std::size_t> saved;
  for (;;) {
    const auto size = numbers->second.find("parameters." + std::to_string(saved.size()));
    if (size == numbers->second.end()) break;
    saved.push_back(static_cast<std::size_t>(size->second));
  }
  if (saved.empty() || saved == sizes) return;
  refuse({.where = kRestore,
          .what = "the state of the " + part +
                  " is by number, without names, and its parameter groups have other sizes",
          .seen = c10::Join(" + ", saved) + " parameters",
          .accepted = c10::Join(" + ", sizes),
          .advice = "make the optimizer with the groups that it was saved with"});
}

}  // namespace

ParameterGroups parameter_names(const torch::optim::Optimizer& optimizer,
                                const torch::nn::Module& module,
                                const std::vector<at::Tensor>& more) {
  std::map<const at::TensorImpl*, std::string> names;
  for (const auto& [name, parameter] : tensor::parameters_once(module))
    names.emplace(parameter.unsafeGetTensorImpl(), name);
  for (std::size_t i = 0; i < more.size(); ++i)
    names.emplace(more[i].unsafeGetTensorImpl(), "more/" + std::to_string(i));
  ParameterGroups groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& of_group = groups.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto known = names.find(parameter.unsafeGetTensorImpl());
      of_group.push_back(known == names.end() ? "" : known->second);
    }
  }
  return groups;
}

ParameterMatch match_parameters(const Checkpoint& checkpoint, const std::string& part,
                                const torch::optim::Optimizer& optimizer,
                                const torch::nn::Module& module,
                                const std::vector<at::Tensor>& more) {
  const ParameterGroups own = parameter_names(optimizer, module, more);
  ParameterMatch match{.now = {}, .names = all_of(own)};
  match.now.resize(match.names.size());
  std::iota(match.now.begin(), match.now.end(), std::size_t{0});
  const auto found = checkpoint.parameters.find(part);
  if (found == checkpoint.parameters.end()) {
    require_sizes(checkpoint, part, sizes_of(own));
    return match;
  }
  ParameterGroups saved = found->second;
  use_first_names(saved, module);
  if (saved == own) return match;
  match.same_groups = have_same_members(saved, own);
  match.now = numbers_by_name(part, all_of(saved), match.names);
  return match;
}

}  // namespace demi::checkpoint
