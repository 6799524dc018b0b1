#include "demi/distributed/reducer.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "demi/batch_norm/synchronised_layers.h"
#include "demi/core/error.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/streams.h"

namespace demi::distributed {
namespace {

constexpr const char* kBackward = "distributed.backward";

// The dtypes that a gradient can have, in the order of their flags.
constexpr c10::ScalarType kDtypes[] = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
constexpr std::int64_t kDtypeCount = std::size(kDtypes);

std::int64_t dtype_flag(const at::Tensor& gradient) {
  const auto* found = std::find(std::begin(kDtypes), std::end(kDtypes), gradient.scalar_type());
  if (gradient.layout() != at::kStrided || found == std::end(kDtypes))
    refuse({.where = kBackward,
            .what = "a gradient cannot be sent",
            .seen = gradient.layout() != at::kStrided ? "a sparse gradient"
                                                      : tensor::name_of(gradient.scalar_type()),
            .accepted = "dense gradients of fp16, bf16, fp32 or fp64",
            .advice = "an Embedding's are dense with sparse(false)"});
  return found - std::begin(kDtypes);
}

bool is_wider(c10::ScalarType a, c10::ScalarType b) { return a != b && wider_of(a, b) != b; }

}  // namespace

Reducer::Reducer(std::vector<at::Tensor> parameters, std::vector<at::Tensor> buffers,
                 ProcessGroup& group, DistributedOptions options)
    : parameters_(std::move(parameters)),
      buffers_(std::move(buffers)),
      group_(group),
      options_(options),
      arrived_(parameters_.size()),
      accumulated_(parameters_.size()),
      active_(group.world_size()) {}

void Reducer::replace(std::size_t index, const at::Tensor& parameter) {
  const std::lock_guard lock(mutex_);
  parameters_[index] = parameter;
  accumulated_[index] = false;
  plan_ = {};  // whose buckets, flat_, are made anew with the next
}

std::shared_ptr<void> Reducer::on_gradient(std::size_t index) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  if (!synchronises_) {
    accumulated_[index] = true;
    return nullptr;
  }
  std::shared_ptr<void> first;
  if (!in_round_ || round_.expired()) {
    begin_round();
    round_ = first = std::make_shared<char>();
  }
  if (arrived_[index]) {
    late_ = true;  // a recomputed part of the model used it before
    return first;
  }
  arrived_[index] = true;
  arrivals_.push_back(index);
  if (plan_.buckets.empty()) return first;
  if (!plan_.is_sent(index)) {
    late_ = true;  // it was frozen when the plan was made
    return first;
  }
  pack(index);
  const std::size_t bucket = plan_.bucket[index];
  --missing_[bucket];
  // All ranks send in the same order. The last one waits for the round's flags.
  while (sends_early_ && sent_.size() + 1 < plan_.buckets.size() && missing_[sent_.size()] == 0)
    send(sent_.size());
  return first;
}

void Reducer::finish() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  reduced_.backward_ended = std::chrono::steady_clock::now();
  know_active();
  reduced_.planned = plan_.buckets.empty();
  if (!reduced_.planned) {
    send_rest();
    reduced_.planned = !fits_round_flags();
  }
  if (reduced_.planned) {
    agree_on_plan();
    open_buckets();
    if (!plan_.buckets.empty()) send_rest();
    wait_for_buckets();
  }
  write_averages();
  reduced_.averaged = std::chrono::steady_clock::now();
  if (!buffers_.empty()) send_buffers();
  std::fill(arrived_.begin(), arrived_.end(), false);
  std::fill(accumulated_.begin(), accumulated_.end(), false);
  arrivals_.clear();
  sent_.clear();
  in_round_ = false;
}

void Reducer::reduce() {
  {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    begin_round();
  }
  finish();
}

bool Reducer::shadow() {
  struct Joined {
    bool& has_joined;
    ~Joined() { has_joined = false; }
  } const joined{has_joined_};
  {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    has_joined_ = true;
    begin_round();
    know_active();
    if (active_ == 0) {
      in_round_ = false;
      return false;
    }
  }
  finish();
  return true;
}

// Buckets of a round that has failed may be on their way: Gloo still adds up in their memory.
void Reducer::begin_round() {
  if (in_round_)
    throw DeviceError({.where = kBackward,
                       .what = round_.expired()
                                   ? "an earlier backward failed before its gradients were averaged"
                                   : "gradients are averaged while a backward is under way",
                       .seen = "the ranks are out of step",
                       .accepted = "a backward that ends on every rank",
                       .advice = "start all ranks again and resume from the last checkpoint"});
  in_round_ = true;
  ++rounds_;
  late_ = false;
  sends_early_ = !batch_norm::has_layers(group_);
  if (options_.uneven_batches) {
    active_flags_ = at::zeros({group_.world_size()}, at::kInt);
    if (!has_joined_) active_flags_[group_.rank()] = 1;
    active_pending_ =
        group_.start_all_reduce(active_flags_, Reduction::kSum, "all_reduce of who has a batch");
  }
  if (!plan_.buckets.empty()) open_buckets();
}

