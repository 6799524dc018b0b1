#include "lab/bench/step.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "demi/core/cuda_library.h"
#include "demi/core/error.h"
#include "demi/core/huge_pages.h"
#include "demi/kernels/path.h"
#include "demi/optim/clip.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/tensor/device.h"
#include "demi/weights/weights.h"
#include "lab/bench/timing.h"
#include "lab/find_by_name.h"
#include "lab/settings/optimizers.h"

namespace demi::bench {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr double kMaxNorm = 1.0;

/// `square`: matrices with as many rows as columns, of the elements that fit.
Tensors parameters_of(int64_t elements, int64_t tensors, const c10::Device& device,
                      at::ScalarType dtype = at::kFloat, bool square = false) {
  const at::NoGradGuard no_grad;
  Tensors made;
  for (int64_t i = 0; i < tensors; ++i) {
    const int64_t length = elements / tensors + (i < elements % tensors ? 1 : 0);
    at::Tensor values = (at::arange(length, at::TensorOptions(device).dtype(at::kFloat)) * 0.37 +
                         static_cast<double>(i))
                            .sin_()
                            .to(dtype);
    if (square) {
      const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(length)));
      values = values.narrow(0, 0, side * side).clone().view({side, side});
    }
    made.push_back(values.requires_grad_());
  }
  return made;
}

// An optimizer of the one list, with the hyper-parameters that it is timed with.
struct Contender {
  std::string name;
  const settings::OptimizerKind* kind;
  settings::Config config;
  optim::Moments moments = optim::Moments::fp32;
  optim::WeightMode weight_mode = optim::WeightMode::master;

  at::ScalarType dtype() const {
    return weight_mode == optim::WeightMode::master ? at::kFloat : at::kBFloat16;
  }
  std::unique_ptr<optim::Optimizer> demi(const Tensors& parameters, optim::StepOptions step) const {
    step.moments = moments;
    step.weight_mode = weight_mode;
    if (kind->takes_matrices) return kind->make(config, {.decay = {}, .hidden = parameters}, step);
    return kind->make(config, {.decay = parameters}, step);
  }
  Tensors parameters(int64_t elements, int64_t tensors, const c10::Device& device) const {
    return parameters_of(elements, tensors, device, dtype(), kind->takes_matrices);
  }
  bool has_torch() const { return kind->make_torch != nullptr; }
  std::unique_ptr<torch::optim::Optimizer> torch(const Tensors& parameters) const {
    return kind->make_torch(config, parameters);
  }
};

// Each optimizer once; where momentum is a choice, with and without.
std::vector<Contender> all_contenders() {
  std::vector<Contender> all;
  for (const settings::OptimizerKind& kind : settings::optimizer_kinds()) {
    settings::Config config;
    config.lr = 1e-3;
    config.weight_decay = kind.usual_weight_decay;
    all.push_back({kind.name, &kind, config});
    if (!kind.momentum_is_optional) continue;
    config.momentum = 0.9;
    all.push_back({kind.name + "-momentum", &kind, config});
  }
  return all;
}

std::span<const Contender> contenders() {
  static const std::vector<Contender> all = all_contenders();
  return all;
}

Tensors gradients_of(const Tensors& parameters, float scale) {
  Tensors made;
  for (const auto& p : parameters)
    made.push_back(((p.detach() * 1.7).cos_() * (scale * 1e-3)).to(at::kBFloat16));
  return made;
}

void set_gradients(const Tensors& parameters, const Tensors& gradients) {
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
}

/// Makes the 16-bit copies that a forward pass leaves behind.
void make_copies(const Tensors& parameters) {
  for (const auto& p : parameters)
    if (p.scalar_type() == at::kFloat) weights::low_precision(p, at::kBFloat16);
}

/// The calls of a training loop after backward().
void demi_step(GradScaler& scaler, optim::Optimizer& optimizer, const Tensors& parameters) {
  scaler.unscale_(optimizer);
  optim::clip_grad_norm_(parameters, kMaxNorm);
  scaler.step(optimizer);
  scaler.update();
}

/// A step with LibTorch's own functions: GradScaler's unscaling, clip_grad_norm_, the optimizer.
void torch_step(torch::optim::Optimizer& optimizer, const Tensors& parameters,
                const at::Tensor& inverse_scale) {
  Tensors gradients;
  for (const auto& p : parameters) gradients.push_back(p.grad());
  at::Tensor found_inf = at::zeros({}, inverse_scale.options());
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse_scale);
  torch::nn::utils::clip_grad_norm_(parameters, kMaxNorm);
  if (found_inf.item<float>() == 0) optimizer.step();
}

