#include "demi/optim/replace_parameter.h"

#include <torch/types.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/kernels/rule_info.h"
#include "demi/optim/optimizer.h"
#include "demi/optim/optimizer_impl.h"
#include "demi/optim/saved_state.h"
#include "demi/step/coded_state.h"
#include "demi/step/member.h"
#include "demi/step/state_check.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/replacement_notice.h"

namespace demi::optim {
namespace {

using tensor::gathered;
using tensor::Replacement;

constexpr auto kReplace = "optim.replace_parameter";

std::string shape_of(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

void check_tensors(const at::Tensor& old, const at::Tensor& by) {
  for (const at::Tensor& one : {old, by})
    if (!one.defined())
      refuse({.where = kReplace,
              .what = "a parameter is undefined",
              .accepted = "the parameter that the optimizer has, and the one in its place"});
  if (by.scalar_type() != old.scalar_type())
    refuse({.where = kReplace,
            .what = "the new parameter has another dtype",
            .seen = tensor::name_of(by.scalar_type()),
            .accepted = tensor::name_of(old.scalar_type()),
            .advice = "replace it first, and convert the module then"});
  if (by.device() != old.device())
    refuse({.where = kReplace,
            .what = "the new parameter is on another device",
            .seen = by.device().str(),
            .accepted = old.device().str(),
            .advice = "move it to the old one's device before it is registered"});
  if (old.dim() == 0 || by.dim() != old.dim() || by.sizes().slice(1) != old.sizes().slice(1))
    refuse({.where = kReplace,
            .what = "the new parameter differs in more than its number of rows",
            .seen = shape_of(by),
            .accepted = "the shape " + shape_of(old) + " with another first dimension",
            .advice = "a tensor with other dimensions is a parameter of its own: add_param_group"});
  if (!by.is_leaf() || (old.requires_grad() && !by.requires_grad()))
    refuse({.where = kReplace,
            .what = "the new parameter gets no gradient",
            .seen = by.is_leaf() ? "requires_grad is off" : "a tensor on a graph",
            .accepted = "a leaf with requires_grad",
            .advice = "make it under torch::NoGradGuard and call requires_grad_()"});
}

/// `rows`, checked, on the old parameter's device.
at::Tensor checked(const at::Tensor& rows, const at::Tensor& old, const at::Tensor& by) {
  const std::string accepted = c10::str("int64, (", by.size(0), ")");
  if (!rows.defined() || rows.scalar_type() != at::kLong || rows.dim() != 1 ||
      rows.numel() != by.size(0))
    refuse({.where = kReplace,
            .what = "rows do not name one row of the old parameter for each of the new one",
            .seen = rows.defined() ? tensor::name_of(rows.scalar_type()) + ", " + shape_of(rows)
                                   : "an undefined tensor",
            .accepted = accepted,
            .advice = "give the old row of each, and -1 for a new one"});
  if (rows.numel() > 0) {
    const auto [least, greatest] = rows.aminmax();
    const auto low = least.item<int64_t>(), high = greatest.item<int64_t>();
    if (low < -1 || high >= old.size(0))
      refuse({.where = kReplace,
              .what = "rows are out of range",
              .seen = std::to_string(low < -1 ? low : high),
              .accepted = c10::str("0 to ", old.size(0) - 1, ", and -1 for a new row"),
              .advice = "count rows as the old parameter has them"});
  }
  return rows.to(old.device());
}

/// The parameter's place among the groups.
struct Place {
  std::size_t group = 0, index = 0;
};

Place place_of(const Optimizer& optimizer, const at::Tensor& old, const at::Tensor& by) {
  std::optional<Place> place;
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& parameters = groups[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].is_same(old)) place = Place{g, i};
      if (parameters[i].is_same(by))
        refuse({.where = kReplace,
                .what = "the optimizer has the new parameter already",
                .seen = "shape " + shape_of(by),
                .accepted = "a tensor of its own in the old one's place",
                .advice = "call it once for each optimizer and parameter"});
    }
  }
  if (!place)
    refuse({.where = kReplace,
            .what = "the optimizer does not have the old parameter",
            .seen = "shape " + shape_of(old),
            .accepted = "one of param_groups()",
            .advice = "keep the old tensor until the call; the module has the new one then"});
  return *place;
}

