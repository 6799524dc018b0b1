// Loops of one's own: what is captured after a step and restored into new objects continues as the
// unbroken loop, bit for bit.
#include "demi/checkpoint/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <limits>

#include "demi/autocast/autocast.h"
#include "demi/autocast/backward.h"
#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/core/error.h"
#include "demi/core/memory_testing.h"
#include "demi/optim/adamw.h"
#include "demi/optim/backend_testing.h"
#include "demi/optim/lion.h"
#include "demi/optim/sgd.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/weights/recorded_warnings_testing.h"
#include "demi/weights/weights.h"

namespace demi::checkpoint {
namespace {

using optim::testing::EmulatedDevice;
using optim::testing::On;
using ::testing::HasSubstr;
using weights::testing::RecordedWarnings;

class ScalerOn : public GradScaler {
 public:
  ScalerOn(const optim::Backend& backend, GradScalerOptions options)
      : GradScaler(options, backend) {}
};

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void expect_equal(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.numbers, b.numbers);
  for (const auto& [one, other] : {std::pair(&a.model, &b.model), std::pair(&a.state, &b.state)}) {
    ASSERT_EQ(one->size(), other->size());
    for (const auto& [name, tensor] : *one) {
      ASSERT_TRUE(other->contains(name)) << name;
      if (name.ends_with("/archive")) continue;  // its bytes hold addresses
      EXPECT_TRUE(equal_bits(tensor, other->at(name))) << name;
    }
  }
}

/// A loop of one's own with everything that it may have.
struct Loop {
  torch::nn::Sequential model;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  std::optional<GradScaler> scaler;
  std::vector<std::unique_ptr<optim::lr::Scheduler>> schedules;
  std::optional<EMA> average;
  at::Tensor temperature;  // learned, and no parameter of the model
  c10::ScalarType low = at::kHalf;

  explicit Loop(uint64_t seed, c10::ScalarType weights = at::kFloat)
      : model((torch::manual_seed(seed), torch::nn::Linear(4, 8)), torch::nn::BatchNorm1d(8),
              torch::nn::ReLU(), torch::nn::Dropout(0.4), torch::nn::Linear(8, 2)) {
    model->to(weights);
  }
  std::vector<at::Tensor> parameters() const { return model->parameters(); }

  loop::Job objects() {
    loop::Job all{.models = {model.ptr().get()}};
    for (const auto& optimizer : optimizers) all.optimizers.push_back(optimizer.get());
    for (const auto& schedule : schedules) all.schedules.push_back(schedule.get());
    if (scaler) all.scaler = &*scaler;
    if (average) all.average = &*average;
    if (temperature.defined()) all.more = {temperature};
    return all;
  }

