#include "lab/workload/tensor_names.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "demi/tensor/dtype.h"
#include "demi/tensor/module_tensors.h"

namespace demi::workload {
namespace {

using checkpoint::NamedTensors;
using OwnTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Parameters, then buffers, in the module's order.
OwnTensors tensors_in_order(const torch::nn::Module& network) {
  OwnTensors all;
  for (const auto& [name, tensor] : tensor::parameters_once(network))
    all.emplace_back(name, tensor);
  for (const auto& [name, tensor] : tensor::buffers_once(network)) all.emplace_back(name, tensor);
  return all;
}

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

bool is_below(std::string_view name, std::string_view module) {
  return !module.empty() && name.size() > module.size() && name.starts_with(module) &&
         name[module.size()] == '.';
}

/// `names`: torchvision's; null: the file has the network's own.
std::string name_in_file(const std::string& own, const models::TorchvisionNames* names) {
  return names != nullptr ? names->name_of(own) : own;
}

std::ptrdiff_t count_of(const OwnTensors& own, const models::TorchvisionNames* names,
                        const NamedTensors& file) {
  return std::ranges::count_if(
      own, [&](const auto& item) { return file.contains(name_in_file(item.first, names)); });
}

/// An integer in a weight's place is a quantised one.
bool is_other_kind(const at::Tensor& value, const at::Tensor& own) {
  return own.is_floating_point() && !value.is_floating_point();
}

/// Whether the head's tensors are in the file, in another shape; or torchvision has other modules
/// in its place.
bool has_other_head(const OwnTensors& own, const NamedTensors& file, const std::string& head,
                    const models::TorchvisionNames* names, NamedForNetwork& result) {
  bool differs = false;
  for (const auto& [name, tensor] : own) {
    if (!is_below(name, head)) continue;
    const std::string there = name_in_file(name, names);
    if (there.empty()) {
      result.head_shapes = shape_of(tensor);
      return true;
    }
    const auto found = file.find(there);
    if (found == file.end()) return false;
    if (found->second.sizes() == tensor.sizes()) continue;
    differs = true;
    if (result.head_shapes.empty())
      result.head_shapes = shape_of(tensor) + ", in the file " + shape_of(found->second);
  }
  return differs;
}

constexpr std::string_view kCompiled = "_orig_mod.";  // torch.compile's module around another

std::string without_compiled(std::string name) {
  for (std::size_t at = 0; (at = name.find(kCompiled, at)) != std::string::npos;)
    if (at == 0 || name[at - 1] == '.')
      name.erase(at, kCompiled.size());
    else
      at += kCompiled.size();
  return name;
}

/// The tensors under names that change() makes of theirs; nothing if two would have one name.
template <class Change>
std::optional<NamedTensors> with_names(const NamedTensors& file, const Change& change) {
  NamedTensors all;
  for (const auto& [name, tensor] : file)
    if (!all.emplace(change(name), tensor).second) return std::nullopt;
  return all;
}

/// The ends, behind dots of the first name, of the prefixes that all names begin with.
std::vector<std::size_t> ends_of_prefixes(const NamedTensors& file) {
  std::vector<std::size_t> ends;
  const std::string& first = file.begin()->first;
  for (std::size_t at = first.find('.'); at != std::string::npos; at = first.find('.', at + 1)) {
    const std::string_view prefix = std::string_view(first).substr(0, at + 1);
    if (!std::ranges::all_of(file, [&](const auto& one) { return one.first.starts_with(prefix); }))
      break;
    ends.push_back(at + 1);
  }
  return ends;
}

/// Names without what stands in front of all of them, or within them for torch.compile, if more of
/// the network's are among them then.
struct PlainNames {
  NamedTensors file;
  std::string left_out;
  std::size_t prefix = 0;  // characters in front of all names
  bool is_compiled = false;

