#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <torch/optim/serialize.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <typeinfo>
#include <vector>

#include "demi/checkpoint/lbfgs_state.h"
#include "demi/checkpoint/parameter_names.h"
#include "demi/checkpoint/prepared_state.h"
#include "demi/core/error.h"
#include "demi/optim/optimizer.h"
#include "demi/optim/parameters.h"
#include "demi/step/coded_weight.h"
#include "demi/step/param_state.h"

namespace demi::checkpoint {
namespace {

std::string archive_name(const std::string& part) { return part + "/archive"; }

std::string group_name(const std::string& part, std::size_t group) {
  return part + "/group." + std::to_string(group);
}

std::vector<StateDict> groups_of(const Checkpoint& checkpoint, const std::string& part) {
  std::vector<StateDict> groups;
  for (auto found = checkpoint.numbers.find(group_name(part, 0)); found != checkpoint.numbers.end();
       found = checkpoint.numbers.find(group_name(part, groups.size())))
    groups.push_back(found->second);
  return groups;
}

std::string kind_of_optimizer(const torch::optim::Optimizer& optimizer) {
  if (const auto* ours = dynamic_cast<const optim::Optimizer*>(&optimizer))
    return ours->rule_name();
  return c10::demangle(typeid(optimizer).name());
}

void check_kind(const Checkpoint& checkpoint, const std::string& part,
                const torch::optim::Optimizer& optimizer) {
  const std::string kind = kind_of_optimizer(optimizer);
  const auto saved = checkpoint.text.find("demi." + part);
  const bool is_ours = dynamic_cast<const optim::Optimizer*>(&optimizer) != nullptr;
  const bool saved_ours = !checkpoint.state.contains(archive_name(part));
  if (is_ours == saved_ours && (saved == checkpoint.text.end() || saved->second == kind)) return;
  refuse({.where = kRestore,
          .what = "the state of the " + part + " is that of another optimizer",
          .seen = saved != checkpoint.text.end() ? saved->second
                  : saved_ours                   ? "one of demi's"
                                                 : "one of LibTorch's",
          .accepted = kind,
          .advice = "make the optimizer that the checkpoint was saved with"});
}

using torch::serialize::InputArchive;

[[noreturn]] void refuse_archive(const std::string& what, const std::string& seen,
                                 const std::string& accepted) {
  refuse({.where = kRestore,
          .what = what,
          .seen = seen,
          .accepted = accepted,
          .advice = "make model and optimizer as the checkpoint was saved with"});
}

// The part of an archive that can be compared with an optimizer before it is loaded.
struct ArchiveGroup {
  std::vector<std::string> options;     // names
  std::vector<std::string> parameters;  // keys into the archive's states
};
struct ArchiveContent {
  std::vector<ArchiveGroup> groups;
  InputArchive states;
};

int64_t size_in(InputArchive& archive, const std::string& name) {
  c10::IValue size;
  archive.read(name, size);
  return size.isTensor() ? size.toTensor().item<int64_t>() : size.toInt();
}

ArchiveContent content_of(InputArchive& archive) {
  ArchiveContent content;
  archive.read("state", content.states);
  InputArchive groups;
  archive.read("param_groups", groups);
  const int64_t count = size_in(groups, "param_groups/size");
  for (int64_t g = 0; g < count; ++g) {
    InputArchive group, options;
    groups.read("param_groups/" + std::to_string(g), group);
    group.read("options", options);
    ArchiveGroup& read = content.groups.emplace_back();
    read.options = options.keys();
    std::sort(read.options.begin(), read.options.end());
    const int64_t parameters = size_in(group, "params/size");
    for (int64_t i = 0; i < parameters; ++i) {
      c10::IValue key;
      group.read("params/" + std::to_string(i), key);
      read.parameters.push_back(key.toStringRef());
    }
  }
  return content;
}

InputArchive opened(const at::Tensor& bytes, c10::Device device) {
  const auto* data = reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>());
  InputArchive archive;
  archive.load_from(data, static_cast<std::size_t>(bytes.numel()), device);
  return archive;
}

c10::Device device_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    if (!group.params().empty()) return group.params().front().device();
  return c10::kCPU;
}

// Moments have the parameter's shape. LBFGS keeps flat vectors instead.
void check_moments(InputArchive& states, const std::string& key, const at::Tensor& parameter) {
  InputArchive state;
  if (!states.try_read(key, state)) return;
  for (const char* name : {"momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq",
                           "square_avg", "grad_avg", "sum"}) {
    c10::IValue value;
    if (!state.try_read(name, value) || !value.isTensor() || !value.toTensor().defined()) continue;
    if (value.toTensor().sizes() != parameter.sizes())
      refuse_archive("the optimizer's state does not fit its parameter",
                     c10::str(name, " ", value.toTensor().sizes()),
                     c10::str("the parameter's shape, ", parameter.sizes()));
  }
}