void Reducer::know_active() {
  if (!active_pending_.is_under_way()) return;
  active_pending_.wait();
  const auto* flags = active_flags_.const_data_ptr<int>();
  active_ = static_cast<int>(std::count(flags, flags + group_.world_size(), 1));
  first_active_ = static_cast<int>(std::find(flags, flags + group_.world_size(), 1) - flags);
}

void Reducer::agree_on_plan() {
  const auto count = static_cast<std::int64_t>(parameters_.size());
  constexpr std::int64_t kFlags = kDtypeCount + 1;  // the last: it is trained
  const at::Tensor dtypes = at::zeros({count, kFlags}, at::kByte);
  const at::Tensor order = at::empty({count}, at::kLong);
  auto* next = order.mutable_data_ptr<std::int64_t>();
  for (const std::size_t index : arrivals_) *next++ = static_cast<std::int64_t>(index);
  // Backward reaches the parameters from the last to the first, more or less.
  for (std::int64_t index = count - 1; index >= 0; --index)
    if (!arrived_[static_cast<std::size_t>(index)]) *next++ = index;
  for (std::int64_t index = 0; index < count; ++index) {
    auto* flags = dtypes.mutable_data_ptr<std::uint8_t>() + index * kFlags;
    const at::Tensor grad = gradient(static_cast<std::size_t>(index));
    if (grad.defined()) flags[dtype_flag(grad)] = 1;
    flags[kDtypeCount] = parameters_[static_cast<std::size_t>(index)].requires_grad() ? 1 : 0;
  }
  group_.start_all_reduce(dtypes, Reduction::kMax, "all_reduce of the gradients' dtypes").wait();
  group_.start_broadcast(order, 0).wait();

  std::vector<PlannedParameter> planned;
  const auto* flags = dtypes.const_data_ptr<std::uint8_t>();
  for (const at::Tensor& p : parameters_) {
    PlannedParameter one{p.numel(), p.device(), p.scalar_type()};
    bool any = false;
    for (const c10::ScalarType dtype : kDtypes) {
      if (*flags++ == 0) continue;
      one.gradient_dtype = any ? wider_of(one.gradient_dtype, dtype) : dtype;
      any = true;
    }
    one.is_sent = *flags++ != 0 || any;
    planned.push_back(one);
  }
  const auto* indices = order.const_data_ptr<std::int64_t>();
  plan_ = plan_buckets(planned, {indices, indices + count}, options_.gradient_dtype,
                       {options_.first_bucket_bytes, options_.bucket_bytes});
  flat_.clear();
  for (const Bucket& bucket : plan_.buckets)
    flat_.push_back(at::empty({bucket.all_elements()},
                              at::TensorOptions().dtype(bucket.dtype).device(bucket.device)));
}

void Reducer::open_buckets() {
  sent_.clear();
  reduced_.sent.clear();
  missing_.clear();
  packed_on_.assign(plan_.buckets.size(), {});
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    missing_.push_back(plan_.buckets[b].parameters.size());
    flat_[b]
        .narrow(0, plan_.buckets[b].elements,
                plan_.buckets[b].all_elements() - plan_.buckets[b].elements)
        .zero_();
    note_stream(b);
  }
  // A plan that is made at the end finds all gradients there.
  for (const std::size_t index : arrivals_) {
    if (!plan_.is_sent(index)) continue;
    pack(index);
    --missing_[plan_.bucket[index]];
  }
}

at::Tensor Reducer::gradient(std::size_t index) const {
  return has_joined_ ? at::Tensor() : parameters_[index].grad();
}

// The parameter's part of its bucket, in the parameter's own layout if that has no gaps.
at::Tensor Reducer::view_of(std::size_t index) const {
  const Bucket& bucket = plan_.buckets[plan_.bucket[index]];
  const at::Tensor& parameter = parameters_[index];
  const at::Tensor part =
      flat_[plan_.bucket[index]].narrow(0, bucket.offsets[plan_.slot[index]], parameter.numel());
  return parameter.is_non_overlapping_and_dense()
             ? part.as_strided(parameter.sizes(), parameter.strides())
             : part.view(parameter.sizes());
}

// Backward may run the nodes of one bucket on several streams. Each writes after the one that
// opened the bucket; a collective follows the current one alone, so that one waits for all of them.
void Reducer::note_stream(std::size_t b) {
  const weights::CurrentStream now(flat_[b]);
  if (!now) return;
  std::vector<c10::Stream>& streams = packed_on_[b];
  if (std::find(streams.begin(), streams.end(), now.stream()) != streams.end()) return;
  if (!streams.empty()) weights::Event(now.streams(), streams.front()).block(now.stream());
  streams.push_back(now.stream());
}

void Reducer::wait_for_streams(std::size_t b) {
  const weights::CurrentStream now(flat_[b]);
  if (!now) return;
  for (const c10::Stream& stream : packed_on_[b])
    if (stream != now.stream()) weights::Event(now.streams(), stream).block(now.stream());
}

