#include "lab/bench/memory_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "demi/autocast/autocast.h"
#include "demi/autocast/backward.h"
#include "demi/optim/clip.h"
#include "demi/optim/optimizer.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/train/own_loss.h"
#include "demi/weights/weights.h"

namespace demi::bench {
namespace {

data::Batch random_batch(const MemoryWork& work, int64_t size) {
  std::vector<int64_t> sizes{size};
  sizes.insert(sizes.end(), work.example.begin(), work.example.end());
  const auto floats = at::TensorOptions(at::kFloat).device(work.run.device);
  const auto longs = floats.dtype(at::kLong);
  data::Batch batch;
  switch (work.run.model->reads) {
    case data::Kind::rows:
      batch.input = at::randn(sizes, floats);
      break;
    case data::Kind::pictures:
      batch.input = at::randn(sizes, floats).contiguous(at::MemoryFormat::ChannelsLast);
      break;
    case data::Kind::tokens:
      batch.input = at::randint(0, work.shape.vocabulary, sizes, longs);
      batch.target = at::randint(0, work.shape.vocabulary, sizes, longs);
      return batch;
    case data::Kind::texts:
      batch.input = at::randint(0, work.shape.vocabulary, sizes, longs);
      batch.lengths = at::full({size}, work.example.front(), at::kLong);
      break;
  }
  const settings::Config& config = work.run.config;
  if (config.loss == "mse")
    batch.target = at::randn({size, config.out}, floats);
  else if (config.loss == "bce")
    batch.target = at::rand({size, 1}, floats).round();
  else
    batch.target = at::randint(0, work.shape.classes, {size}, longs);
  return batch;
}

GradScalerOptions scaler_options(const settings::RunSpec& run) {
  using Kind = LossScale::Kind;
  const bool enabled = run.loss_scale.kind == Kind::automatic ? run.precision.autocast == at::kHalf
                                                              : run.loss_scale.kind != Kind::off;
  return {.enabled = enabled};
}

// The region that a Trainer has.
Autocast region_of(const Precision& precision, c10::Device device) {
  return Autocast(device.type(),
                  AutocastOptions{.dtype = precision.autocast, .enabled = precision.is_mixed()});
}

data::Batch input_for(const Precision& precision, const data::Batch& batch) {
  data::Batch result = batch;
  if (!precision.is_mixed() && batch.input.is_floating_point())
    result.input = batch.input.to(precision.weights);
  return result;
}

// A model in training, whose blocks are identified by their addresses while they live.
class TracedModel {
 public:
  TracedModel(const MemoryWork& work, int64_t batch_size, int64_t limit)
      : work_(work),
        precision_(work.run.spec.precision),
        device_(work.run.device),
        log_(device_, limit) {
    network_ = workload::make_network(work.run.config, work.shape, /*seed=*/0, device_);
    if (!precision_.is_mixed() && precision_.weights != at::kFloat)
      network_.module->to(precision_.weights);
    if (work.forward)
      network_.module->eval();
    else
      optimizer_ = settings::make_optimizer(work.run, network_);
    batch_ = random_batch(work, batch_size);
    profile::reset_peak_memory(device_);
    begin_ = log_.now();
    mark(network_.module->parameters(), MemoryKind::parameters);
    mark(network_.module->buffers(), MemoryKind::parameters);
  }

  void forward() {
    const at::NoGradGuard no_grad;
    const Autocast region = region_of(precision_, device_);
    output_ = network_.forward(input_for(precision_, batch_));
    mark_copies();
    const std::int64_t now = log_.now();
    mark_from(begin_ + 1, now);
    output_ = at::Tensor();
  }

  // Takes a step of at most two batches: later ones of a window hold what the second does.
  void step(GradScaler& scaler) {
    const std::int64_t batches =
        std::min<std::int64_t>(settings::batches_of_step(work_.run.config), 2);
    for (std::int64_t i = 0; i < batches; ++i) forward_and_backward(scaler);
    if (work_.run.config.clip_norm > 0) {
      scaler.unscale_(*optimizer_);
      optim::clip_grad_norm_(network_.module->parameters(), work_.run.config.clip_norm);
    }
    scaler.step(*optimizer_);
    scaler.update();
    mark_gradients();
    mark_state();
    mark_copies();
    optimizer_->zero_grad();
  }