void check_content(ArchiveContent& found, const ArchiveContent& own,
                   const torch::optim::Optimizer& optimizer, const ParameterMatch& match) {
  const std::vector<at::Tensor> parameters = optim::parameters_of(optimizer);
  auto now = match.now.begin();
  if (found.groups.size() != own.groups.size())
    refuse_archive("the optimizer's state has another number of parameter groups",
                   std::to_string(found.groups.size()), std::to_string(own.groups.size()));
  for (std::size_t g = 0; g < own.groups.size(); ++g) {
    const ArchiveGroup& group = found.groups[g];
    if (group.parameters.size() != own.groups[g].parameters.size())
      refuse_archive("the optimizer's state has another number of parameters",
                     c10::str(group.parameters.size(), " in group ", g),
                     std::to_string(own.groups[g].parameters.size()));
    if (group.options != own.groups[g].options)
      refuse_archive("the state is that of another optimizer", c10::Join(", ", group.options),
                     "the options " + c10::Join(", ", own.groups[g].options));
    for (const std::string& key : group.parameters)
      check_moments(found.states, key, parameters[*now++]);
  }
}

/// The bytes that torch::save writes of an optimizer, uint8, (bytes), on the CPU. Throws UsageError
/// for a state that LibTorch cannot save.
at::Tensor archive_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream text;
  const SavableLbfgs savable(optimizer);
  try {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to(text);
  } catch (const c10::Error& error) {
    refuse({.where = kCapture,
            .what = "LibTorch cannot save the state of this optimizer",
            .seen = error.what_without_backtrace(),
            .advice = "save the weights alone, or train with another optimizer"});
  }
  const std::string bytes = text.str();
  at::Tensor archive = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(archive.mutable_data_ptr<std::uint8_t>(), bytes.data(), bytes.size());
  return archive;
}

/// The state of parameter i belongs to parameter now[i].
void hand_out_states(torch::optim::Optimizer& optimizer, const std::vector<std::size_t>& now) {
  const std::vector<at::Tensor> parameters = optim::parameters_of(optimizer);
  std::vector<std::unique_ptr<torch::optim::OptimizerParamState>> states(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
    if (found != optimizer.state().end()) states[now[i]] = std::move(found->second);
  }
  optimizer.state().clear();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (states[i]) optimizer.state()[parameters[i].unsafeGetTensorImpl()] = std::move(states[i]);
}

/// Checks such an archive against the optimizer: groups, numbers of parameters, names of options,
/// shapes of moments. The function that it returns loads it, to the device of the optimizer's first
/// parameter. LibTorch's own load checks less, and throws in the middle; it is by number, and
/// states are handed to the parameters of their names afterwards. Throws UsageError for an archive
/// that does not fit, and changes nothing.
std::function<void()> prepare_archive(const at::Tensor& archive, torch::optim::Optimizer& optimizer,
                                      const ParameterMatch& match) {
  if (archive.scalar_type() != at::kByte || archive.dim() != 1)
    refuse_archive("the archive of an optimizer is not bytes", archive.toString(),
                   "uint8, (bytes)");
  const at::Tensor bytes = archive.cpu().contiguous().clone();
  try {
    InputArchive saved = opened(bytes, c10::kCPU);
    InputArchive now = opened(archive_of(optimizer), c10::kCPU);
    ArchiveContent found = content_of(saved);
    check_content(found, content_of(now), optimizer, match);
  } catch (const c10::Error& error) {
    refuse_archive("the archive is not that of an optimizer", error.what_without_backtrace(),
                   "what capture() wrote of one");
  }
  return [bytes, &optimizer, match] {
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
    for (const auto& group : optimizer.param_groups()) options.push_back(group.options().clone());
    optimizer.state().clear();
    InputArchive saved = opened(bytes, device_of(optimizer));
    optimizer.load(saved);
    undefine_empty_lbfgs(optimizer);
    hand_out_states(optimizer, match.now);
    for (std::size_t g = 0; !match.same_groups && g < options.size(); ++g)
      optimizer.param_groups()[g].set_options(std::move(options[g]));
  };
}

/// demi's state under the present numbers of its parameters. Scheduled rates are dropped if groups
/// hold other parameters.
NamedTensors renumbered(NamedTensors saved, const ParameterMatch& match) {
  NamedTensors state;
  for (auto& [name, tensor] : saved) {
    const std::size_t dot = name.find('.');
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    const bool is_parameters = error == std::errc() && end == name.data() + dot;
    if (is_parameters && number < match.now.size())
      state[std::to_string(match.now[number]) + name.substr(dot)] = std::move(tensor);
    else if (match.same_groups || !name.starts_with("scheduled_rates."))
      state[name] = std::move(tensor);
  }
  return state;
}

