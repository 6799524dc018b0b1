#include "demi/distributed/distributed_data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <unordered_set>
#include <utility>

#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/core/version.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/reducer.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/replaced_parameter.h"

namespace demi::distributed {
namespace {

namespace autograd = torch::autograd;

constexpr const char* kParallel = "distributed.DistributedDataParallel";

/// Runs when the gradient of one parameter is complete. LibTorch has one such hook a tensor, so
/// this one calls the one that was there.
class GradientHook final : public autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<Reducer> reducer, std::size_t index,
               std::unique_ptr<autograd::PostAccumulateGradHook> before)
      : reducer_(std::move(reducer)), index_(index), before_(std::move(before)) {}

  void operator()(const autograd::Variable& parameter) override {
    if (before_) (*before_)(parameter);
    const std::shared_ptr<Reducer> reducer = reducer_.lock();
    if (!reducer) return;
    const std::shared_ptr<void> round = reducer->on_gradient(index_);
    if (!round) return;
    autograd::Engine::get_default_engine().queue_callback([weak = reducer_, round] {
      if (const std::shared_ptr<Reducer> alive = weak.lock()) alive->finish();
    });
  }

  std::unique_ptr<autograd::PostAccumulateGradHook> release_before() { return std::move(before_); }

 private:
  std::weak_ptr<Reducer> reducer_;
  std::size_t index_;
  std::unique_ptr<autograd::PostAccumulateGradHook> before_;
};

std::string line_of(const char* kind, const std::string& name, const at::Tensor& tensor) {
  return fmt::format("{} {}: {} ({}), strides ({}){}\n", kind, name,
                     tensor::name_of(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     fmt::join(tensor.strides(), ", "), tensor.requires_grad() ? ", trained" : "");
}

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

Weights parameters_of(const torch::nn::Module& model, const std::vector<at::Tensor>& more) {
  Weights all;
  for (const auto& parameter : model.named_parameters())
    all.emplace_back(parameter.key(), parameter.value());
  for (std::size_t i = 0; i < more.size(); ++i)
    all.emplace_back(fmt::format("{} outside of the model", i), more[i]);
  return all;
}

std::string description(const torch::nn::Module& model, const Weights& parameters,
                        const DistributedOptions& options) {
  std::string text = fmt::format("demi {}\n", version());
  text += fmt::format("bucket_bytes {}, first_bucket_bytes {}\n", options.bucket_bytes,
                      options.first_bucket_bytes);
  text +=
      fmt::format("gradient_dtype {}\n",
                  options.gradient_dtype ? tensor::name_of(*options.gradient_dtype) : "their own");
  text += fmt::format("broadcast_buffers {}\n", options.broadcast_buffers);
  text += fmt::format("same_weights {}\n", options.same_weights);
  text += fmt::format("uneven_batches {}\n", options.uneven_batches);
  text += fmt::format("compare_weights {}\n", options.compare_weights);
  for (const auto& [name, parameter] : parameters) text += line_of("parameter", name, parameter);
  for (const auto& buffer : model.named_buffers())
    text += line_of("buffer", buffer.key(), buffer.value());
  return text;
}

std::uint32_t checksum(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.detach().cpu().contiguous();
  return crc32c(bytes.const_data_ptr(), bytes.nbytes());
}

std::string checksums_of(const Weights& parameters) {
  std::string text;
  for (const auto& [name, parameter] : parameters)
    text += fmt::format("parameter {}: checksum {:08x}\n", name, checksum(parameter));
  return text;
}

std::string weights_of(const torch::nn::Module& model, const Weights& parameters) {
  std::string text = checksums_of(parameters);
  for (const auto& buffer : model.named_buffers())
    text += fmt::format("buffer {}: checksum {:08x}\n", buffer.key(), checksum(buffer.value()));
  return text;
}

void check(const DistributedOptions& options) {
  if (options.bucket_bytes < 1 || options.first_bucket_bytes < 1)
    refuse({.where = kParallel,
            .what = "a bucket has no size",
            .seen = fmt::format("bucket_bytes {}, first_bucket_bytes {}", options.bucket_bytes,
                                options.first_bucket_bytes),
            .accepted = "1 byte or more",
            .advice = "leave it out for the default"});
  if (options.gradient_dtype && *options.gradient_dtype != at::kFloat &&
      *options.gradient_dtype != at::kHalf && *options.gradient_dtype != at::kBFloat16)
    refuse({.where = kParallel,
            .what = "gradients cannot travel in this dtype",
            .seen = tensor::name_of(*options.gradient_dtype),
            .accepted = "fp32, bf16, fp16",
            .advice = "leave it out to send each gradient in its own"});
}

/// Ranks that begin with different weights mean as a rule that one of them has another seed or has
/// not loaded what the others have.
void compare_weights(const std::string& text, ProcessGroup& group,
                     const DistributedOptions& options) {
  if (options.same_weights) return group.require_same("the initial weights", text);
  const auto found = group.compare(text);
  if (found.empty() || group.rank() != 0) return;
  std::string name;
  std::size_t first = std::string::npos;  // in the model's order
  std::vector<int> ranks;
  for (const auto& one : found) {
    ranks.push_back(one.rank);
    const std::size_t place = text.find(one.line_of_rank_0);
    if (place >= first) continue;
    first = place;
    name = one.line_of_rank_0.substr(0, one.line_of_rank_0.rfind(": checksum"));
  }
  TORCH_WARN("[", kParallel, "] the initial weights of rank", ranks.size() == 1 ? " " : "s ",
             fmt::format("{}", fmt::join(ranks, ", ")), " differ from those of rank 0, first in ",
             name, "; rank 0's are used. Give all ranks the same seed and files; with ",
             "DistributedOptions::same_weights it is an error");
}

bool can_be_sent(const at::Tensor& parameter) { return parameter.is_cpu() || parameter.is_cuda(); }

// Parameters that can be trained. Frozen ones, too: they may be trained later.
std::vector<at::Tensor> trainable(const Weights& named, bool alone) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const at::TensorImpl*> seen;  // tied weights
  bool trains = false;
  for (const auto& [name, parameter] : named) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const bool can_be = parameter.is_floating_point() && (alone || can_be_sent(parameter));
    if (!can_be && parameter.requires_grad())
      refuse({.where = kParallel,
              .what = "a parameter cannot be trained on several ranks",
              .seen = fmt::format("{}: {} on {}", name, tensor::name_of(parameter.scalar_type()),
                                  parameter.device().str()),
              .accepted = "fp16, bf16, fp32 and fp64 on the CPU or a CUDA device",
              .advice = "move the model there, as Gloo and NCCL send these alone"});
    trains = trains || parameter.requires_grad();
    if (can_be) parameters.push_back(parameter);
  }
  if (!trains)
    refuse({.where = kParallel,
            .what = "the model has nothing to train",
            .seen = "no parameter requires a gradient",
            .accepted = "one or more",
            .advice = "a model without parameters needs no gradients"});
  return parameters;
}

