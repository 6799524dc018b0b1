#include "demi/step/member.h"

#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "demi/core/error.h"
#include "demi/core/huge_pages.h"
#include "demi/kernels/rule_info.h"
#include "demi/step/coded_state.h"
#include "demi/step/coded_weight.h"
#include "demi/step/state_check.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/version.h"

namespace demi::optim {
namespace {

/// A step reads five arrays side by side; with pages of 4 KiB it waits for address translation more
/// than for data.
at::Tensor on_huge_pages(at::Tensor tensor) {
  constexpr std::size_t kLeast = std::size_t{8} << 20;  // smaller ones fit into translation caches
  if (tensor.is_cpu() && tensor.nbytes() >= kLeast)
    prefer_huge_pages(tensor.const_data_ptr(), tensor.nbytes(), /*also_used=*/true);
  return tensor;
}

/// `tensor`, which is defined, in the layout and device of `work` and this dtype.
void conform_to(at::Tensor& tensor, const at::Tensor& work, c10::ScalarType dtype,
                const char* name) {
  if (tensor.sizes() != work.sizes())
    throw UsageError({.where = "optim.Optimizer",
                      .what = "loaded state does not fit its parameter",
                      .seen = std::string(name) + " of shape " + c10::str(tensor.sizes()),
                      .accepted = "the parameter's shape"});
  const bool fits = has_order_of(tensor, work) && tensor.scalar_type() == dtype &&
                    tensor.device() == work.device();
  if (!fits)
    tensor = on_huge_pages(at::empty_like(work, work.options().dtype(dtype))).copy_(tensor);
}

/// Converts the tensor to the dtype of the update's arithmetic; makes it, filled with `initial`, if
/// it is undefined.
void conform(at::Tensor& tensor, const at::Tensor& work, const char* name, float initial = 0) {
  const auto dtype = work.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (tensor.defined()) return conform_to(tensor, work, dtype, name);
  tensor = on_huge_pages(at::empty_like(work, work.options().dtype(dtype))).fill_(initial);
}

Member member_for(const at::Tensor& parameter) {
  Member member;
  member.parameter = parameter;
  member.sizes = c10::DimVector(parameter.sizes());
  member.strides = c10::DimVector(parameter.strides());
  member.dtype = parameter.scalar_type();
  member.device = parameter.device();
  return member;
}

/// Whether the parameter is still the rounded master, in any mode.
at::Tensor is_rounded(const at::Tensor& parameter, const at::Tensor& master) {
  const auto split = *codec_for(parameter, WeightMode::split);  // ties away
  const at::Tensor away = at::empty_like(parameter),
                   rest = at::empty_like(parameter,
                                         parameter.options().dtype(*remainder_dtype(split)));
  part_weight(split, master, away, rest);
  return (away == parameter).logical_or(master.to(parameter.scalar_type()) == parameter);
}

/// The weight, in FP32, of another mode's state; undefined if there is none.
at::Tensor weight_of_other_mode(const at::Tensor& parameter, ParamState& state,
                                std::optional<c10::ScalarType> own) {
  if (state.master.defined()) {
    const at::Tensor layout = at::empty_like(parameter, parameter.options().dtype(at::kFloat));
    conform_to(state.master, layout, at::kFloat, "master");
    return at::where(is_rounded(parameter, state.master), state.master, parameter.to(at::kFloat));
  }
  const at::Tensor& rest = state.remainder;
  if (!rest.defined() || rest.scalar_type() == own) return {};
  // The program has rounded a parameter of the other 16-bit format.
  if (parameter_of_remainder(rest.scalar_type()) != parameter.scalar_type()) return {};
  return joined_weight(parameter, rest);
}

/// A state of another mode may hold what fp16 does not.
void require_fp16(const at::Tensor& weight, const at::Tensor& parameter) {
  if (parameter.scalar_type() != at::kHalf || weight.numel() == 0) return;
  const at::Tensor greatest = weight.abs().nan_to_num(0, 0, 0).max();
  if (greatest.item<float>() < 65520) return;
  throw UsageError({.where = "optim.Optimizer",
                    .what = c10::str("a weight in the state of an fp16 parameter of shape ",
                                     parameter.sizes(), " is beyond fp16"),
                    .seen = c10::str(greatest.item<float>()),
                    .accepted = "magnitudes up to 65,504, and Inf and NaN",
                    .advice = "train in bf16, or with WeightMode::master"});
}

/// Brings the weight into the codec's form: makes a missing remainder or puts it into the
/// parameter's layout and device, and converts the state of another mode.
void make_coded_weight(Member& member) {
  ParamState& state = *member.state;
  const at::Tensor& parameter = member.work;
  const auto dtype = remainder_dtype(*member.codec);
  const at::Tensor weight = weight_of_other_mode(parameter, state, dtype);
  if (weight.defined()) require_fp16(weight, parameter);
  at::Tensor& rest = state.remainder;
  if (weight.defined())
    member.saved_as =
        state.master.defined() ? WeightMode::master : *mode_of_remainder(rest.scalar_type());
  state.master.reset();
  if (rest.defined() && rest.scalar_type() != dtype) rest.reset();
  if (dtype && !rest.defined())
    rest = on_huge_pages(at::zeros_like(parameter, parameter.options().dtype(*dtype)));
  if (dtype) conform_to(rest, parameter, *dtype, kRemainder);
  if (!weight.defined()) return;
  part_weight(*member.codec, weight, parameter, rest);
  const at::Tensor error = (weight_of(member) - weight).abs();
  if (error.numel() > 0) member.coding_error = error.max().item<double>();
}

/// Converts the remainder of a mode without a master, for a parameter that has a master or needs
/// none.
void take_remainder(const at::Tensor& parameter, ParamState& state) {
  if (!tensor::is_16_bit(parameter.scalar_type()))  // module->to
    parameter.detach().copy_(converted_weight(parameter, state.remainder));
  if (parameter.scalar_type() == parameter_of_remainder(state.remainder.scalar_type())) {
    state.master = joined_weight(parameter, state.remainder);
    parameter.detach().copy_(state.master);  // ties to even, as such a parameter is rounded
  }
  state.remainder.reset();
}

/// Chooses the dense array that is updated for the parameter.
void choose_target(Member& member, WeightMode mode) {
  const at::Tensor& parameter = member.parameter;
  ParamState& state = *member.state;
  const bool dense = parameter.is_non_overlapping_and_dense();
  member.codec = codec_for(parameter, mode);
  if (member.codec) {
    member.target = Target::kCoded;
    member.work = parameter.detach();
    return make_coded_weight(member);
  }
  if (state.remainder.defined()) take_remainder(parameter, state);
  if (tensor::is_16_bit(parameter.scalar_type())) {
    const bool made = state.master.defined();
    const at::Tensor layout =
        at::empty_like(parameter, parameter.options().dtype(at::kFloat).requires_grad(false));
    conform(state.master, layout, "master");
    if (!made) state.master.copy_(parameter);
    member.target = dense ? Target::kMaster : Target::kStaging;
    member.work = state.master;
    return;
  }
  state.master.reset();  // of an earlier dtype
  const bool direct = dense || parameter.scalar_type() == at::kDouble;
  member.target = direct ? Target::kParameter : Target::kStaging;
  member.work = direct ? on_huge_pages(parameter.detach())
                       : at::empty(parameter.sizes(), parameter.options().requires_grad(false));
}

/// Makes a number that decide() reads, on its device.
void make_scalar(at::Tensor& tensor, float initial, c10::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  tensor = tensor.defined() ? tensor.to(options).reshape({}) : at::full({}, initial, options);
}

/// An array that is not coded, or no more.
void make_plain(ParamState& state, const kernels::State& description, const at::Tensor& work) {
  at::Tensor values = decoded(state, description.name);
  conform(values, work, description.name, description.initial);
  state[description.name] = values;
  state.erase(scale_name(description.name));
}

bool is_as_coded(const at::Tensor& values, const at::Tensor& scales, kernels::Codec codec,
                 const at::Tensor& work) {
  const bool fits = values.defined() && codec_of(values) == codec && has_order_of(values, work) &&
                    values.device() == work.device();
  if (!has_scales(codec)) return fits;
  return fits && scales.defined() && scales.numel() == scales_of(codec, work.numel()) &&
         scales.device() == work.device();
}

void make_coded(ParamState& state, const kernels::State& description, kernels::Codec codec,
                const at::Tensor& work) {
  const char* name = description.name;
  const std::string scales = scale_name(name);
  for (const std::string& one : {std::string(name), scales})
    if (state[one].defined()) state[one] = state[one].to(work.device());
  if (is_as_coded(state[name], state[scales], codec, work)) {
    if (!has_scales(codec)) state.erase(scales);
    return;
  }
  at::Tensor values = decoded(state, name);
  conform(values, work, name, description.initial);
  state[name].reset();
  keep_coded(state, name, codec, values, work);
  on_huge_pages(state[name]);
}

/// Checks the state, and drops scales without codes: a program may put numbers in the place of
/// codes and forget their scales. Throws UsageError for a state that does not fit.
void check_and_tidy(ParamState& state, const at::Tensor& parameter, kernels::UpdateRule rule) {
  ParamState tidy = state;
  const auto tensors = state.tensors();
  for (const kernels::State& one : kernels::info_of(rule).states) {
    const auto values = std::ranges::find(tensors, one.name, [](const auto& t) { return t.first; });
    const auto codec = values != tensors.end() ? codec_of(values->second) : std::nullopt;
    if (!codec || !has_scales(*codec)) tidy.erase(scale_name(one.name));
  }
  check_state(tidy, parameter, rule);
  state = std::move(tidy);
}

void make_state_of_rule(ParamState& state, const kernels::State& description,
                        const at::Tensor& work, c10::Device counter,
                        std::optional<kernels::Codec> codec) {
  // Also if the state is added later: SGD's buffer starts as the first gradient that it gets.
  if (description.begins_count && !state[description.name].defined()) state.step.zero_();
  if (description.form == kernels::StateForm::scalar)
    make_scalar(state[description.name], description.initial, counter);
  else if (codec)
    make_coded(state, description, *codec, work);
  else
    make_plain(state, description, work);
}

c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// Neither written to nor moved since the step wrote it.
bool is_as_written(const Member& member) {
  return version_of(member.parameter) == member.written.version &&
         data_of(member.parameter) == member.written.data &&
         member.written.storage._unsafe_get_target() == memory_of(member.parameter);
}

}  // namespace

std::uint32_t states_coded(const at::Tensor& parameter, const kernels::Group& group,
                           Moments moments) {
  const bool fits = moments != Moments::fp32 && parameter.scalar_type() != at::kDouble &&
                    parameter.numel() >= kLeastCoded;
  return fits ? kernels::states_coded(group.rule, group) : 0;
}

Member make_member(const at::Tensor& parameter, ParamState& state, const kernels::Group& group,
                   const Backend& backend, const StepOptions& options) {
  const at::NoGradGuard no_grad;
  const kernels::UpdateRule rule = group.rule;
  check_and_tidy(state, parameter, rule);
  Member member = member_for(parameter);
  member.state = &state;
  choose_target(member, options.weight_mode);
  const at::Tensor like = at::empty({0}, member.work.options().dtype(arithmetic_of(member)));
  const bool counted_on_device = backend.kernels_for(like, options.path).device;
  const c10::Device counter = counted_on_device ? member.work.device() : c10::Device(at::kCPU);
  if (counted_on_device && !state.step.defined()) require_no_capture(backend, counter);
  state.step = state.step.defined() ? state.step.to(counter, at::kLong).reshape({})
                                    : at::zeros({}, at::TensorOptions(counter).dtype(at::kLong));
  const std::uint32_t kept = kernels::states_kept(rule, group);
  const std::uint32_t coded = states_coded(parameter, group, options.moments);
  std::uint32_t bit = 1;
  for (kernels::State one : kernels::info_of(rule).states) {
    one.initial = kernels::initial_of(rule, one, group);
    std::optional<kernels::Codec> codec;
    if ((coded & bit) != 0) codec = codec_for(one, options.moments, member.work);
    if ((kept & bit) != 0) make_state_of_rule(state, one, member.work, counter, codec);
    bit <<= 1;
  }
  return member;
}

Member make_measured_member(const at::Tensor& parameter) {
  Member member = member_for(parameter);
  member.target = Target::kNone;
  member.work = parameter.detach();
  return member;
}

c10::ScalarType arithmetic_of(const Member& member) {
  return member.work.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor weight_of(const Member& member) {
  if (remainder_dtype(*member.codec))
    return joined_weight(member.parameter, member.state->remainder);
  return member.parameter.detach().to(at::kFloat);
}

void put_weight(Member& member, const at::Tensor& fp32, const kernels::RoundingKey& key) {
  part_weight(*member.codec, fp32, member.parameter, member.state->remainder, key);
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor::version_of(*tensor.unsafeGetTensorImpl());
}

const void* data_of(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided ? tensor.const_data_ptr() : nullptr;
}

std::uint64_t arrivals_of(const Member& member) {
  return member.arrivals ? member.arrivals->load(std::memory_order_relaxed) : 0;
}

bool is_unchanged(const HeldGradient& held, const at::Tensor& gradient) {
  return gradient.is_same(held.gradient) && data_of(gradient) == held.data &&
         version_of(gradient) == held.version;
}

bool is_still_there(const Member& member, const at::Tensor& gradient) {
  const HeldGradient& held = member.held;
  if (!held.gradient.defined() || !gradient.is_same(held.gradient)) return false;
  return arrivals_of(member) == held.arrivals || version_of(gradient) == held.version;
}

UnscaledGradient::UnscaledGradient(const at::Tensor& gradient, std::uint64_t so_far)
    : tensor(gradient.getIntrusivePtr()), arrivals(so_far) {
  if (!gradient.defined()) return;
  version = version_of(gradient);
  divided = !tensor::is_16_bit(gradient.scalar_type());
}

bool UnscaledGradient::is(const at::Tensor& gradient) const {
  return tensor._unsafe_get_target() == gradient.unsafeGetTensorImpl();
}

void refresh_master(Member& member) {
  if (!tensor::is_16_bit(member.parameter.scalar_type()) || is_as_written(member)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor same = member.work.to(member.parameter.scalar_type()) == member.parameter;
  member.work.copy_(at::where(same, member.work, member.parameter.to(at::kFloat)));
}

void note_as_written(Member& member) {
  member.written.version = version_of(member.parameter);
  member.written.data = data_of(member.parameter);
  c10::StorageImpl* storage = memory_of(member.parameter);
  if (member.written.storage._unsafe_get_target() != storage)
    member.written.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
}

}  // namespace demi::optim