  void step(int64_t number) {
    const at::Tensor x =
        (torch::arange(24, at::kDouble) * 0.9 + number).sin().reshape({6, 4}).to(at::kFloat);
    const at::Tensor y = torch::arange(6) % 2;
    at::Tensor output;
    {
      const bool mixed = model->parameters().front().scalar_type() == at::kFloat;
      const Autocast region(at::kCPU, AutocastOptions{.dtype = low, .enabled = mixed});
      output = model->forward(x.to(model->parameters().front().scalar_type()));
    }
    output = output.to(at::kFloat);
    if (temperature.defined()) output = output / temperature;
    const at::Tensor loss = torch::nn::functional::cross_entropy(output, y);
    backward(scaler ? scaler->scale(loss) : loss);
    StepResult last;
    for (const auto& optimizer : optimizers) {
      if (scaler)
        last = scaler->step(*optimizer);
      else
        optimizer->step();
    }
    if (average) scaler ? average->update(last) : average->update();
    if (scaler) scaler->update();
    for (const auto& schedule : schedules) schedule->step();
    model->zero_grad();
    if (temperature.defined()) temperature.mutable_grad().reset();
  }
};

/// After each of the steps: captured, put into a new loop, continued.
void expect_loop_to_go_on(const std::function<std::unique_ptr<Loop>(uint64_t seed)>& make,
                          bool expects_skips = false) {
  constexpr int64_t kSteps = 6;
  const auto whole = make(1);
  torch::manual_seed(42);
  std::vector<Checkpoint> states;
  for (int64_t step = 0; step < kSteps; ++step) {
    states.push_back(own_copy(capture(whole->objects())));
    whole->step(step);
  }
  const Checkpoint end = capture(whole->objects());
  if (expects_skips) {
    EXPECT_LT(end.state.at("optimizer/taken").item<int64_t>(), kSteps);
  }
  const at::Tensor drawn = torch::rand({4});
  for (int64_t k = 0; k < kSteps; ++k) {
    SCOPED_TRACE(k);
    const auto rest = make(static_cast<uint64_t>(k + 2));
    torch::manual_seed(k);
    restore(states[static_cast<size_t>(k)], rest->objects());
    for (int64_t step = k; step < kSteps; ++step) rest->step(step);
    expect_equal(end, capture(rest->objects()));
    EXPECT_TRUE(torch::equal(torch::rand({4}), drawn));
  }
}

TEST(TrainingState, GoesOnWithScalerScheduleAndAverage) {
  expect_loop_to_go_on(
      [](uint64_t seed) {
        auto loop = std::make_unique<Loop>(seed);
        loop->optimizers.push_back(
            std::make_shared<optim::AdamW>(loop->parameters(), optim::AdamWOptions(0.05)));
        loop->scaler.emplace(GradScalerOptions{.init_scale = 0x1p22, .growth_interval = 2});
        loop->schedules.push_back(std::make_unique<optim::lr::Scheduler>(*loop->optimizers.front(),
                                                                         optim::lr::cosine(10)));
        loop->average.emplace(*loop->model, 0.7);
        return loop;
      },
      /*expects_skips=*/true);
}

TEST(TrainingState, GoesOnWithSeveralOptimizersOfBothLibraries) {
  expect_loop_to_go_on([](uint64_t seed) {
    auto loop = std::make_unique<Loop>(seed);
    const auto all = loop->parameters();
    const std::vector<at::Tensor> some(all.begin(), all.begin() + 3),
        rest(all.begin() + 3, all.end());
    loop->optimizers.push_back(
        std::make_shared<torch::optim::SGD>(some, torch::optim::SGDOptions(0.1).momentum(0.9)));
    loop->optimizers.push_back(std::make_shared<optim::Lion>(rest, optim::LionOptions(0.01)));
    for (const auto& optimizer : loop->optimizers)
      loop->schedules.push_back(
          std::make_unique<optim::lr::Scheduler>(*optimizer, optim::lr::exponential(0.8)));
    return loop;
  });
}

TEST(TrainingState, GoesOnWithWhatTheModelDoesNotHold) {
  for (const bool ours : {true, false}) {
    const auto make = [=](uint64_t seed) {
      auto loop = std::make_unique<Loop>(seed);
      loop->temperature = torch::full({1}, 1.0 + static_cast<double>(seed)).requires_grad_();
      std::vector<at::Tensor> all = loop->parameters();
      all.insert(all.begin() + 1, loop->temperature);
      if (ours)
        loop->optimizers.push_back(std::make_shared<optim::AdamW>(all, optim::AdamWOptions(0.05)));
      else
        loop->optimizers.push_back(
            std::make_shared<torch::optim::AdamW>(all, torch::optim::AdamWOptions(0.05)));
      return loop;
    };
    expect_loop_to_go_on(make);
    const auto one = make(1);
    const Checkpoint saved = capture(one->objects());
    EXPECT_EQ(saved.parameters.at("optimizer").at(0).at(1), "more/0");
    EXPECT_TRUE(saved.state.at("more/0").equal(torch::full({1}, 2.0)));
    one->temperature = torch::ones({2});
    EXPECT_THROW(restore(saved, one->objects()), UsageError);
    one->temperature.reset();
    EXPECT_THROW(capture(one->objects()), UsageError) << "it is not named";
  }
}

// LibTorch cannot save tensors that a step has not set: its scratch space has them until the
// history is full, and the state of a step that met no gradient has nothing else.
TEST(TrainingState, LbfgsGoesOnAfterAnyStep) {
  const at::Tensor x = torch::sin(torch::arange(24.0).view({6, 4})), y = torch::cos(x.sum(1, true));
  struct Fit {
    torch::nn::Linear model{4, 1};
    torch::optim::LBFGS optimizer{model->parameters(),
                                  torch::optim::LBFGSOptions(0.5).max_iter(3).history_size(8)};
    loop::Job job() { return {.models = {model.get()}, .optimizers = {&optimizer}}; }
  };
  const auto step = [&](Fit& fit, double weight) {
    fit.optimizer.step([&] {
      fit.optimizer.zero_grad();
      const at::Tensor loss = weight * torch::mse_loss(fit.model->forward(x), y);
      loss.backward();
      return loss;
    });
  };
  Fit whole;
  std::vector<Checkpoint> states;
  for (const double weight : {0., 1., 1., 1.}) {
    step(whole, weight);
    states.push_back(own_copy(capture(whole.job())));
  }
  for (std::size_t k = 0; k < states.size(); ++k) {
    Fit rest;
    restore(states[k], rest.job());
    for (std::size_t i = k + 1; i < states.size(); ++i) step(rest, 1);
    EXPECT_TRUE(torch::equal(rest.model->weight, whole.model->weight)) << k;
    EXPECT_TRUE(torch::equal(rest.model->bias, whole.model->bias)) << k;
  }
}

TEST(TrainingState, GoesOnIn16BitsWithMasters) {
  expect_loop_to_go_on([](uint64_t seed) {
    auto loop = std::make_unique<Loop>(seed, at::kBFloat16);
    loop->optimizers.push_back(
        std::make_shared<optim::AdamW>(loop->parameters(), optim::AdamWOptions(0.01)));
    return loop;
  });
}

// The device decides whether a step is taken, and counts the steps.
TEST(TrainingState, GoesOnOnAnEmulatedDevice) {
  for (const ScaleMode mode : {ScaleMode::kDynamic, ScaleMode::kAmax}) {
    EmulatedDevice device;
    expect_loop_to_go_on(
        [&](uint64_t seed) {
          auto loop = std::make_unique<Loop>(seed);
          auto adamw = std::make_shared<On<optim::AdamW>>(device, loop->parameters(),
                                                          optim::AdamWOptions(0.05));
          adamw->set_scheduled_rates(0, {0.05, 0.04, 0.03, 0.02, 0.01});
          loop->optimizers.push_back(adamw);
          loop->scaler.emplace(ScalerOn(device, {.init_scale = 0x1p22,
                                                 .growth_interval = 2,
                                                 .hysteresis = 2,
                                                 .mode = mode,
                                                 .amax_window = 3}));
          loop->average.emplace(*loop->model, 0.7);
          return loop;
        },
        /*expects_skips=*/true);
  }
}

TEST(TrainingState, KeepsOptionsThatWereChangedByHand) {
  Loop loop(1), other(2);
  for (Loop* one : {&loop, &other})
    one->optimizers.push_back(
        std::make_shared<optim::AdamW>(one->parameters(), optim::AdamWOptions(0.05)));
  auto& options =
      static_cast<optim::AdamWOptions&>(loop.optimizers.front()->param_groups()[0].options());
  options.lr(0.1 + 0.2).betas({0.8, 0.9}).weight_decay(0.125).maximize(true);
  auto& others =
      static_cast<optim::AdamWOptions&>(other.optimizers.front()->param_groups()[0].options());
  restore(capture(loop.objects()), other.objects());
  EXPECT_EQ(others.lr(), 0.1 + 0.2);
  EXPECT_EQ(others.betas(), std::make_tuple(0.8, 0.9));
  EXPECT_EQ(others.weight_decay(), 0.125);
  EXPECT_TRUE(others.maximize());
  EXPECT_FALSE(others.amsgrad());
}

// A rate that the user set after the schedule did stays.
TEST(TrainingState, KeepsARateThatIsNotTheSchedules) {
  Loop loop(1), other(2);
  for (Loop* one : {&loop, &other}) {
    one->optimizers.push_back(
        std::make_shared<optim::SGD>(one->parameters(), optim::SGDOptions(0.5)));
    one->schedules.push_back(std::make_unique<optim::lr::Scheduler>(*one->optimizers.front(),
                                                                    optim::lr::exponential(0.5)));
  }
  loop.step(0);
  loop.optimizers.front()->param_groups()[0].options().set_lr(0.375);
  restore(capture(loop.objects()), other.objects());
  EXPECT_EQ(other.optimizers.front()->param_groups()[0].options().get_lr(), 0.375);
  other.schedules.front()->step();
  EXPECT_EQ(other.optimizers.front()->param_groups()[0].options().get_lr(), 0.125);
}

struct TwoWithASchedule {
  torch::nn::Linear a{2, 1}, b{2, 1};
  optim::SGD of_a{a->parameters(), optim::SGDOptions(0.1)},
      of_b{b->parameters(), optim::SGDOptions(0.2)};
  optim::lr::Scheduler schedule{of_b, optim::lr::exponential(0.5)};

