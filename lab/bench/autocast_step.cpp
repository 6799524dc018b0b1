#include "lab/bench/autocast_step.h"

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/products/through_fp32.h"
#include "demi/weights/step_targets.h"
#include "lab/bench/timing.h"

namespace demi::bench {
namespace {

// Counts aten::_to_copy, which every cast of a tensor ends in; not of single numbers (LibTorch's
// mean has one inside).
class CastCounter {
 public:
  CastCounter() {
    count() = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&see).needsInputs(true));
  }
  ~CastCounter() { at::removeCallback(handle_); }
  static std::atomic<std::int64_t>& count() {
    static std::atomic<std::int64_t> casts{0};
    return casts;
  }

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::_to_copy") return nullptr;
    const auto inputs = function.inputs();
    if (!inputs.empty() && inputs[0].isTensor() && inputs[0].toTensor().numel() > 1) ++count();
    return nullptr;
  }

  at::CallbackHandle handle_;
};

// The recipe's: three layers of one width.
struct Perceptron {
  torch::nn::Linear a, b, c;
  explicit Perceptron(int width) : a(width, width), b(width, width), c(width, width) {}
  std::vector<at::Tensor> parameters() const {
    return {a->weight, a->bias, b->weight, b->bias, c->weight, c->bias};
  }
  at::Tensor forward(const at::Tensor& x) {
    return c->forward(torch::relu(b->forward(torch::relu(a->forward(x)))));
  }
};

struct Batch {
  at::Tensor x, wanted;  // (batch, width), FP32
};

void forget_gradients(const Perceptron& model) {
  for (const auto& p : model.parameters()) p.mutable_grad() = at::Tensor();
}

at::Tensor in_a_region(Perceptron& model, const Batch& batch) {
  at::Tensor loss;
  {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    loss = torch::mse_loss(model.forward(batch.x), batch.wanted);
  }
  loss.backward();
  return loss;
}

at::Tensor with_bf16_parameters(Perceptron& model, const Batch& batch) {
  const auto output = model.forward(batch.x.to(torch::kBFloat16));
  auto loss = torch::mse_loss(output.to(torch::kFloat), batch.wanted);
  loss.backward();
  return loss;
}

void plain_sgd_step(const Perceptron& model) {
  const auto parameters = model.parameters();
  weights::StepTargets step(parameters);
  const auto& targets = step.begin();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto* master = static_cast<float*>(targets[i].parameter);
    const auto* gradient = parameters[i].grad().const_data_ptr<at::BFloat16>();
    for (std::int64_t e = 0; e < parameters[i].numel(); ++e) {
      master[e] -= 0.01f * static_cast<float>(gradient[e]);
      for (int c = 0; c < targets[i].copy_count; ++c)
        static_cast<at::BFloat16*>(targets[i].copies[c].data)[e] = master[e];
    }
  }
  step.finish();
  forget_gradients(model);
}

// The bf16 model holds the masters of the other, rounded.
void round_into(const Perceptron& low, const Perceptron& masters) {
  const torch::NoGradGuard no_grad;
  const auto from = masters.parameters(), to = low.parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

// Bit for bit; where the region multiplies through FP32, which sums in another order, within a few
// roundings of bf16.
bool same_result(const at::Tensor& ours, const at::Tensor& theirs) {
  if (!products::slow_in(torch::kBFloat16)) return ours.equal(theirs);
  constexpr double kRoundings = 4 * 0x1p-8;
  const auto expected = theirs.to(torch::kDouble);
  return (ours.to(torch::kDouble) - expected).norm().item<double>() <=
         kRoundings * expected.norm().item<double>();
}

void check_step(Perceptron& model, Perceptron& low, const Batch& batch) {
  round_into(low, model);
  bool same = same_result(in_a_region(model, batch), with_bf16_parameters(low, batch));
  const auto ours = model.parameters(), theirs = low.parameters();
  for (std::size_t i = 0; i < ours.size(); ++i)
    same = same && same_result(ours[i].grad(), theirs[i].grad());
  if (!same)
    throw TrainingError({.where = "bench.autocast",
                         .what = "a step in a region does not give what bf16 parameters give"});
  forget_gradients(low);
  plain_sgd_step(model);
}

}  // namespace

void measure_step(const AutocastBenchOptions& options, AutocastReport& report) {
  Perceptron model(options.width), low(options.width);
  const Batch batch{torch::randn({options.batch, options.width}),
                    torch::randn({options.batch, options.width})};
  const Owned owned(model.parameters());
  for (const auto& p : model.parameters()) p.set_grad_dtype(torch::kBFloat16);
  for (auto* layer : {&low.a, &low.b, &low.c}) (*layer)->to(torch::kBFloat16);
  for (int i = 0; i < 2; ++i) check_step(model, low, batch);
  {
    const auto before = weights::stats().casts;
    const CastCounter counter;
    in_a_region(model, batch);
    report.casts_per_step = CastCounter::count();
    report.weight_casts_per_step = weights::stats().casts - before;
  }
  const std::vector<Times> times = take_turns(
      c10::kCPU, /*warmup=*/0, std::min(options.rounds, 9),
      {{.work = [&] { in_a_region(model, batch); }, .before = [&] { plain_sgd_step(model); }},
       {.work = [&] { with_bf16_parameters(low, batch); },
        .before =
            [&] {
              forget_gradients(low);
              round_into(low, model);
            }}});
  report.step = {.width = options.width,
                 .batch = options.batch,
                 .demi_ms = times[0].least(),
                 .bf16_parameters_ms = times[1].least(),
                 .demi_over_bf16_parameters = times[0].least() / times[1].least()};
}

}  // namespace demi::bench
