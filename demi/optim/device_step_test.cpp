// The step on an emulated device. Tests on a GPU are in gpu_step_test.cpp.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "demi/optim/clip.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/step/pending_step.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

using namespace testing;

/// fp32 of two layouts and several blocks, and both 16-bit dtypes.
Tensors parameters() {
  return {
      parameter({33, 600}), parameter({7}),
      parameter({2, 3, 4, 5}).detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(),
      parameter({100}, at::kHalf), parameter({40}, at::kBFloat16)};
}

/// The same gradients for every call with the same step: 16-bit, and fp32 as after accumulation.
void set_gradients(const Tensors& p, int step, double scale) {
  for (size_t i = 0; i < p.size(); ++i) {
    const auto dtype =
        p[i].scalar_type() == at::kFloat && i != 1 ? at::kBFloat16 : p[i].scalar_type();
    set_grad(p[i], gradient(p[i], dtype, step) * scale);
  }
}

Tensors everything(const Tensors& p, const Optimizer& optimizer) {
  Tensors all;
  for (const auto& x : p) {
    all.push_back(x.detach().clone());
    if (x.scalar_type() == at::kFloat) all.push_back(weights::low_precision(x, at::kBFloat16));
  }
  for (const auto& [name, tensor] : optimizer.state_tensors()) all.push_back(tensor.clone());
  return all;
}

void expect_same(const Tensors& a, const Tensors& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << what << " " << i;
}

struct Run {
  Tensors numbers;
  std::vector<bool> skipped;
  std::vector<double> norms;
};

/// Some steps, one of them with an Inf; `prepare` does what stands between backward() and step().
Run run(KindId kind, const std::function<void(Optimizer&, const Tensors&, int step)>& prepare,
        StepOptions options, const Backend& backend = machine_backend()) {
  const Tensors p = parameters();
  const auto optimizer = make(kind, p, options, backend);
  for (const auto& x : p) weights::low_precision(x, at::kBFloat16);
  Run run;
  for (int step = 0; step < 6; ++step) {
    set_gradients(p, step, 8);
    if (step == 3) p[0].grad().view(-1)[19000] = kInf;
    prepare(*optimizer, p, step);
    optimizer->step();
    run.skipped.push_back(optimizer->last_step().skipped());
    run.norms.push_back(optimizer->last_step().grad_norm().value_or(-1));
    EXPECT_EQ(optimizer->last_step().scale(), 8);
  }
  run.numbers = everything(p, *optimizer);
  return run;
}

void expect_bits_of_the_reference(
    const std::function<void(Optimizer&, const Tensors&, int step)>& prepare) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const Run expected = run(kind.id, prepare, {.path = kernels::Path::reference});
    const EmulatedDevice device;
    const Run seen = run(kind.id, prepare, {}, device);
    expect_same(expected.numbers, seen.numbers, "numbers");
    EXPECT_EQ(expected.skipped, seen.skipped);
    EXPECT_EQ(seen.skipped, (std::vector<bool>{false, false, false, true, false, false}));
    EXPECT_EQ(expected.norms, seen.norms);
  }
}

const at::Tensor& eight() {
  static const at::Tensor scale = at::scalar_tensor(8, at::kFloat);
  return scale;
}

TEST(DeviceStep, GivesTheBitsOfTheReference) {
  expect_bits_of_the_reference(
      [](Optimizer& optimizer, const Tensors&, int) { optimizer.pending().set_scale(eight()); });
}

TEST(DeviceStep, ClippedAndUnscaledToo) {
  expect_bits_of_the_reference([](Optimizer& optimizer, const Tensors& p, int step) {
    step % 2 ? optimizer.pending().unscale_(eight()) : optimizer.pending().set_scale(eight());
    const at::Tensor norm = clip_grad_norm_(p, 0.5);
    EXPECT_EQ(norm.item<float>(), optimizer.pending().grad_norm().item<float>());
  });
}

TEST(DeviceStep, FactorsAndLimitsOfSomeTensorsToo) {
  expect_bits_of_the_reference([](Optimizer& optimizer, const Tensors& p, int step) {
    optimizer.pending().set_scale(eight());
    clip_grad_norm_({p[0], p[3]}, 0.5);
    if (step % 2) clip_grad_value_({p[1], p[3]}, 0.01);
  });
}