  loop::Job job(std::vector<optim::lr::Scheduler*> schedules) {
    return {.models = {{"a", a.ptr().get()}, {"b", b.ptr().get()}},
            .optimizers = {&of_a, &of_b},
            .schedules = std::move(schedules)};
  }
};

// A schedule has the number of its optimizer, as in Python, wherever it stands in the job.
TEST(TrainingState, AScheduleIsSavedByItsOptimizer) {
  TwoWithASchedule one;
  one.schedule.step();
  for (const auto& schedules :
       std::vector<std::vector<optim::lr::Scheduler*>>{{&one.schedule}, {nullptr, &one.schedule}}) {
    const Checkpoint saved = own_copy(capture(one.job(schedules)));
    EXPECT_FALSE(saved.numbers.contains("schedule"));
    EXPECT_EQ(saved.numbers.at("schedule.1"), (StateDict{{"last_epoch", 1}, {"base_lrs.0", 0.2}}));
    TwoWithASchedule other;
    restore(saved, other.job({nullptr, &other.schedule}));
    EXPECT_EQ(other.schedule.state_dict(), one.schedule.state_dict());
    EXPECT_EQ(other.of_a.param_groups()[0].options().get_lr(), 0.1);
    EXPECT_EQ(other.of_b.param_groups()[0].options().get_lr(), 0.1);  // 0.2 x 0.5
  }
  optim::lr::Scheduler second(one.of_b, optim::lr::exponential(0.5));
  EXPECT_THROW(capture(one.job({&one.schedule, &second})), UsageError);
}

// Of one model among several, and of a part of one.
TEST(TrainingState, AnAverageThatWasNotSavedBeginsAsTheLoadedWeights) {
  for (const bool of_part : {false, true}) {
    torch::nn::Sequential g(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3)),
        c(torch::nn::Linear(3, 1));
    loop::Job job{.models = {{"g", g.ptr().get()}, {"c", c.ptr().get()}}};
    const Checkpoint saved = own_copy(capture(job));
    const at::NoGradGuard no_grad;
    for (const auto& p : g->parameters()) p.fill_(7);
    torch::nn::Module& averaged = of_part ? *g[0] : *g;
    EMA average(averaged, 0.5);
    job.average = &average;
    restore(saved, job);
    const auto weights = named_tensors(averaged);
    ASSERT_EQ(average.averages().size(), weights.size());
    for (const auto& [name, weight] : weights) {
      EXPECT_TRUE(average.averages().at(name).equal(weight)) << name;
      EXPECT_TRUE(weight.equal(saved.model.at((of_part ? "g.0." : "g.") + name))) << name;
    }
  }
}