/// A CUDA device's pow may differ in its last bit: once a step, in a bias correction.
bool agree(const at::Tensor& seen, const at::Tensor& reference) {
  if (seen.is_cpu()) return at::equal(seen, reference);
  return at::allclose(seen.to(at::kCPU, at::kDouble), reference.to(at::kDouble), 1e-6, 1e-9);
}

std::string kernels_on(const c10::Device& device) {
  const auto kind = device.is_cuda() ? kernels::Device::cuda : kernels::Device::cpu;
  return std::string(kernels::name_of(kernels::path_for(kind)));
}

void check_against_reference(const Contender& contender, const c10::Device& device) {
  const int64_t elements = 100003;  // no multiple of a vector or a block
  const Tensors reference = contender.parameters(elements, 3, at::kCPU);
  Tensors mine;
  for (const auto& p : reference)
    mine.push_back(p.detach().to(device, p.scalar_type(), false, /*copy=*/true).requires_grad_());
  const auto a = contender.demi(mine, {}),
             b = contender.demi(reference, {.path = kernels::Path::reference});
  make_copies(mine);
  make_copies(reference);
  GradScaler scaler_a, scaler_b;
  const auto step = [](const Tensors& p, optim::Optimizer& optimizer, GradScaler& scaler,
                       const Tensors& gradients) {
    const c10::Device where = p.front().device();
    scaler.scale(at::zeros({}, where));
    for (size_t i = 0; i < p.size(); ++i) p[i].mutable_grad() = gradients[i].to(where);
    demi_step(scaler, optimizer, p);
  };
  for (int i = 0; i < 3; ++i) {
    const Tensors gradients = gradients_of(reference, 65536);
    step(mine, *a, scaler_a, gradients);
    step(reference, *b, scaler_b, gradients);
  }
  bool same = true;
  for (size_t i = 0; i < mine.size(); ++i) {
    same &= agree(mine[i].detach(), reference[i].detach());
    if (mine[i].scalar_type() != at::kFloat) continue;
    same &= at::equal(weights::low_precision(mine[i], at::kBFloat16), mine[i].to(at::kBFloat16));
  }
  const auto state = b->state_tensors();
  for (const auto& [key, tensor] : a->state_tensors()) same &= agree(tensor, state.at(key));
  if (same) return;
  throw TrainingError(
      {.where = "bench.step",
       .what = "the kernels in use do not give what the reference gives, so they are not timed",
       .seen = contender.name + " on " + kernels_on(device),
       .accepted = "equal bits",
       .advice = "force another path with DEMI_KERNELS and report this"});
}

/// Time of a step over tensors too small to take time by themselves, in microseconds: the least of
/// as many rounds as fit into a twentieth of a second, 5 at least.
double host_cost(const c10::Device& device, const std::function<void()>& step) {
  constexpr int kSteps = 50, kRounds = 5;
  constexpr double kAllMs = 50;
  Times times;
  double all = 0;
  for (int round = 0; round < kRounds || all < kAllMs; ++round) {
    const double ms = milliseconds(device, [&] {
      for (int i = 0; i < kSteps; ++i) step();
    });
    times.add(ms * 1000 / kSteps);
    all += ms;
  }
  return times.least();
}

void time_host_cost(const Contender& contender, const c10::Device& device,
                    StepBenchResult& result) {
  const Tensors small = contender.parameters(40 * 64, 40, device);
  const auto optimizer = contender.demi(small, {});
  make_copies(small);
  set_gradients(small, gradients_of(small, 1));
  result.host_us = host_cost(device, [&] { optimizer->step(); });
  GradScaler scaler;
  scaler.scale(at::zeros({}, device));
  result.host_loop_us = host_cost(device, [&] { demi_step(scaler, *optimizer, small); });
  if (result.torch_optim_ms == 0) return;
  const Tensors other = parameters_of(40 * 64, 40, device);
  const auto peer = contender.torch(other);
  for (const auto& p : other) p.mutable_grad() = at::ones_like(p);
  result.torch_optim_host_us = host_cost(device, [&] { peer->step(); });
}

/// Keeps copies across steps while it lives, independent of this LibTorch's default.
class KeptCopies {
 public:
  KeptCopies() : before_(weights::mode()) {
    if (before_ != weights::Mode::keep) weights::set_mode(weights::Mode::keep);
  }
  ~KeptCopies() {
    if (before_ != weights::Mode::keep) weights::set_mode(before_);
  }

 private:
  weights::Mode before_;
};