/// The elements of a 16-bit parameter whose values are the old row's.
at::Tensor is_old_value(const Replacement& replacement) {
  const at::Tensor nan = at::full({}, NAN, replacement.old.options().requires_grad(false));
  return gathered(replacement, replacement.old.detach(), nan) == replacement.by.detach();
}

/// The state of the new parameter, of a group with these numbers.
std::unique_ptr<ParamState> gathered_state(const Replacement& replacement, ParamState from,
                                           const kernels::Group& group, Moments moments) {
  const at::Tensor &old = replacement.old, &by = replacement.by;
  const kernels::UpdateRule rule = group.rule;
  check_state(from, old, rule);
  auto to = std::make_unique<ParamState>();
  to->step = from.step;
  const std::uint32_t coded = states_coded(by, group, moments);
  std::uint32_t bit = 1;
  for (const kernels::State& one : kernels::info_of(rule).states) {
    const bool is_coded = (coded & bit) != 0;
    bit <<= 1;
    at::Tensor values = decoded(from, one.name);
    if (!values.defined()) continue;
    if (one.form == kernels::StateForm::array)
      values = gathered(replacement, values,
                        at::full({}, kernels::initial_of(rule, one, group), values.options()));
    if (is_coded)
      keep_coded(*to, one.name, codec_for(one, moments, by), values, by);
    else
      (*to)[one.name] = values;
  }
  if (!from.master.defined() && !from.remainder.defined()) return to;
  const at::Tensor is_old = is_old_value(replacement);
  const at::Tensor zero = at::zeros({}, old.options().requires_grad(false));
  if (from.master.defined())
    to->master = at::where(is_old, gathered(replacement, from.master, zero),
                           by.detach().to(from.master.scalar_type()));
  if (from.remainder.defined()) {
    const at::Tensor rest = gathered(replacement, from.remainder, zero);
    const at::Tensor bits = rest.scalar_type() == at::kUInt16 ? rest.view(at::kShort) : rest;
    to->remainder = at::where(is_old, bits, at::zeros_like(bits)).view(rest.scalar_type());
  }
  return to;
}

}  // namespace

void replace_parameter(Optimizer& optimizer, const at::Tensor& old, const at::Tensor& replacement,
                       const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  auto& impl = optimizer.impl();
  impl.require_unshared("replace_parameter");
  check_tensors(old, replacement);
  const Place place = place_of(optimizer, old, replacement);
  const Replacement one{old, replacement, checked(rows, old, replacement)};
  auto& group = optimizer.param_groups()[place.group];

  const kernels::Group numbers = impl.groups().numbers[place.group];  // checks those of all
  std::vector<at::Tensor> all = parameters_of(optimizer);
  for (at::Tensor& parameter : all)
    if (parameter.is_same(old)) parameter = replacement;
  check_parameters(all);
  auto next = all.begin();
  for (const auto& each : optimizer.param_groups())
    for (std::size_t i = 0; i < each.params().size(); ++i)
      check_matrices(impl.rule_of(each.options()), each.options(), *next++);

  std::unique_ptr<ParamState> state;
  auto& states = optimizer.state();
  const auto held = states.find(old.unsafeGetTensorImpl());
  if (held != states.end() && held->second)
    if (const auto own = own_state(*held->second, impl.rule_of(group.options()), old))
      state = gathered_state(one, *own, numbers, impl.moments());
  tensor::require_replaceable(one);

  group.params()[place.index] = replacement;
  if (held != states.end()) states.erase(held);
  if (state) states[replacement.unsafeGetTensorImpl()] = std::move(state);
  impl.adopt();
  tensor::tell_of(one);
}

}  // namespace demi::optim