TEST(DeviceStep, TheGradientsThatTheStepWillUseAreShown) {
  const auto prepare = [](Tensors& seen) {
    return [&seen](Optimizer& optimizer, const Tensors& p, int step) {
      step % 2 ? optimizer.pending().unscale_(eight()) : optimizer.pending().set_scale(eight());
      clip_grad_norm_(p, 0.5);
      for (const auto& x : p) seen.push_back(optimizer.unscaled_grad(x));
      seen.push_back(optimizer.pending().greatest());
      seen.push_back(optimizer.pending().found_inf());
    };
  };
  Tensors expected, seen;
  run(KindId::kSgd, prepare(expected), {.path = kernels::Path::reference});
  const EmulatedDevice device;
  run(KindId::kSgd, prepare(seen), {}, device);
  for (size_t i = 0; i < seen.size(); ++i)
    EXPECT_TRUE(at::allclose(expected[i], seen[i], 0, 0, /*equal_nan=*/true)) << i;
}

// The promise, counted by the launcher.
TEST(DeviceStep, LaunchesDoNotGrowWithTheNumberOfTensors) {
  for (const int tensors : {1, 40, 161}) {
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      const EmulatedDevice device;
      Tensors p;
      for (int i = 0; i < tensors; ++i) p.push_back(parameter({9}, at::kFloat, i));
      const auto optimizer = kind.make(p, {}, device);
      for (const auto& x : p) set_grad(x, gradient(x, at::kBFloat16, 0) * 8);
      for (int step = 0; step < 3; ++step) {
        const auto launches = device.launches(), uploads = device.uploads();
        optimizer->pending().set_scale(eight());
        optimizer->pending().found_inf();  // as GradScaler does
        clip_grad_norm_(p, 1.0);
        optimizer->step();
        EXPECT_EQ(device.launches() - launches, kind.id == KindId::kLamb ? 4 : 3);
        EXPECT_EQ(device.uploads() - uploads > 0, step == 0);  // then nothing moves
      }
    }
  }
}

TEST(DeviceStep, OnlyTablesThatChangedTravel) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({9});
  On<SGD> sgd(device, {p}, SGDOptions(1));
  const auto uploads_of = [&](const at::Tensor& g) {
    const auto before = device.uploads();
    set_grad(p, g);
    sgd.step();
    return device.uploads() - before;
  };
  const at::Tensor a = torch::ones(9), b = torch::ones(9);
  uploads_of(a);
  EXPECT_EQ(uploads_of(a), 0);
  EXPECT_EQ(uploads_of(b), 1);
  sgd.param_groups()[0].options().set_lr(0.5);
  const at::Tensor before = p.detach().clone();
  EXPECT_EQ(uploads_of(b), 1);
  EXPECT_TRUE(at::equal(before - p.detach(), torch::full({9}, 0.5)));
}

TEST(DeviceStep, WithoutTheCheckOnlyTheUpdateReadsGradients) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({2});
  On<SGD> sgd(device, {p}, SGDOptions(0.1), {.skip_nonfinite = false});
  set_grad(p, torch::tensor({1.F, kInf}));
  const auto before = device.launches();
  sgd.step();
  EXPECT_EQ(device.launches() - before, 2);
  EXPECT_TRUE(std::isinf(p[1].item<float>()));
  EXPECT_FALSE(sgd.last_step().skipped());
  EXPECT_FALSE(sgd.last_step().grad_norm().has_value());
}

// The host runs ahead of the device by a whole training run, and so cannot have read anything.
TEST(DeviceStep, TheHostWaitsForNothing) {
  constexpr int kSteps = 8;
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    std::vector<Tensors> numbers;
    for (const bool deferred : {false, true}) {
      EmulatedDevice device;
      const Tensors p{parameter({300}), parameter({20000})};
      const auto optimizer =
          deferred ? kind.make(p, {}, device) : kind.make(p, {.path = kernels::Path::reference});
      optimizer->set_scheduled_rates(0, {0.1, 0.2, 0.3, 0.4, 0.5});
      std::vector<Tensors> gradients(kSteps);
      std::vector<StepResult> results;
      std::vector<at::Tensor> norms;
      for (int step = 0; step < kSteps; ++step) {
        for (const auto& x : p) gradients[step].push_back(gradient(x, at::kBFloat16, step) * 8);
        if (step == 2 || step == 5) gradients[step][1][7] = kInf;
      }
      for (int step = 0; step < kSteps; ++step) {
        if (step == 1 && deferred) device.defer();  // tables are made at the first gradient
        for (size_t i = 0; i < p.size(); ++i) set_grad(p[i], gradients[step][i]);
        optimizer->pending().set_scale(eight());
        norms.push_back(clip_grad_norm_(p, 0.25));
        optimizer->step();
        results.push_back(optimizer->last_step());
      }
      if (deferred) device.synchronize();
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_EQ(results[step].skipped(), step == 2 || step == 5) << step;
        const bool same = results[step].grad_norm() == norms[step].item<float>();
        EXPECT_TRUE(same || step == 2 || step == 5) << step;
      }
      numbers.push_back(everything(p, *optimizer));
    }
    expect_same(numbers[0], numbers[1], "numbers");
  }
}