void Reducer::pack(std::size_t index) {
  note_stream(plan_.bucket[index]);
  const at::Tensor grad = gradient(index);
  const at::Tensor target = view_of(index);
  if (!grad.defined()) {
    target.zero_();
    return;
  }
  dtype_flag(grad);
  divide_into(target, grad);
  if (!is_used(index)) return;
  const std::size_t b = plan_.bucket[index];
  flat_[b].narrow(0, plan_.buckets[b].used_flag(plan_.slot[index]), 1).fill_(1);
}

// Divides in one pass if the dtype stays. Ranks that may have no batch are counted when a bucket is
// sent.
void Reducer::divide_into(const at::Tensor& target, const at::Tensor& grad) const {
  if (options_.uneven_batches || active_ == 1) {
    target.copy_(grad);
    return;
  }
  if (target.scalar_type() == grad.scalar_type()) {
    at::Tensor quotient = target;
    at::div_out(quotient, grad, at::native::wrapped_scalar_tensor(active_));
    return;
  }
  target.copy_(grad);
  target.div_(active_);
}

void Reducer::send(std::size_t b) {
  wait_for_streams(b);
  know_active();
  if (options_.uneven_batches && active_ > 1)
    flat_[b].narrow(0, 0, plan_.buckets[b].elements).div_(active_);
  reduced_.sent.push_back({flat_[b].numel() * static_cast<std::int64_t>(flat_[b].element_size()),
                           std::chrono::steady_clock::now(),
                           {}});
  sent_.push_back(group_.start_all_reduce(
      flat_[b], Reduction::kSum,
      fmt::format("all_reduce of bucket {} of {}", b + 1, plan_.buckets.size())));
}

void Reducer::send_rest() {
  for (std::size_t index = 0; index < parameters_.size(); ++index)
    if (!arrived_[index] && plan_.is_sent(index)) pack(index);
  bool wider = false, narrower = false;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor grad = gradient(index);
    if (!grad.defined()) continue;
    if (!plan_.is_sent(index)) {
      late_ = late_ || is_used(index);
      continue;
    }
    wider = wider || is_wider(grad.scalar_type(), plan_.gradient_dtype[index]);
    narrower = narrower || is_wider(plan_.gradient_dtype[index], grad.scalar_type());
  }
  const Bucket& last = plan_.buckets.back();
  const at::Tensor& flat = flat_.back();
  const auto set = [&](RoundFlag flag, bool value) {
    flat.narrow(0, last.round_flag(flag), 1).fill_(value ? 1 : 0);
  };
  set(RoundFlag::kWider, wider);
  set(RoundFlag::kNotNarrower, !narrower);
  set(RoundFlag::kLate, late_);
  while (sent_.size() < plan_.buckets.size()) send(sent_.size());
}

void Reducer::wait_for_buckets() {
  for (std::size_t b = 0; b < sent_.size(); ++b) reduced_.sent[b].ended = sent_[b].wait();
}

// Waits for all buckets. False: some rank's gradients do not fit the plan.
bool Reducer::fits_round_flags() {
  wait_for_buckets();
  const Bucket& last = plan_.buckets.back();
  const at::Tensor flags =
      flat_.back().narrow(0, last.round_flag(RoundFlag::kWider), 3).to(at::kCPU, at::kFloat);
  const auto* value = flags.const_data_ptr<float>();
  return value[0] == 0 && value[1] != 0 && value[2] == 0;
}

void Reducer::write_averages() {
  reduced_.buckets = static_cast<int>(plan_.buckets.size());
  reduced_.ranks = active_;
  reduced_.bytes = 0;
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    reduced_.bytes += reduced_.sent[b].bytes;
    const at::Tensor used =
        flat_[b]
            .narrow(0, bucket.elements, static_cast<std::int64_t>(bucket.parameters.size()))
            .to(at::kCPU, at::kFloat);
    const auto* flags = used.const_data_ptr<float>();
    for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot)
      if (flags[slot] != 0)
        write_average(bucket.parameters[slot], view_of(bucket.parameters[slot]));
  }
}

void Reducer::write_average(std::size_t index, const at::Tensor& average) {
  at::Tensor& grad = parameters_[index].mutable_grad();
  const c10::ScalarType dtype = plan_.gradient_dtype[index];
  if (grad.defined() && grad.scalar_type() == dtype) {
    grad.copy_(average);
    return;
  }
  at::Tensor written =
      at::empty_strided(average.sizes(), average.strides(), average.options().dtype(dtype));
  written.copy_(average);
  grad = written;
}

// Sends bytes, so that one broadcast serves all dtypes.
void Reducer::send_buffers() {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& buffer : buffers_)
    bytes.push_back(buffer.contiguous().reshape({-1}).view(at::kByte));
  const at::Tensor all = at::cat(bytes);
  group_.start_broadcast(all, first_active_).wait();
  if (group_.rank() == first_active_) return;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const std::int64_t size = bytes[i].numel();
    // A slice need not begin where its dtype may.
    const at::Tensor own = all.narrow(0, offset, size).clone();
    buffers_[i].copy_(own.view(buffers_[i].scalar_type()).view(buffers_[i].sizes()));
    offset += size;
  }
}

}  // namespace demi::distributed
