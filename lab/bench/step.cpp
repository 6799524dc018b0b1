#include "lab/bench/step.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>

#include "demi/core/cuda_library.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/kernels/path.h"
#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/lamb.h"
#include "demi/optim/lion.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/pages.h"
#include "demi/tensor/device.h"
#include "demi/weights/weights.h"

namespace demi::bench {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr double kMaxNorm = 1.0;

struct Contender {
  std::function<std::unique_ptr<optim::Optimizer>(Tensors, optim::StepOptions)> demi;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>
      torch;  // null: LibTorch has none
};

template <class Mine, class Options>
auto mine(const Options& options) {
  return
      [options](Tensors parameters, optim::StepOptions step) -> std::unique_ptr<optim::Optimizer> {
        return std::make_unique<Mine>(std::move(parameters), options, step);
      };
}

template <class Theirs, class Options>
auto theirs(const Options& options) {
  return [options](Tensors parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Theirs>(std::move(parameters), options);
  };
}

const std::map<std::string, Contender>& contenders() {
  namespace t = torch::optim;
  static const std::map<std::string, Contender> all{
      {"sgd", {mine<optim::SGD>(optim::SGDOptions(1e-3)), theirs<t::SGD>(t::SGDOptions(1e-3))}},
      {"sgd-momentum",
       {mine<optim::SGD>(optim::SGDOptions(1e-3).momentum(0.9)),
        theirs<t::SGD>(t::SGDOptions(1e-3).momentum(0.9))}},
      {"adam",
       {mine<optim::Adam>(optim::AdamOptions(1e-3)), theirs<t::Adam>(t::AdamOptions(1e-3))}},
      {"adamw",
       {mine<optim::AdamW>(optim::AdamWOptions(1e-3)), theirs<t::AdamW>(t::AdamWOptions(1e-3))}},
      {"lamb", {mine<optim::LAMB>(optim::LAMBOptions(1e-3)), nullptr}},
      {"lion", {mine<optim::Lion>(optim::LionOptions(1e-4)), nullptr}}};
  return all;
}

Tensors parameters_of(int64_t elements, int64_t tensors, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Tensors made;
  for (int64_t i = 0; i < tensors; ++i) {
    const int64_t length = elements / tensors + (i < elements % tensors ? 1 : 0);
    made.push_back((at::arange(length, at::TensorOptions(device).dtype(at::kFloat)) * 0.37 +
                    static_cast<double>(i))
                       .sin_()
                       .requires_grad_());
  }
  return made;
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

/// As a forward pass leaves them.
void make_copies(const Tensors& parameters) {
  for (const auto& p : parameters) weights::low_precision(p, at::kBFloat16);
}

/// Until the device is done, its work included that was asked for before.
double milliseconds(const c10::Device& device, const std::function<void()>& work) {
  const auto wait = [&] {
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
  };
  wait();
  const auto start = std::chrono::steady_clock::now();
  work();
  wait();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

struct Times {
  std::vector<double> ms;
  double least() const { return *std::min_element(ms.begin(), ms.end()); }
  double spread() const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2] / sorted.front() - 1;
  }
};

/// What a training loop calls after backward().
void demi_step(GradScaler& scaler, optim::Optimizer& optimizer, const Tensors& parameters) {
  scaler.unscale_(optimizer);
  optim::clip_grad_norm_(parameters, kMaxNorm);
  scaler.step(optimizer);
  scaler.update();
}

/// The same in LibTorch's own words: GradScaler's unscaling, clip_grad_norm_, the optimizer.
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

void check_against_reference(const Contender& contender, const std::string& name,
                             const c10::Device& device) {
  const int64_t elements = 100003;  // no multiple of a vector or a block
  const Tensors reference = parameters_of(elements, 3, at::kCPU);
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
    same &= at::equal(weights::low_precision(mine[i], at::kBFloat16), mine[i].to(at::kBFloat16));
  }
  const auto state = b->state_tensors();
  for (const auto& [key, tensor] : a->state_tensors()) same &= agree(tensor, state.at(key));
  if (same) return;
  throw TrainingError(
      {.where = "bench.step",
       .what = "the kernels in use do not give what the reference gives, so they are not timed",
       .seen = name + " on " + kernels_on(device),
       .accepted = "equal bits",
       .advice = "force another path with DEMI_KERNELS and report this"});
}