Times time_demi(const Contender& contender, const StepBenchOptions& options,
                const c10::Device& device, StepBenchResult& result) {
  const Tensors parameters = contender.parameters(options.parameters, options.tensors, device);
  const auto optimizer = contender.demi(parameters, {});
  make_copies(parameters);
  set_gradients(parameters, gradients_of(parameters, 65536));
  const int64_t copy_elements = std::max<int64_t>(options.parameters, 1 << 22);
  const at::Tensor from = at::ones({copy_elements}, device);
  const at::Tensor to = at::zeros({copy_elements}, device);
  // The step asks for huge pages too; a copy that waits for address translation is no yardstick.
  if (device.is_cpu())
    for (const at::Tensor& array : {from, to})
      prefer_huge_pages(array.const_data_ptr(), array.nbytes(), /*also_used=*/true);
  GradScaler scaler;
  scaler.scale(at::zeros({}, device));
  demi_step(scaler, *optimizer, parameters);
  const std::vector<Times> times =
      take_turns(device, /*warmup=*/0, options.rounds,
                 {{.work = [&] { demi_step(scaler, *optimizer, parameters); }},
                  {.work = [&] { to.copy_(from); }},
                  {.work = [&] { to.neg_(); }}});
  result.bytes_per_parameter = optimizer->bytes_per_parameter();
  for (const at::Tensor& parameter : parameters) result.parameters += parameter.numel();
  for (const auto& [name, tensor] : optimizer->state_tensors())
    if (!name.ends_with(".step") && name != "taken")
      result.state_bytes_per_parameter += static_cast<double>(tensor.nbytes());
  result.state_bytes_per_parameter /= static_cast<double>(result.parameters);
  constexpr double kWeightAndCopy = 4 + 2, kWeight = 2, kGradient = 2;
  result.held_bytes_per_parameter = (contender.dtype() == at::kFloat ? kWeightAndCopy : kWeight) +
                                    kGradient + result.state_bytes_per_parameter;
  const double gigabytes = static_cast<double>(copy_elements) * 8 * 1e-6;
  result.copy_gb_per_s = gigabytes / times[1].least();
  result.in_place_gb_per_s = gigabytes / times[2].least();
  return times[0];
}

Times time_torch(const Contender& contender, const StepBenchOptions& options,
                 const c10::Device& device) {
  const Tensors parameters = parameters_of(options.parameters, options.tensors, device);
  const auto optimizer = contender.torch(parameters);
  const Tensors scaled = gradients_of(parameters, 65536);
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = scaled[i].to(at::kFloat);
  const at::Tensor inverse_scale = at::full({}, 1.0 / 65536, at::TensorOptions(device));
  // LibTorch unscales and clips in place: every round starts from the scaled gradients.
  const auto set_scaled = [&] {
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].grad().copy_(scaled[i]);
  };
  return take_turns(device, /*warmup=*/1, options.rounds,
                    {{.work = [&] { torch_step(*optimizer, parameters, inverse_scale); },
                      .before = set_scaled}})
      .front();
}

void check(const StepBenchOptions& options) {
  if (options.parameters >= 1 && options.tensors >= 1 && options.tensors <= options.parameters &&
      options.rounds >= 1)
    return;
  refuse({.where = "bench.step",
          .what = "an option is out of range",
          .seen = c10::str("parameters ", options.parameters, ", tensors ", options.tensors,
                           ", rounds ", options.rounds),
          .accepted = "1 or more of each, and no more tensors than parameters"});
}

}  // namespace

const std::vector<std::string>& step_bench_optimizers() {
  static const std::vector<std::string> names = lab::names_of(contenders());
  return names;
}

StepBenchResult bench_step(const StepBenchOptions& options) {
  Contender contender = lab::find_by_name(contenders(), options.optimizer, "bench.step",
                                          "there is no such optimizer");
  contender.moments = settings::find_moments(options.moments);
  contender.weight_mode = settings::find_weight_mode(options.weight_mode);
  check(options);
  const KeptCopies kept;
  const c10::Device device = pick_device(options.device);
  check_against_reference(contender, device);

  StepBenchResult result;
  result.optimizer = options.optimizer;
  result.kernels = kernels_on(device);
  result.device = device.str();
  result.tensors = options.tensors;
  result.threads = at::get_num_threads();
  const Times demi = time_demi(contender, options, device, result);
  result.ms = demi.least();
  result.ms_spread = demi.spread();
  result.gb_per_s =
      result.bytes_per_parameter * static_cast<double>(result.parameters) / result.ms * 1e-6;
  result.fraction_of_copy = result.gb_per_s / result.copy_gb_per_s;
  result.fraction_of_in_place = result.gb_per_s / result.in_place_gb_per_s;
  if (options.peer && contender.has_torch()) {
    result.torch_optim_ms = time_torch(contender, options, device).least();
    result.torch_optim_over_demi = result.torch_optim_ms / result.ms;
  }
  time_host_cost(contender, device, result);
  return result;
}

}  // namespace demi::bench