TEST(TrainingState, IsSeenByTheWeightCache) {
  torch::nn::Linear model(3, 2);
  optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));  // owns the weights' copies
  const auto in_region = [&] {
    const Autocast region(at::kCPU, at::kBFloat16);
    return model->forward(torch::ones({1, 3})).to(at::kFloat);
  };
  const at::Tensor before = in_region();
  Checkpoint checkpoint = own_copy(capture({.models = {model.ptr().get()}}));
  for (auto& [name, tensor] : checkpoint.model) tensor.fill_(2);
  restore(checkpoint, {.models = {model.ptr().get()}});
  EXPECT_FALSE(torch::equal(in_region(), before));
  EXPECT_TRUE(torch::equal(in_region(), torch::full({1, 2}, 8.0)));  // 3 x 2 + 2
}

// Everything that a restore may touch.
Checkpoint everything(Loop& loop) { return own_copy(capture(loop.objects())); }

struct Full : Loop {
  explicit Full(uint64_t seed) : Loop(seed) {
    optimizers.push_back(std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions(0.05)));
    scaler.emplace(GradScalerOptions{.init_scale = 1024});
    schedules.push_back(
        std::make_unique<optim::lr::Scheduler>(*optimizers.front(), optim::lr::cosine(10)));
    average.emplace(*model, 0.7);
    step(0);
  }
};