/// One step over tensors too small to take time by themselves, in microseconds: the least of as
/// many rounds as fit into a twentieth of a second, 5 at least.
double host_cost(const c10::Device& device, const std::function<void()>& step) {
  constexpr int kSteps = 50, kRounds = 5;
  constexpr double kAllMs = 50;
  double least = std::numeric_limits<double>::infinity(), all = 0;
  for (int round = 0; round < kRounds || all < kAllMs; ++round) {
    const double ms = milliseconds(device, [&] {
      for (int i = 0; i < kSteps; ++i) step();
    });
    least = std::min(least, ms * 1000 / kSteps);
    all += ms;
  }
  return least;
}

void time_host_cost(const Contender& contender, const c10::Device& device,
                    StepBenchResult& result) {
  const Tensors small = parameters_of(40 * 64, 40, device);
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

/// Keeps copies across steps while it lives, whatever this LibTorch's default is.
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
  const Tensors parameters = parameters_of(options.parameters, options.tensors, device);
  const auto optimizer = contender.demi(parameters, {});
  make_copies(parameters);
  set_gradients(parameters, gradients_of(parameters, 65536));
  const int64_t copy_elements = std::max<int64_t>(options.parameters, 1 << 22);
  const at::Tensor from = at::ones({copy_elements}, device);
  const at::Tensor to = at::zeros({copy_elements}, device);
  // As the step asks for its arrays: a copy that waits for address translation is no yardstick.
  for (const at::Tensor& array : {from, to}) optim::ask_for_huge_pages(array);
  GradScaler scaler;
  scaler.scale(at::zeros({}, device));
  demi_step(scaler, *optimizer, parameters);
  Times step, copy;
  for (int round = 0; round < options.rounds; ++round) {
    step.ms.push_back(milliseconds(device, [&] { demi_step(scaler, *optimizer, parameters); }));
    copy.ms.push_back(milliseconds(device, [&] { to.copy_(from); }));
  }
  result.bytes_per_parameter = optimizer->bytes_per_parameter();
  result.copy_gb_per_s = static_cast<double>(copy_elements) * 8 / copy.least() * 1e-6;
  return step;
}

Times time_torch(const Contender& contender, const StepBenchOptions& options,
                 const c10::Device& device) {
  const Tensors parameters = parameters_of(options.parameters, options.tensors, device);
  const auto optimizer = contender.torch(parameters);
  const Tensors scaled = gradients_of(parameters, 65536);
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = scaled[i].to(at::kFloat);
  const at::Tensor inverse_scale = at::full({}, 1.0 / 65536, at::TensorOptions(device));
  Times times;
  for (int round = 0; round <= options.rounds; ++round) {
    // LibTorch unscales and clips in place: every round starts from the scaled gradients.
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].grad().copy_(scaled[i]);
    const double ms =
        milliseconds(device, [&] { torch_step(*optimizer, parameters, inverse_scale); });
    if (round > 0) times.ms.push_back(ms);
  }
  return times;
}

void check(const StepBenchOptions& options) {
  if (!contenders().contains(options.optimizer))
    throw UsageError({.where = "bench.step",
                      .what = "there is no such optimizer",
                      .seen = options.optimizer,
                      .advice = did_you_mean(options.optimizer, step_bench_optimizers())});
  if (options.parameters >= 1 && options.tensors >= 1 && options.tensors <= options.parameters &&
      options.rounds >= 1)
    return;
  throw UsageError({.where = "bench.step",
                    .what = "an option is out of range",
                    .seen = c10::str("parameters ", options.parameters, ", tensors ",
                                     options.tensors, ", rounds ", options.rounds),
                    .accepted = "1 or more of each, and no more tensors than parameters"});
}

}  // namespace

const std::vector<std::string>& step_bench_optimizers() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, contender] : contenders()) all.push_back(name);
    return all;
  }();
  return names;
}

StepBenchResult bench_step(const StepBenchOptions& options) {
  check(options);
  const KeptCopies kept;
  const Contender& contender = contenders().at(options.optimizer);
  const c10::Device device = pick_device(options.device);
  check_against_reference(contender, options.optimizer, device);

  StepBenchResult result;
  result.optimizer = options.optimizer;
  result.kernels = kernels_on(device);
  result.device = device.str();
  result.parameters = options.parameters;
  result.tensors = options.tensors;
  result.threads = at::get_num_threads();
  const Times demi = time_demi(contender, options, device, result);
  result.ms = demi.least();
  result.ms_spread = demi.spread();
  result.gb_per_s =
      result.bytes_per_parameter * static_cast<double>(options.parameters) / result.ms * 1e-6;
  result.fraction_of_copy = result.gb_per_s / result.copy_gb_per_s;
  if (options.peer && contender.torch) {
    result.torch_optim_ms = time_torch(contender, options, device).least();
    result.torch_optim_over_demi = result.torch_optim_ms / result.ms;
  }
  time_host_cost(contender, device, result);
  return result;
}

}  // namespace demi::bench
