#include "demi/step/make_tables.h"

#include <torch/types.h>

#include <algorithm>
#include <tuple>

#include "demi/step/device_plan.h"

namespace demi::optim {
namespace {

/// Members of one rule in a row, so that a device launches each rule once, and of one shape if
/// their group's matrices are multiplied together.
std::vector<GroupedMember> by_rule(std::vector<GroupedMember> members, const Groups& groups) {
  const auto key = [&](const GroupedMember& one) {
    const auto g = static_cast<std::size_t>(one.group);
    const bool is_batched = !groups.matrices.empty() && groups.matrices[g].batched;
    return std::tuple(groups.numbers[g].rule, is_batched ? one.group : -1,
                      is_batched ? one.member.sizes : c10::DimVector(),
                      is_batched ? one.member.strides : c10::DimVector());
  };
  std::ranges::stable_sort(
      members, [&](const GroupedMember& a, const GroupedMember& b) { return key(a) < key(b); });
  return members;
}

}  // namespace

std::vector<TensorTable> make_tables(const std::vector<GroupedMember>& grouped,
                                     const Groups& groups, const Backend& backend,
                                     std::optional<kernels::Path> path, DeviceStates& states) {
  using Key = std::tuple<int, int, bool>;  // device type and index, kernels of ours
  std::map<Key, std::pair<std::vector<Member>, std::vector<int>>> parts;
  for (const auto& [member, group] : by_rule(grouped, groups)) {
    const auto device = member.work.device();
    const at::Tensor like = at::empty({0}, member.work.options().dtype(arithmetic_of(member)));
    const bool ours = static_cast<bool>(backend.kernels_for(like, path));
    auto& [members, group_of] = parts[{static_cast<int>(device.type()), device.index(), ours}];
    members.push_back(member);
    group_of.push_back(group);
  }
  std::vector<TensorTable> tables;
  std::size_t first = 0;
  for (auto& [key, part] : parts) {
    auto& [members, group_of] = part;
    const at::Tensor work = members.front().work;
    const at::Tensor like = at::empty({0}, work.options().dtype(arithmetic_of(members.front())));
    const TableKernels kernels = backend.kernels_for(like, path);
    at::Tensor state;
    if (kernels.device) {
      at::Tensor& known = states[{std::get<0>(key), std::get<1>(key)}];
      if (!known.defined()) {
        require_no_capture(backend, work.device());
        known = make_state(work.device());
      }
      state = known;
    }
    const std::size_t count = members.size();
    tables.emplace_back(first, kernels, std::move(members), group_of, groups, state);
    first += count;
  }
  return tables;
}

}  // namespace demi::optim