TEST(TrainingState, IsRestoredWholeOrNotAtAll) {
  Full loop(1), other(2);
  loop.step(1);
  const Checkpoint good = everything(loop);
  const auto expect_refused = [&](const char* words, const auto& spoil) {
    Checkpoint bad = own_copy(good);
    spoil(bad);
    const Checkpoint before = everything(other);
    try {
      restore(bad, other.objects());
      ADD_FAILURE() << words;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
    expect_equal(before, everything(other));
  };
  expect_refused("missing 0.weight", [](Checkpoint& bad) { bad.model.erase("0.weight"); });
  expect_refused("unknown more", [](Checkpoint& bad) { bad.model["more"] = torch::zeros(1); });
  expect_refused("4.bias", [](Checkpoint& bad) { bad.model["4.bias"] = torch::zeros(3); });
  expect_refused("1.num_batches_tracked", [](Checkpoint& bad) {
    bad.model["1.num_batches_tracked"] = torch::zeros({}, at::kBool);
  });
  expect_refused("does not fit its parameter",
                 [](Checkpoint& bad) { bad.state["optimizer/0.exp_avg"] = torch::zeros(3); });
  expect_refused("exp_avg_sq", [](Checkpoint& bad) { bad.state.erase("optimizer/0.exp_avg_sq"); });
  expect_refused("number of optimizers", [](Checkpoint& bad) {
    std::erase_if(bad.state, [](const auto& one) { return one.first.starts_with("optimizer/"); });
  });
  expect_refused("number of optimizers", [](Checkpoint& bad) {
    bad.state["optimizer.1/taken"] = torch::zeros({}, at::kLong);
  });
  expect_refused("another optimizer", [](Checkpoint& bad) { bad.text["demi.optimizer"] = "Adam"; });
  expect_refused("lr", [](Checkpoint& bad) { bad.numbers["optimizer/group.0"]["lr"] = -1; });
  expect_refused("foreach",
                 [](Checkpoint& bad) { bad.numbers["optimizer/group.0"]["foreach"] = 1; });
  expect_refused("flag", [](Checkpoint& bad) { bad.numbers["optimizer/group.0"]["amsgrad"] = 2; });
  expect_refused("parameter groups",
                 [](Checkpoint& bad) { bad.numbers["optimizer/group.1"]["lr"] = 1; });
  expect_refused("scale", [](Checkpoint& bad) { bad.numbers["scaler"].erase("scale"); });
  expect_refused("init_scale", [](Checkpoint& bad) { bad.numbers["scaler"]["scale"] = 0; });
  expect_refused("last_epoch", [](Checkpoint& bad) { bad.numbers["schedule"]["last_epoch"] = -1; });
  expect_refused("averages",
                 [](Checkpoint& bad) { bad.state["average/0.weight"] = torch::zeros(1); });
  expect_refused("random/cpu",
                 [](Checkpoint& bad) { bad.state["random/cpu"] = torch::zeros(7, at::kByte); });
  expect_refused("random/cpu", [](Checkpoint& bad) { bad.state["random/cpu"] = torch::zeros(7); });
  restore(good, other.objects());
  expect_equal(good, everything(other));
}

TEST(TrainingState, OfLibTorchsOptimizersIsCheckedFirst) {
  const auto with = [](uint64_t seed, auto make) {
    auto loop = std::make_unique<Loop>(seed);
    loop->optimizers.push_back(make(loop->parameters()));
    loop->step(0);
    return loop;
  };
  const auto sgd = [](std::vector<at::Tensor> p) {
    return std::make_shared<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  const auto adam = [](std::vector<at::Tensor> p) {
    return std::make_shared<torch::optim::Adam>(p, torch::optim::AdamOptions(0.1));
  };
  const auto ours = [](std::vector<at::Tensor> p) {
    return std::make_shared<optim::SGD>(p, optim::SGDOptions(0.1));
  };
  const auto source = with(1, sgd), target = with(2, sgd), other = with(3, adam),
             demis = with(4, ours);
  const auto fewer = with(5, [&](std::vector<at::Tensor> p) {
    p.pop_back();
    return sgd(p);
  });
  const auto expect_refused = [&](Checkpoint bad, Loop& into, const char* words) {
    bad.text.clear();  // without the name of the class
    const Checkpoint before = everything(into);
    try {
      restore(bad, into.objects());
      ADD_FAILURE() << words;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
    expect_equal(before, everything(into));
  };
  expect_refused(everything(*source), *other, "another optimizer");
  expect_refused(everything(*source), *demis, "another optimizer");
  expect_refused(everything(*demis), *source, "another optimizer");
  expect_refused(everything(*source), *fewer, "without 4.bias");
  Checkpoint nameless = everything(*source);
  nameless.parameters.clear();
  expect_refused(nameless, *fewer, "number of parameters");
  Checkpoint broken = everything(*source);
  at::Tensor& archive = broken.state.at("optimizer/archive");
  archive = archive.slice(0, 0, archive.numel() / 2);
  expect_refused(broken, *target, "archive");
  archive = torch::zeros({3});
  expect_refused(broken, *target, "archive");
}

TEST(TrainingState, AcrossPrecisions) {
  Full scaled(1);
  scaled.step(1);
  const Checkpoint with_scaler = everything(scaled);
  ASSERT_TRUE(with_scaler.numbers.contains("scaler"));
  // A run without scaling continues one with it.
  Full plain(2);
  plain.scaler.reset();
  restore(with_scaler, plain.objects());
  plain.step(2);
  // And one with scaling from one without: the scale that a new scaler has.
  Full fresh(3);
  fresh.scaler->update(4096);
  restore(everything(plain), fresh.objects());
  EXPECT_EQ(fresh.scaler->get_scale(), 1024);
  EXPECT_EQ(fresh.scaler->get_growth_tracker(), 0);
  // FP32 weights in a bf16 module: rounded, and the masters are made from them.
  Loop low(4, at::kBFloat16);
  low.optimizers.push_back(
      std::make_shared<optim::AdamW>(low.parameters(), optim::AdamWOptions(0.05)));
  const Checkpoint fp32 = everything(plain);
  restore(fp32, low.objects());
  for (const auto& item : low.model->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), fp32.model.at(item.key()).to(at::kBFloat16)));
  low.step(3);
  const Checkpoint bf16 = everything(low);
  EXPECT_EQ(bf16.state.at("optimizer/0.master").scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(bf16.state.at("optimizer/0.master").to(at::kBFloat16),
                           bf16.model.at("0.weight")));
  EXPECT_FALSE(
      torch::equal(bf16.state.at("optimizer/0.exp_avg"), fp32.state.at("optimizer/0.exp_avg")))
      << "its moments go on";
  // And back: the masters are the weights, and an average that was not saved starts as they are.
  Full wide(5);
  restore(bf16, wide.objects());
  int number = 0;
  for (const auto& item : wide.model->named_parameters()) {
    EXPECT_TRUE(equal_bits(item.value().detach(),
                           bf16.state.at("optimizer/" + std::to_string(number++) + ".master")));
    EXPECT_TRUE(torch::equal(wide.average->averages().at(item.key()), item.value()));
  }
  wide.step(4);
}

TEST(TrainingState, LeavesRandomStatesOfAbsentDevices) {
  torch::nn::Linear model(1, 1);
  Checkpoint checkpoint = own_copy(capture({.models = {model.ptr().get()}}));
  checkpoint.state["random/cuda:99"] = torch::zeros(16, at::kByte);
  const at::Tensor drawn = torch::rand({3});
  restore(checkpoint, {.models = {model.ptr().get()}});
  EXPECT_TRUE(torch::equal(torch::rand({3}), drawn));
  const at::Tensor next = torch::rand({3});
  restore(checkpoint, {.models = {model.ptr().get()}});
  torch::rand({3});
  EXPECT_TRUE(torch::equal(torch::rand({3}), next));
  torch::manual_seed(1);
  const at::Tensor own = torch::rand({3});
  torch::manual_seed(1);
  restore(checkpoint, {.models = {model.ptr().get()}, .random = false});
  EXPECT_TRUE(torch::equal(torch::rand({3}), own)) << "random = false leaves them alone";
}

TEST(TrainingState, NeverHoldsAveragesInTheWeightsPlace) {
  Full loop(1);
  const Checkpoint good = everything(loop);
  loop.average->swap();
  EXPECT_THROW(capture(loop.objects()), UsageError);
  EXPECT_THROW(restore(good, loop.objects()), UsageError);
  loop.average->swap();
  expect_equal(good, everything(loop));
}

TEST(TrainingState, NeedsAModelThatHoldsAllParameters) {
  EXPECT_THROW(capture({}), UsageError);
  torch::nn::Linear model(2, 2), other(2, 2);
  optim::SGD sgd(other->parameters(), optim::SGDOptions(0.1));
  EXPECT_THROW(capture({.models = {model.ptr().get()}, .optimizers = {&sgd}}), UsageError);
}

/// 16 parameters of 4 MiB.
struct LargeModel : torch::nn::Module {
  static constexpr int64_t kTensors = 16, kElements = int64_t{1} << 20;
  static constexpr int64_t kTensorKilobytes = kElements * 4 / 1024;

  explicit LargeModel(double value) {
    for (int64_t i = 0; i < kTensors; ++i)
      register_parameter(std::to_string(i),
                         torch::full({kElements}, value + static_cast<double>(i)));
  }
};

using TrainingStateFile = CheckpointFolder;

TEST_F(TrainingStateFile, LoadsInOneTensorOfMemoryBeyondTheObjects) {
  LargeModel saved(1), loaded(100), weights(200);
  optim::AdamW trained(saved.parameters(), optim::AdamWOptions(0.1));
  for (at::Tensor& parameter : saved.parameters())
    parameter.mutable_grad() = torch::ones_like(parameter);
  trained.step();
  trained.zero_grad();
  save(folder_, 1, {.models = {&saved}, .optimizers = {&trained}});
  optim::AdamW fresh(loaded.parameters(), optim::AdamWOptions(0.1));
  const loop::Job objects{.models = {&loaded}, .optimizers = {&fresh}};
  const int64_t all = peak_kilobytes_of([&] { load(folder_, objects); });
  const int64_t model = peak_kilobytes_of([&] { load(folder_, weights); });
  expect_equal(capture({.models = {&saved}, .optimizers = {&trained}}), capture(objects));
  for (const auto& item : weights.named_parameters())
    EXPECT_TRUE(equal_bits(item.value(), saved.named_parameters()[item.key()]));
  if (all < 0) GTEST_SKIP() << "memory cannot be measured here";
  EXPECT_LT(all, (2 * LargeModel::kTensors + 2) * LargeModel::kTensorKilobytes) << "two moments";
  EXPECT_LT(model, 2 * LargeModel::kTensorKilobytes);
}

TEST_F(TrainingStateFile, LeavesTheCallersTensorsInMemoryOfTheirOwn) {
  Full loop(1);
  Checkpoint checkpoint = everything(loop);
  checkpoint.state["mine"] = torch::tensor({1.5, 2.5});
  checkpoint.numbers["mine"]["a"] = 3;
  const std::filesystem::path step = save(folder_, 1, checkpoint);
  const Checkpoint rest = load(step, loop.objects());
  std::ofstream(step / "state.safetensors", std::ios::in) << std::string(4096, 'x');
  EXPECT_TRUE(rest.model.empty());
  ASSERT_EQ(rest.state.size(), 1U);
  EXPECT_TRUE(equal_bits(rest.state.at("mine"), checkpoint.state.at("mine")));
  EXPECT_EQ(rest.numbers.at("mine").at("a"), 3);
}

// A layer that is in the model twice has two names. Python's state_dict(), and files of older
// versions, hold both.
TEST(TrainingState, HoldsATensorOfTwoNamesOnce) {
  const auto tied = [] {
    torch::nn::Linear layer(3, 3);
    return torch::nn::Sequential(layer, torch::nn::Tanh(), layer);
  };
  torch::nn::Sequential saved = tied(), loaded = tied();
  Checkpoint checkpoint = capture({.models = {saved.ptr().get()}, .random = false});
  ASSERT_EQ(checkpoint.model.size(), 2U);
  EXPECT_TRUE(equal_bits(checkpoint.model.at("0.weight"), saved->parameters()[0]));
  restore(checkpoint, {.models = {loaded.ptr().get()}, .random = false});
  EXPECT_TRUE(equal_bits(loaded->parameters()[0], saved->parameters()[0]));

  torch::nn::Sequential from_both = tied(), from_second = tied();
  checkpoint.model["2.weight"] = checkpoint.model.at("0.weight");
  restore(checkpoint, {.models = {from_both.ptr().get()}, .random = false});
  EXPECT_TRUE(equal_bits(from_both->parameters()[0], saved->parameters()[0]));
  checkpoint.model.erase("0.weight");
  restore(checkpoint, {.models = {from_second.ptr().get()}, .random = false});
  EXPECT_TRUE(equal_bits(from_second->parameters()[0], saved->parameters()[0]));
}

// One of two values would be dropped. huggingface::read_model refuses such a file, too.
TEST(TrainingState, RefusesDifferentValuesOfOneTensor) {
  torch::nn::Linear layer(3, 3);
  torch::nn::Sequential tied(layer, torch::nn::Tanh(), layer);
  const at::Tensor weight = layer->weight.detach(), before = weight.clone();
  Checkpoint checkpoint = own_copy(capture({.models = {tied.ptr().get()}, .random = false}));
  at::Tensor& first = checkpoint.model.at("0.weight");
  const auto said = [&]() -> std::string {
    try {
      restore(checkpoint, {.models = {tied.ptr().get()}, .random = false});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError";
  };
  for (const at::Tensor& other : {first + 1, first.to(at::kDouble), torch::zeros({3, 4})}) {
    checkpoint.model["2.weight"] = other;
    EXPECT_THAT(said(), ::testing::AllOf(HasSubstr("0.weight"), HasSubstr("2.weight")));
    EXPECT_TRUE(equal_bits(weight, before));
  }
  first.fill_(std::numeric_limits<float>::quiet_NaN());
  checkpoint.model["2.weight"] = first.clone();
  EXPECT_EQ(said(), "no UsageError") << "the same bits";
}

// The greatest number of each dtype that a file has, in every other one.
TEST_F(TrainingStateFile, IntegersLoadIntoEachDtypeThatHoldsThem) {
  struct Whole {
    c10::ScalarType dtype;
    uint64_t most;
  };
  const std::vector<Whole> all{{at::kChar, 0x7f},        {at::kByte, 0xff},
                               {at::kShort, 0x7fff},     {at::kUInt16, 0xffff},
                               {at::kInt, 0x7fff'ffff},  {at::kUInt32, 0xffff'ffff},
                               {at::kLong, ~0ULL >> 1U}, {at::kUInt64, ~0ULL}};
  const auto numbers = [](uint64_t most, c10::ScalarType dtype) {
    return torch::tensor({int64_t{0}, static_cast<int64_t>(most)}, at::kLong).to(dtype);
  };
  const auto file = folder_ / "model.safetensors";
  for (const Whole& from : all)
    for (const Whole& to : all) {
      SCOPED_TRACE(c10::str(from.dtype, " to ", to.dtype));
      const auto module = std::make_shared<torch::nn::Module>();
      const at::Tensor ids = module->register_buffer("ids", torch::zeros({2}, to.dtype));
      const uint64_t most = std::min(from.most, to.most);
      save_safetensors(file, {{"ids", numbers(most, from.dtype)}});
      load(file, *module);
      EXPECT_TRUE(equal_bits(ids, numbers(most, to.dtype)));
      if (from.most == most) continue;
      save_safetensors(file, {{"ids", numbers(most + 1, from.dtype)}});
      EXPECT_THROW(load(file, *module), UsageError);
    }
}

// LibTorch's optimizers count no steps: the checkpoint's number is that of the run's.
TEST_F(TrainingStateFile, WarnsOfAScheduleThatBeginsInTheMiddleOfARun) {
  struct Small {
    torch::nn::Linear model{2, 1};
    torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.1)};
    optim::lr::Scheduler schedule{sgd, optim::lr::exponential(0.5)};
    loop::Job job(bool with_schedule) {
      loop::Job all{.models = {model.ptr().get()}, .optimizers = {&sgd}};
      if (with_schedule) all.schedules = {&schedule};
      return all;
    }
  };
  for (const int64_t step : {500, 0})
    for (const bool with_schedule : {false, true}) {
      Small saved, other;
      const auto path = save(folder_ / "all", step, saved.job(with_schedule));
      const RecordedWarnings heard;
      EXPECT_EQ(load(path, other.job(true)).step, step);
      const bool warns = step > 0 && !with_schedule;
      ASSERT_EQ(heard.messages().size(), warns ? 1U : 0U) << step << with_schedule;
      if (!warns) continue;
      EXPECT_THAT(heard.messages().front(), HasSubstr("begins at its step 0, in a run that has "
                                                      "taken 500"));
    }
}

