#include "demi/checkpoint/optimizer_state.h"

#include <c10/util/Type.h>

#include <string_view>
#include <typeinfo>
#include <vector>

#include "demi/checkpoint/optimizer_archive.h"
#include "demi/checkpoint/prepared_state.h"
#include "demi/core/error.h"
#include "demi/optim/optimizer.h"

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
  throw UsageError({.where = kRestore,
                    .what = "the state of the " + part + " is that of another optimizer",
                    .seen = saved != checkpoint.text.end() ? saved->second
                            : saved_ours                   ? "one of demi's"
                                                           : "one of LibTorch's",
                    .accepted = kind,
                    .advice = "make the optimizer that the checkpoint was saved with"});
}

}  // namespace

void capture_optimizer(const torch::optim::Optimizer& optimizer, const std::string& part,
                       Checkpoint& to) {
  to.text["demi." + part] = kind_of_optimizer(optimizer);
  const auto* ours = dynamic_cast<const optim::Optimizer*>(&optimizer);
  if (!ours) {
    to.state[archive_name(part)] = archive_of(optimizer);
    return;
  }
  if (!ours->has_whole_state())
    throw UsageError({.where = kCapture,
                      .what = "the state of the " + part + " is shared by several processes",
                      .seen = "the part of this process",
                      .accepted = "the whole state",
                      .advice = "call ShardedOptimizerState::consolidate() on every rank first"});
  for (const auto& [name, tensor] : ours->state_tensors())
    to.state[part + "/" + name] = tensor.detach();
  const std::vector<StateDict> groups = ours->group_numbers();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    to.numbers[group_name(part, g)] = groups[g];
    // Python's optimizers want to know it.
    to.numbers[part]["parameters." + std::to_string(g)] =
        static_cast<double>(optimizer.param_groups()[g].params().size());
  }
}

bool has_optimizer(const Checkpoint& checkpoint, const std::string& part) {
  const auto first = checkpoint.state.lower_bound(part + "/");
  return first != checkpoint.state.end() && first->first.starts_with(part + "/");
}

std::function<void()> prepare_optimizer(Checkpoint& checkpoint, const std::string& part,
                                        torch::optim::Optimizer& optimizer) {
  check_kind(checkpoint, part, optimizer);
  if (auto* ours = dynamic_cast<optim::Optimizer*>(&optimizer))
    return ours->prepare_state(take_part(checkpoint.state, part + "/"),
                               groups_of(checkpoint, part));
  return prepare_archive(checkpoint.state.extract(archive_name(part)).mapped(), optimizer);
}

}  // namespace demi::checkpoint