// Launches and their arguments are recorded once, and run again, as by a CUDA graph.
TEST(DeviceStep, ACapturedStepIsReplayed) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    std::vector<Tensors> numbers;
    for (const bool captured : {false, true}) {
      EmulatedDevice device;
      const Tensors p{parameter({300}), parameter({20000})};
      const auto optimizer = kind.make(p, {}, device);
      Tensors fixed;  // .grad in the graph: always the same memory
      for (const auto& x : p) fixed.push_back(at::empty_like(x, at::kBFloat16));
      const auto step = [&](const Tensors& gradients) {
        for (size_t i = 0; i < p.size(); ++i) set_grad(p[i], gradients[i]);
        optimizer->pending().set_scale(eight());
        clip_grad_norm_(p, 0.25);
        optimizer->step();
      };
      const auto load = [&](int s) {
        for (size_t i = 0; i < p.size(); ++i)
          fixed[i].copy_(gradient(p[i], at::kBFloat16, s) * (s == 3 ? kInf : 8));
      };
      const auto eager = [&](int s) {  // with gradients somewhere else
        Tensors elsewhere;
        for (const auto& x : p) elsewhere.push_back(gradient(x, at::kBFloat16, s) * 8);
        step(elsewhere);
      };
      load(0);
      step(fixed);
      EmulatedDevice::Graph graph;
      StepResult result;
      if (captured) {
        device.begin_capture();
        step(fixed);
        graph = device.end_capture();
        result = optimizer->last_step();  // holds what the graph writes it into
      }
      for (int s = 1; s < 7; ++s) {
        load(s);
        captured ? EmulatedDevice::replay(graph) : step(fixed);
        if (!captured) result = optimizer->last_step();
        EXPECT_EQ(result.skipped(), s == 3) << s;
        if (s % 2) eager(s + 10);  // a step outside of the graph does not disturb it
      }
      numbers.push_back(everything(p, *optimizer));
    }
    expect_same(numbers[0], numbers[1], "numbers");
  }
}

// A replay puts the captured tables back: what an eager step has uploaded before is gone.
TEST(DeviceStep, StepsBetweenReplaysBringTheirTablesAlong) {
  EmulatedDevice device;
  const at::Tensor p = torch::zeros(4).requires_grad_();
  On<SGD> sgd(device, {p}, SGDOptions(1));
  const at::Tensor captured = torch::ones(4), eager = torch::full({4}, 100.F);
  const auto step = [&](const at::Tensor& gradient) {
    set_grad(p, gradient);
    sgd.step();
  };
  step(captured);  // nothing changes between this step and the capture, and yet all of it is in it
  device.begin_capture();
  step(captured);
  const EmulatedDevice::Graph graph = device.end_capture();
  const StepResult kept = sgd.last_step();  // the graph writes it
  for (int i = 1; i <= 3; ++i) {
    step(eager);
    EmulatedDevice::replay(graph);
    EXPECT_TRUE(at::equal(p.detach(), torch::full({4}, -1.F - 101.F * static_cast<float>(i)))) << i;
  }
}