// Writes with copy_(), which everything that watches the tensor notices. c10d writes through a
// pointer.
void become_rank_0s(const at::Tensor& tensor, ProcessGroup& group) {
  if (tensor.numel() == 0) return;
  const at::Tensor sent = tensor.detach().clone(at::MemoryFormat::Contiguous);
  group.start_broadcast(sent, 0).wait();
  if (group.rank() != 0) tensor.detach().copy_(sent);
}

}  // namespace

void broadcast_weights(torch::nn::Module& model, ProcessGroup& group) {
  if (group.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) become_rank_0s(parameter, group);
  for (const at::Tensor& buffer : model.buffers()) become_rank_0s(buffer, group);
}

struct DistributedDataParallel::Impl final : tensor::ReplacementObserver {
  ProcessGroup& group;
  DistributedOptions options;
  Weights named;
  std::vector<at::Tensor> parameters;
  std::shared_ptr<Reducer> reducer;
  std::vector<autograd::PostAccumulateGradHook*> hooks;  // by parameter; none for one rank

  Impl(ProcessGroup& of, const DistributedOptions& with, const Weights& all)
      : group(of), options(with), named(all), parameters(trainable(all, of.world_size() == 1)) {
    for (const auto& [name, parameter] : named) observe(parameter);
  }
  void add_hook(std::size_t index) {
    auto& slot = autograd::impl::post_acc_grad_hooks(parameters[index]);
    auto hook = std::make_unique<GradientHook>(reducer, index, std::move(slot));
    hooks[index] = hook.get();
    autograd::impl::set_post_acc_grad_hooks(parameters[index], std::move(hook));
  }
  // A hook that other code wrapped stays.
  void remove_hook(std::size_t index) {
    auto& slot = autograd::impl::post_acc_grad_hooks(parameters[index]);
    if (slot.get() != hooks[index]) return;
    auto before = static_cast<GradientHook*>(hooks[index])->release_before();
    autograd::impl::set_post_acc_grad_hooks(parameters[index], std::move(before));
  }
  void add_hooks() {
    hooks.resize(parameters.size());
    for (std::size_t index = 0; index < parameters.size(); ++index) add_hook(index);
  }
  ~Impl() override {
    for (std::size_t index = 0; index < hooks.size(); ++index) remove_hook(index);
  }