bool has_16_bits(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool is_of(const NamedTensors& state, std::size_t parameter, const char* name) {
  return state.contains(std::to_string(parameter) + "." + name);
}

/// The weight and its remainder belong together. For a parameter of another dtype they become a
/// master and its copy, which every precision can load.
void join_remainders(NamedTensors& model, NamedTensors& state,
                     const torch::optim::Optimizer& optimizer, const ParameterMatch& match) {
  const std::vector<at::Tensor> parameters = optim::parameters_of(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto weight = model.find(match.names[i]);
    if (weight == model.end() || !is_of(state, i, optim::kRemainder) ||
        weight->second.scalar_type() == parameters[i].scalar_type())
      continue;
    const std::string prefix = std::to_string(i) + ".";
    const at::Tensor remainder = state.extract(prefix + optim::kRemainder).mapped();
    const at::Tensor master = optim::converted_weight(weight->second, remainder).to(at::kFloat);
    state[prefix + "master"] = master;
    weight->second = master;
  }
}

/// A master is the weight, and the 16-bit weight its rounded copy: which of them a checkpoint holds
/// depends on the precision that it was saved in.
void exchange_masters(NamedTensors& model, NamedTensors& state,
                      const torch::optim::Optimizer& optimizer, const ParameterMatch& match) {
  const std::vector<at::Tensor> parameters = optim::parameters_of(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto weight = model.find(match.names[i]);
    if (weight == model.end()) continue;
    const std::string prefix = std::to_string(i) + ".", name = prefix + "master";
    const auto master = state.find(name);
    if (master != state.end() && !has_16_bits(parameters[i])) {
      weight->second = std::move(master->second);
      state.erase(master);
    } else if (master != state.end() &&
               weight->second.scalar_type() != parameters[i].scalar_type()) {
      weight->second = master->second;  // what it is rounded from once, not twice
    } else if (const auto first = state.lower_bound(prefix);
               master == state.end() && !is_of(state, i, optim::kRemainder) &&
               has_16_bits(parameters[i]) && first != state.end() &&
               first->first.starts_with(prefix)) {
      state[name] = weight->second.to(at::kFloat);
    }
  }
}

}  // namespace

void capture_optimizer(const torch::optim::Optimizer& optimizer, const std::string& part,
                       const torch::nn::Module& module, const std::vector<at::Tensor>& more,
                       Checkpoint& to) {
  to.parameters[part] = parameter_names(optimizer, module, more);
  to.text["demi." + part] = kind_of_optimizer(optimizer);
  const auto* ours = dynamic_cast<const optim::Optimizer*>(&optimizer);
  if (!ours) {
    to.state[archive_name(part)] = archive_of(optimizer);
    return;
  }
  if (!ours->has_whole_state())
    refuse({.where = kCapture,
            .what = "the state of the " + part + " is shared by several processes",
            .seen = "the part of this process",
            .accepted = "the whole state",
            .advice = "call ShardedOptimizerState::consolidate() on every rank first"});
  for (const auto& [name, tensor] : ours->state_tensors())
    to.state[part + "/" + name] = tensor.detach();
  const std::vector<StateDict> groups = ours->group_numbers();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    to.numbers[group_name(part, g)] = groups[g];
    // Python's optimizers need it.
    to.numbers[part]["parameters." + std::to_string(g)] =
        static_cast<double>(optimizer.param_groups()[g].params().size());
  }
}

bool has_optimizer(const Checkpoint& checkpoint, const std::string& part) {
  const auto first = checkpoint.state.lower_bound(part + "/");
  return first != checkpoint.state.end() && first->first.starts_with(part + "/");
}

std::function<void()> prepare_optimizer(Checkpoint& checkpoint, const std::string& part,
                                        torch::optim::Optimizer& optimizer,
                                        const ParameterMatch& match) {
  check_kind(checkpoint, part, optimizer);
  auto* ours = dynamic_cast<optim::Optimizer*>(&optimizer);
  if (!ours)
    return prepare_archive(checkpoint.state.extract(archive_name(part)).mapped(), optimizer, match);
  NamedTensors state = renumbered(take_part(checkpoint.state, part + "/"), match);
  if (!ours->is_strict()) {  // else the optimizer refuses what is not in its own form
    join_remainders(checkpoint.model, state, optimizer, match);
    exchange_masters(checkpoint.model, state, optimizer, match);
  }
  return ours->prepare_state(
      std::move(state), match.same_groups ? groups_of(checkpoint, part) : std::vector<StateDict>());
}

}  // namespace demi::checkpoint