// Each replay would set the states to 0 again.
TEST(DeviceStep, TheFirstStepOfAParameterIsNotCaptured) {
  EmulatedDevice device;
  const at::Tensor p = torch::zeros(4).requires_grad_(), late = torch::zeros(4).requires_grad_();
  On<Adam> adam(device, {p, late}, AdamOptions(1));
  const auto refusal_of_captured_step = [&] {
    device.begin_capture();
    std::string text;
    try {
      adam.step();
    } catch (const UsageError& error) {
      text = error.what();
    }
    device.end_capture();
    return text;
  };
  set_grad(p, torch::ones(4));
  EXPECT_NE(refusal_of_captured_step().find("one step outside, before the capture"),
            std::string::npos);
  adam.step();
  EXPECT_EQ(refusal_of_captured_step(), "");
  set_grad(late, torch::ones(4));
  EXPECT_NE(refusal_of_captured_step(), "") << "a parameter whose first gradient is captured";
}

// A capture that is given up between clipping and the step has launched nothing, uploads neither.
TEST(DeviceStep, ACaptureThatIsGivenUpLeavesNoTables) {
  EmulatedDevice device;
  const at::Tensor p = parameter({6}), q = parameter({6});
  On<SGD> sgd(device, {p}, SGDOptions(0.1).momentum(0.9));
  SGD whole({q}, SGDOptions(0.1).momentum(0.9));
  const auto step = [](SGD& optimizer, const at::Tensor& of, int i) {
    set_grad(of, gradient(of, at::kFloat, i));
    clip_grad_norm_({of}, 0.5);
    optimizer.step();
  };
  step(sgd, p, 0);
  step(whole, q, 0);
  for (int i = 1; i < 4; ++i) {
    device.begin_capture();
    set_grad(p, gradient(p, at::kFloat, 7));
    clip_grad_norm_({p}, 0.5);
    (void)device.end_capture();
    step(sgd, p, i);
    step(whole, q, i);
    EXPECT_TRUE(at::equal(p, q)) << i;
  }
}

TEST(DeviceStep, ALoadedCountReachesTablesThatAreThere) {
  for (const bool emulated : {false, true}) {
    const EmulatedDevice device;
    const Backend& backend = emulated ? device : machine_backend();
    const at::Tensor p = torch::zeros(1).requires_grad_();
    On<SGD> sgd(backend, {p}, SGDOptions(7));
    sgd.set_scheduled_rates(0, {1, 10, 100});
    const auto step = [&] {
      set_grad(p, torch::ones(1));
      sgd.step();
      return p.item<float>();
    };
    step();
    EXPECT_EQ(step(), -11);
    auto state = sgd.state_tensors();
    state["taken"] = at::scalar_tensor(0, at::kLong);
    sgd.load_state_tensors(state);
    EXPECT_EQ(sgd.state_tensors().at("taken").item<int64_t>(), 0) << emulated;
    EXPECT_EQ(step(), -12) << emulated;
    EXPECT_EQ(sgd.state_tensors().at("taken").item<int64_t>(), 1) << emulated;
  }
}

TEST(DeviceStep, RatesAndScalesAreThoseSetLast) {
  for (const bool emulated : {false, true}) {
    const EmulatedDevice device;
    const Backend& backend = emulated ? device : machine_backend();
    const at::Tensor p = torch::zeros(1).requires_grad_();
    On<SGD> sgd(backend, {p}, SGDOptions(7));
    const auto applied = [&] {
      const at::NoGradGuard no_grad;
      p.zero_();
      set_grad(p, torch::full({1}, 8.F));
      sgd.step();
      return -p.item<float>();
    };
    for (const double rate : {2.0, 3.0}) {
      sgd.set_scheduled_rates(0, {rate});
      EXPECT_EQ(applied(), 8 * rate) << emulated;
    }
    sgd.set_scheduled_rates(0, {});
    EXPECT_EQ(applied(), 8 * 7) << emulated;
    set_grad(p, torch::full({1}, 8.F));
    sgd.pending().set_scale(at::scalar_tensor(2.F));
    EXPECT_EQ(sgd.pending().grad_norm().item<float>(), 4);
    sgd.pending().set_scale(at::scalar_tensor(4.F));
    EXPECT_EQ(applied(), 8 * 7 / 4) << emulated;
    EXPECT_EQ(sgd.last_step().scale(), 4);
    EXPECT_EQ(applied(), 8 * 7) << emulated;  // and none for the step after
    EXPECT_EQ(sgd.last_step().scale(), 1);
  }
}