  std::string operator()(const std::string& name) const {
    return (is_compiled ? without_compiled(name) : name).substr(prefix);
  }
};

PlainNames plain_names(const OwnTensors& own, const models::TorchvisionNames* names,
                       NamedTensors file) {
  const auto fitting = [&](const NamedTensors& some) {
    return std::max(count_of(own, nullptr, some), names ? count_of(own, names, some) : 0);
  };
  PlainNames best{.file = std::move(file)};
  const NamedTensors whole = best.file;
  std::ptrdiff_t most = fitting(whole);
  const auto compiled = with_names(whole, without_compiled);
  for (const bool is_compiled : {false, true}) {
    const NamedTensors& some = is_compiled && compiled ? *compiled : whole;
    if (some.empty() || (is_compiled && !compiled)) continue;
    std::vector<std::size_t> ends = ends_of_prefixes(some);
    ends.insert(ends.begin(), 0);
    for (const std::size_t end : ends) {
      auto changed = with_names(some, [&](const std::string& name) { return name.substr(end); });
      if (const std::ptrdiff_t count = changed ? fitting(*changed) : 0; count > most) {
        most = count;
        best = {.file = *std::move(changed),
                .left_out = (is_compiled ? std::string(kCompiled) : "") +
                            (is_compiled && end > 0 ? " and " : "") +
                            some.begin()->first.substr(0, end),
                .prefix = end,
                .is_compiled = is_compiled};
      }
    }
  }
  return best;
}

/// Files of PyTorch before 0.4.1 do not count batches; PyTorch starts at 0 then.
bool counts_batches(std::string_view name) { return name.ends_with(".num_batches_tracked"); }

void take_one(const std::string& name, const at::Tensor& own, const std::string& there,
              NamedTensors& file, NamedForNetwork& result) {
  const auto found = file.find(there);
  if (found == file.end()) {
    if (counts_batches(name))
      result.tensors[name] = at::zeros_like(own);
    else
      result.misfits.push_back(name + " is missing");
    return;
  }
  if (found->second.sizes() != own.sizes())
    result.misfits.push_back(
        fmt::format("{} {} for {}", there, shape_of(found->second), shape_of(own)));
  else if (is_other_kind(found->second, own))
    result.misfits.push_back(
        fmt::format("{} of {}", there, tensor::name_of(found->second.scalar_type())));
  else
    result.tensors[name] = found->second;
  file.erase(found);
}

/// Further names of a tensor that was taken under its first one.
void drop_further_names(const torch::nn::Module& network, NamedTensors& file) {
  for (const auto& item : network.named_parameters()) file.erase(item.key());
  for (const auto& item : network.named_buffers()) file.erase(item.key());
}

}  // namespace

NamedForNetwork name_for(const torch::nn::Module& network, const models::ModelInfo* model,
                         NamedTensors file) {
  const OwnTensors own = tensors_in_order(network);
  NamedForNetwork result;
  const models::TorchvisionNames* names = nullptr;
  if (model != nullptr && model->torchvision) names = &*model->torchvision;
  PlainNames plain = plain_names(own, names, file);
  result.left_out = plain.left_out;
  std::map<std::string, std::string> in_file;  // by plain names
  for (const auto& [name, tensor] : file) in_file[plain(name)] = name;
  file = std::move(plain.file);
  if (names != nullptr && count_of(own, names, file) <= count_of(own, nullptr, file))
    names = nullptr;
  result.is_torchvisions = names != nullptr;
  const std::string head = model != nullptr ? models::head_of(*model, network) : "";
  const bool is_new = has_other_head(own, file, head, names, result);
  if (is_new) result.new_head = head;
  for (const auto& [name, tensor] : own) {
    const std::string there = name_in_file(name, names);
    if (file.contains(there)) result.renamed.emplace_back(in_file.at(there), name);
    if (is_new && is_below(name, head)) {
      result.tensors[name] = tensor.detach();
      file.erase(there);
    } else {
      take_one(name, tensor, there, file, result);
    }
  }
  if (names == nullptr) drop_further_names(network, file);
  for (const auto& [name, tensor] : file)
    if (names == nullptr || !is_below(name, names->left_out)) {
      if (result.unknown.empty()) result.unknown = in_file.at(name);
      result.misfits.push_back(name + " is of no part of the model");
    }
  return result;
}

std::string first_of(const std::vector<std::string>& misfits) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(misfits.size(), kShown); ++i)
    text += (i == 0 ? "" : "; ") + misfits[i];
  if (misfits.size() > kShown) text += fmt::format("; and {} more", misfits.size() - kShown);
  return text;
}

}  // namespace demi::workload