  MemoryTrace trace() const {
    MemoryTrace trace{.begin = begin_, .end = log_.now()};
    for (const profile::Allocation& block : log_.allocations()) {
      const auto kind = kinds_.find(block.made);
      trace.blocks.push_back({block, kind == kinds_.end() ? MemoryKind::other : kind->second});
    }
    return trace;
  }

 private:
  void forward_and_backward(GradScaler& scaler) {
    const std::int64_t before = log_.now();
    at::Tensor loss;
    {
      const Autocast region = region_of(precision_, device_);
      loss = loss_of(input_for(precision_, batch_));
      mark_copies();
    }
    mark_from(before + 1, log_.now());
    demi::backward(scaler.scale(loss));
    loss = at::Tensor();
    mark_gradients();
  }
  at::Tensor loss_of(const data::Batch& batch) {
    const settings::Resolved& run = work_.run;
    if (!work_.whole_logits && train::computes(network_, run.loss))
      return train::own_loss(network_, run.loss, batch, run.config.label_smoothing).mean;
    return run.loss(network_.forward(batch), batch.target, run.config.label_smoothing);
  }
  // The block of an address, by the time at which it was made: an address is used again.
  void mark(const std::vector<at::Tensor>& tensors, MemoryKind kind) {
    std::set<const void*> addresses;
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined() && tensor.has_storage()) addresses.insert(tensor.storage().data());
    for (const profile::Allocation& block : log_.allocations())
      if (block.is_alive(log_.now()) && addresses.contains(block.address))
        kinds_.insert_or_assign(block.made, kind);
  }
  // Blocks that were made from a time on, are alive at another, and have no kind yet, are kept for
  // backward.
  void mark_from(std::int64_t from, std::int64_t alive_at) {
    for (const profile::Allocation& block : log_.allocations())
      if (block.made >= from && block.is_alive(alive_at))
        kinds_.emplace(block.made, MemoryKind::activations);
  }
  void mark_copies() {
    for (const at::Tensor& parameter : network_.module->parameters())
      mark(weights::copies_of(parameter), MemoryKind::copies);
  }
  void mark_gradients() {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : network_.module->parameters())
      gradients.push_back(parameter.grad());
    mark(gradients, MemoryKind::gradients);
  }
  void mark_state() {
    const auto* ours = dynamic_cast<const optim::Optimizer*>(optimizer_.get());
    if (!ours) return;
    std::vector<at::Tensor> state;
    for (const auto& [name, tensor] : ours->state_tensors()) state.push_back(tensor);
    mark(state, MemoryKind::optimizer);
  }

  const MemoryWork& work_;
  const Precision& precision_;
  const c10::Device device_;
  profile::AllocationLog log_;
  train::Network network_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  data::Batch batch_;
  at::Tensor output_;
  std::int64_t begin_ = 0;
  std::map<std::int64_t, MemoryKind> kinds_;
};

}  // namespace

MemoryMeasurement measure_memory(const MemoryWork& work, int64_t batch_size, int64_t limit_bytes) {
  const c10::Device device = work.run.device;
  profile::count_cpu_memory();
  profile::quiet_down(device);
  const int64_t before = profile::memory_use(device).current_bytes;
  GradScaler scaler(scaler_options(work.run.spec));
  TracedModel traced(work, batch_size, limit_bytes);
  if (work.forward) {
    traced.forward();
  } else {
    traced.step(scaler);
    traced.step(scaler);
  }
  MemoryMeasurement measured{.trace = traced.trace()};
  const profile::MemoryUse use = profile::memory_use(device);
  measured.peak_bytes = use.peak_bytes - before;
  measured.reserved_bytes = use.reserved_bytes;
  return measured;
}

}  // namespace demi::bench