TEST(DeviceStep, StateGoesThroughAFileAndTheCountWithIt) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({6}), q = parameter({6});
  On<AdamW> whole(device, {p}, AdamWOptions()), broken(device, {q}, AdamWOptions());
  for (int step = 0; step < 6; ++step) {
    set_grad(p, gradient(p, at::kBFloat16, step) * (step == 2 ? kInf : 1));
    set_grad(q, gradient(q, at::kBFloat16, step) * (step == 2 ? kInf : 1));
    whole.step();
    broken.step();
    if (step != 3) continue;
    const auto state = broken.state_tensors();
    EXPECT_EQ(state.at("taken").item<int64_t>(), 3);
    EXPECT_EQ(state.at("0.step").item<int64_t>(), 3);
    On<AdamW> other(device, {q}, AdamWOptions());
    other.load_state_tensors(state);
    broken.load_state_tensors(other.state_tensors());
  }
  EXPECT_TRUE(at::equal(p, q));
  EXPECT_EQ(broken.state_tensors().at("taken").item<int64_t>(), 5);
}

TEST(DeviceStep, AParameterThatComesLaterKeepsTheCount) {
  const EmulatedDevice device;
  const at::Tensor p = torch::zeros(1).requires_grad_(), q = torch::zeros(1).requires_grad_();
  On<SGD> sgd(device, {p, q}, SGDOptions(100));
  sgd.set_scheduled_rates(0, {1, 10, 100});
  set_grad(p, torch::ones(1));
  sgd.step();
  set_grad(q, torch::ones(1));
  sgd.step();
  EXPECT_EQ(p.item<float>(), -11);
  EXPECT_EQ(q.item<float>(), -10);
  EXPECT_EQ(sgd.state_tensors().at("taken").item<int64_t>(), 2);
}

TEST(DeviceStep, TheCountOfStepsMovesBetweenHostAndDevice) {
  const EmulatedDevice device;
  const at::Tensor p = torch::zeros(1).requires_grad_();
  const at::Tensor q = torch::zeros(1, at::kDouble).requires_grad_();
  On<SGD> sgd(device, {p, q}, SGDOptions(1));
  const auto step_with = [](SGD& optimizer, const at::Tensor& x) {
    set_grad(x, torch::ones(1, x.scalar_type()));
    optimizer.step();
    return optimizer.state_tensors().at("taken").item<int64_t>();
  };
  EXPECT_EQ(step_with(sgd, p), 1);
  EXPECT_EQ(step_with(sgd, p), 2);
  EXPECT_EQ(step_with(sgd, q), 3);  // from now on there are two tables
  const auto state = sgd.state_tensors();
  On<SGD> loaded(device, {p}, SGDOptions(1));
  loaded.load_state_tensors({{"0.step", state.at("0.step")}, {"taken", state.at("taken")}});
  EXPECT_EQ(step_with(loaded, p), 4);  // counted on the device again
}

// fp64 has tables of its own: the host joins what they found.
TEST(DeviceStep, TablesOfTwoKindsDecideTogether) {
  std::vector<Tensors> numbers;
  for (const bool emulated : {false, true}) {
    const EmulatedDevice device;
    const Backend& backend = emulated ? device : machine_backend();
    const at::Tensor p = parameter({9}), q = parameter({5}, at::kDouble);
    On<SGD> sgd(backend, {p, q}, SGDOptions(1).momentum(0.5),
                emulated ? StepOptions{} : StepOptions{.path = kernels::Path::reference});
    for (int step = 0; step < 5; ++step) {
      set_grad(p, gradient(p, at::kBFloat16, step) * 8);
      set_grad(q, gradient(q, at::kDouble, step) * 8);
      if (step == 1) q.grad()[2] = kInf;
      if (step == 3) p.grad()[2] = kInf;
      const at::Tensor before = p.detach().clone(), other = q.detach().clone();
      step % 2 ? sgd.pending().set_scale(eight()) : sgd.pending().unscale_(eight());
      clip_grad_norm_({p, q}, 0.5);
      sgd.step();
      EXPECT_EQ(sgd.last_step().skipped(), step == 1 || step == 3);
      EXPECT_EQ(at::equal(p, before), sgd.last_step().skipped());
      EXPECT_EQ(at::equal(q, other), sgd.last_step().skipped());
    }
    numbers.push_back(everything({p, q}, sgd));
  }
  expect_same(numbers[0], numbers[1], "joined");
}

}  // namespace
}  // namespace demi::optim