TEST_F(TrainingStateFile, AModuleIsAFileAndTheFileTheModule) {
  const auto file = folder_ / "model.safetensors";
  Loop one(1), other(2);
  one.model->forward(torch::ones({3, 4}));  // running averages
  const NamedTensors tensors = named_tensors(*one.model);
  std::vector<std::string> names;
  for (const auto& item : one.model->named_parameters()) names.push_back(item.key());
  for (const auto& item : one.model->named_buffers()) names.push_back(item.key());
  ASSERT_EQ(tensors.size(), names.size());
  for (const std::string& name : names) EXPECT_TRUE(tensors.contains(name)) << name;
  EXPECT_TRUE(tensors.at("0.weight").is_same_size(one.model->parameters()[0]));
  EXPECT_EQ(tensors.at("0.weight").data_ptr(), one.model->parameters()[0].data_ptr()) << "a copy";
  EXPECT_FALSE(tensors.at("0.weight").requires_grad());
  save_safetensors(file, tensors);
  load(file, *other.model);
  for (const auto& [name, tensor] : named_tensors(*other.model))
    EXPECT_TRUE(torch::equal(tensor, tensors.at(name))) << name;
}

TEST(TrainingState, DropsGradients) {
  Full loop(1);
  const Checkpoint good = everything(loop);
  for (at::Tensor& parameter : loop.model->parameters())
    parameter.mutable_grad() = torch::ones_like(parameter);
  restore(good, loop.objects());
  for (const at::Tensor& parameter : loop.model->parameters())
    EXPECT_FALSE(parameter.grad().defined());
}

}  // namespace
}  // namespace demi::checkpoint