  void require_replaceable(const tensor::Replacement& replacement) const override;
  void replace(const tensor::Replacement& replacement) override;
};

// Ranks that replace otherwise would train apart, or send buckets of other sizes.
void DistributedDataParallel::Impl::require_replaceable(
    const tensor::Replacement& replacement) const {
  if (group.world_size() == 1) return;
  std::string text;
  for (const auto& [name, parameter] : named)
    if (parameter.is_same(replacement.old)) text += line_of("replaced", name, replacement.by);
  text += fmt::format("its values: checksum {:08x}\nits rows: checksum {:08x}\n",
                      checksum(replacement.by), checksum(replacement.rows));
  group.require_same("a replaced parameter", text);
}

void DistributedDataParallel::Impl::replace(const tensor::Replacement& replacement) {
  for (auto& [name, parameter] : named)
    if (parameter.is_same(replacement.old)) parameter = replacement.by;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (!parameters[index].is_same(replacement.old)) continue;
    if (!hooks.empty()) remove_hook(index);
    parameters[index] = replacement.by;
    reducer->replace(index, replacement.by);
    if (!hooks.empty()) add_hook(index);
  }
}

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& model, ProcessGroup& group,
                                                 const DistributedOptions& options)
    : DistributedDataParallel(model, group, options, {}) {}

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& model, ProcessGroup& group,
                                                 const DistributedOptions& options,
                                                 std::vector<at::Tensor> more) {
  check(options);
  const Weights named = parameters_of(model, more);
  group.require_same("the model or its options", description(model, named, options));
  impl_ = std::make_shared<Impl>(group, options, named);
  if (group.world_size() > 1) compare_weights(weights_of(model, named), group, options);
  broadcast_weights(model, group);
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : more) become_rank_0s(parameter, group);
  }
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : model.buffers())
    if (options.broadcast_buffers && buffer.numel() > 0) buffers.push_back(buffer);
  impl_->reducer = std::make_shared<Reducer>(impl_->parameters, std::move(buffers), group, options);
  if (group.world_size() > 1) impl_->add_hooks();
}

DistributedDataParallel::~DistributedDataParallel() = default;

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& parallel)
    : parallel_(parallel), before_(parallel.impl_->reducer->synchronises()) {
  parallel_.impl_->reducer->set_synchronises(false);
}

DistributedDataParallel::NoSync::~NoSync() { parallel_.impl_->reducer->set_synchronises(before_); }

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() { return NoSync(*this); }

void DistributedDataParallel::join(const std::function<void()>& step) {
  if (!impl_->options.uneven_batches)
    refuse({.where = "distributed.join",
            .what = "the other ranks do not ask who has a batch",
            .seen = "uneven_batches = false",
            .accepted = "uneven_batches = true, on all ranks",
            .advice = "set it in the DistributedOptions"});
  while (join_once()) step();
}

void DistributedDataParallel::reduce() {
  if (impl_->group.world_size() > 1) impl_->reducer->reduce();
}

at::Tensor DistributedDataParallel::average(const at::Tensor& loss) const {
  if (!loss.defined() || loss.numel() != 1 || !loss.is_floating_point())
    refuse({.where = "distributed.average",
            .what = "a loss is not one floating point number",
            .seen = loss.defined() ? fmt::format("{} ({})", tensor::name_of(loss.scalar_type()),
                                                 fmt::join(loss.sizes(), ", "))
                                   : "an undefined tensor",
            .accepted = "what backward() was called on",
            .advice = "call loss.mean() first, if that is what the gradients are of"});
  const at::NoGradGuard no_grad;
  const c10::ScalarType dtype =
      tensor::is_16_bit(loss.scalar_type()) ? at::kFloat : loss.scalar_type();
  const at::Tensor mean = loss.detach().to(at::kDouble) / impl_->group.world_size();
  impl_->group.start_all_reduce(mean, Reduction::kSum, "all_reduce of a loss").wait();
  return mean.to(dtype);
}

bool DistributedDataParallel::join_once() {
  return impl_->group.world_size() > 1 && impl_->reducer->shadow();
}

std::int64_t DistributedDataParallel::rounds() const { return impl_->reducer->rounds(); }

const ProcessGroup& DistributedDataParallel::group() const { return impl_->group; }

std::string DistributedDataParallel::checksums() const { return checksums_of(impl_->named); }

const Reduced& DistributedDataParallel::last_reduced() const { return impl_->reducer->reduced(); }

}  // namespace demi::distributed
