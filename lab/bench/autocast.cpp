#include "lab/bench/autocast.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/torch.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/autocast/op_table.h"
#include "demi/core/error.h"
#include "demi/products/through_fp32.h"
#include "demi/weights/step_targets.h"
#include "demi/weights/weights.h"
#include "lab/bench/timing.h"

namespace demi::bench {
namespace {

using Op = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b)>;

struct Case {
  std::string name;
  std::vector<std::int64_t> x, w;
  int slower;  // than a matrix product of this size, about
  Op op;
};

std::vector<Case> cases() {
  return {
      {"linear",
       {2, 16},
       {16, 16},
       1,
       [](auto& x, auto& w, auto& b) { return at::linear(x, w, b); }},
      {"addmm", {2, 16}, {16, 16}, 1, [](auto& x, auto& w, auto& b) { return at::addmm(b, x, w); }},
      {"mm", {2, 16}, {16, 16}, 1, [](auto& x, auto& w, auto&) { return at::mm(x, w); }},
      {"matmul", {2, 16}, {16, 16}, 1, [](auto& x, auto& w, auto&) { return at::matmul(x, w); }},
      {"conv2d", {2, 16, 8, 8}, {16, 16, 3, 3}, 10, [](auto& x, auto& w, auto& b) {
         return at::conv2d(x, w, b);
       }}};
}

class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

// LibTorch's own kernels and cache, by its own setters.
class LibTorchAutocast {
 public:
  LibTorchAutocast() {
    remove_kernels(torch::kCPU);
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~LibTorchAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(torch::kCPU, false);
    install_kernels(torch::kCPU);
  }
};

// Copies of these parameters are kept until the end of the scope.
class OwnedParameters {
 public:
  explicit OwnedParameters(std::vector<at::Tensor> parameters)
      : parameters_(std::move(parameters)) {
    for (const auto& p : parameters_) weights::own(p);
  }
  ~OwnedParameters() {
    for (const auto& p : parameters_) weights::disown(p);
  }

 private:
  std::vector<at::Tensor> parameters_;
};

void check(const std::string& name, const at::Tensor& plain, const at::Tensor& ours) {
  if (plain.scalar_type() == ours.scalar_type() && plain.equal(ours)) return;
  throw TrainingError({.where = "bench.autocast",
                       .what = "the autocast op is not equal to the plain one",
                       .seen = name});
}

AutocastOp measure(const Case& one, bool with_grad, const AutocastBenchOptions& options) {
  const at::AutoGradMode grad(with_grad);
  const auto x = torch::randn(one.x).to(torch::kBFloat16);
  const auto w = torch::randn(one.w).set_requires_grad(true),
             b = torch::randn({16}).set_requires_grad(true);
  const auto leaf = [](const at::Tensor& t) {
    return t.detach().to(torch::kBFloat16).set_requires_grad(true);
  };
  const auto low_w = leaf(w), low_b = leaf(b);
  const auto plain = [&] { one.op(x, low_w, low_b); };
  const auto cast = [&] { one.op(x, w, b); };
  const int iterations = std::max(1, options.iterations / one.slower);
  const OwnedParameters owned({w, b});
  const std::string name = one.name + (with_grad ? "" : " no_grad");
  Times plain_ns, demi_ns, libtorch_ns;
  for (int round = 0; round < options.rounds; ++round) {
    plain_ns.add(nanoseconds(iterations, plain));
    {
      const Autocast region(torch::kCPU, torch::kBFloat16);
      if (round == 0) check(name, one.op(x, low_w, low_b), one.op(x, w, b));
      demi_ns.add(nanoseconds(iterations, cast));
    }
    const LibTorchAutocast theirs;
    libtorch_ns.add(nanoseconds(iterations, cast));
  }
  return {.name = name,
          .plain_ns = plain_ns.least(),
          .demi_ns = demi_ns.least(),
          .libtorch_ns = libtorch_ns.least(),
          .demi_over_plain = demi_ns.least() / plain_ns.least(),
          .libtorch_over_plain = libtorch_ns.least() / plain_ns.least()};
}

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

struct Block {
  at::Tensor query, key, value, out;  // (128, 128) each
  std::vector<at::Tensor> parameters() const { return {query, key, value, out}; }

  at::Tensor forward(const at::Tensor& x) const {  // (batch, tokens, width)
    const auto normed = torch::layer_norm(x, {x.size(2)});
    const auto scores = normed.matmul(query).bmm(normed.matmul(key).transpose(1, 2)) / 11.3;
    const auto mixed = torch::softmax(scores, 2).bmm(normed.matmul(value));
    return torch::layer_norm(mixed.matmul(out), {x.size(2)}).cumsum(1);
  }
};

Block random_block() {
  const auto matrix = [] { return (torch::randn({128, 128}) / 11.3).set_requires_grad(true); };
  return {matrix(), matrix(), matrix(), matrix()};
}

double error_of(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(torch::kDouble) - exact).norm() / exact.norm()).item<double>();
}

at::Tensor pass(const Block& block, const at::Tensor& x, const OpPolicy& policy) {
  at::Tensor output;
  {
    const Autocast region(torch::kCPU,
                          demi::AutocastOptions{.dtype = torch::kBFloat16, .policy = policy});
    output = block.forward(x);
  }
  output.to(torch::kFloat).sum().backward();
  return output;
}

void forget_gradients(const Block& block) {
  for (const auto& p : block.parameters()) p.mutable_grad() = at::Tensor();
}

/// Counts the casts of a steady step and times its forward and backward. Results are compared with
/// the model of bf16 parameters first; a wrong one throws.
void measure_step(const AutocastBenchOptions& options, AutocastReport& report) {
  Perceptron model(options.width), low(options.width);
  const Batch batch{torch::randn({options.batch, options.width}),
                    torch::randn({options.batch, options.width})};
  const OwnedParameters owned(model.parameters());
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

}  // namespace

AutocastReport measure_autocast(const AutocastBenchOptions& options) {
  const OneThread one_thread;
  torch::manual_seed(1);
  AutocastReport report{};
  for (const auto& one : cases())
    for (const bool with_grad : {true, false})
      report.ops.push_back(measure(one, with_grad, options));
  measure_step(options, report);
  return report;
}

ReductionsReport measure_fp32_reductions(int rounds) {
  torch::manual_seed(1);
  const Block block = random_block();
  const auto x = torch::randn({8, 64, 128});
  const auto wide = [](const at::Tensor& t) { return t.detach().to(torch::kDouble); };
  const Block exact{wide(block.query), wide(block.key), wide(block.value), wide(block.out)};
  const auto truth = exact.forward(wide(x));
  at::Tensor by_default, by_policy;
  const auto forget = [&] { forget_gradients(block); };
  const std::vector<Times> times =
      take_turns(c10::kCPU, /*warmup=*/0, rounds,
                 {{.work = [&] { by_default = pass(block, x, OpPolicy()); }, .before = forget},
                  {.work = [&] { by_policy = pass(block, x, OpPolicy::named("fp32_reductions")); },
                   .before = forget}});
  return {.default_ms = times[0].least(),
          .policy_ms = times[1].least(),
          .default_error = error_of(by_default, truth),
          .policy_error = error_of(by_policy, truth)};
}

}  // namespace demi::bench
