// A Step that is recorded in graphs trains as the plain one does, bit for bit, whatever the program
// changes between two steps; what cannot be recorded is found. On a device that records ops and
// replays them into the same memory (recorded_graph.h).
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/loop/step.h"
#include "demi/optim/ema.h"
#include "demi/optim/kinds_testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/schedule/lr_scheduler.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/train/trainer.h"
#include "demi/weights/weights.h"
#include "tests/graphed_training.h"

namespace {

using namespace graphed_training;  // NOLINT(google-build-using-namespace)

TEST(GraphedStep, TrainsWithTheBitsOfThePlainStep) {
  for (const auto& kind : demi::optim::testing::kKinds) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(std::string(kind.name) + " " + precision);
      const Setting setting{.kind = kind.id,
                            .precision = precision,
                            .clip_norm = 0.5,
                            .averages = true,
                            .guards = true,
                            .has_scaler = std::string(precision) == "fp16"};
      expect_same_run(
          setting,
          [](Training& training) {
            for (int i = 0; i < 12; ++i) {
              training.set_rate(0.1 / (i + 1));
              training.take(i);
            }
          },
          /*least_replays=*/12);
    }
  }
}

TEST(GraphedStep, AStepThatIsSkippedIsSkippedInAReplay) {
  const Setting setting{.precision = "fp16", .averages = true, .guards = true};
  const Work work = [](Training& training) {
    for (int i = 0; i < 14; ++i) {
      Tensors x = Training::inputs(i);
      if (i == 9 || i == 10) x[0].select(0, 0).fill_(std::numeric_limits<float>::infinity());
      training.losses.push_back(training.batch(x, Training::targets(i)));
      training.results.push_back(training.step->finish().front());
    }
  };
  expect_same_run(setting, work, 10);
  Training training(setting, GraphMode::on);
  work(training);
  for (int i = 0; i < 14; ++i)
    EXPECT_EQ(training.results[std::size_t(i)].skipped(), i == 9 || i == 10) << i;
}

TEST(GraphedStep, SumsTheBatchesOfAStep) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const Setting setting{.precision = precision, .accumulate = 4, .clip_norm = 0.5};
    expect_same_run(
        setting,
        [](Training& training) {
          for (int i = 0; i < 18; ++i) training.take(i);
        },
        20);
  }
}

TEST(GraphedStep, WhatTheProgramChangesReachesTheNextReplay) {
  expect_same_run(
      {.precision = "fp16"},
      [](Training& training) {
        for (int i = 0; i < 24; ++i) {
          if (i == 9) training.scaler->update(2.0);
          if (i == 11) {
            const at::NoGradGuard no_grad;
            training.net->first->weight.mul_(0.5);
          }
          if (i == 12) training.net->last->weight.data().add_(0.25);
          if (i == 14) demi::weights::drop();
          if (i == 16)
            static_cast<demi::optim::AdamOptions&>(training.optimizer->param_groups()[0].options())
                .weight_decay(0.3);
          if (i == 17) training.scaler->set_growth_interval(2);
          if (i == 18) training.net->norm->running_mean.fill_(1);
          training.take(i);
        }
      },
      20);
}

TEST(GraphedStep, AnotherKindOfStepIsRecordedAnew) {
  const Work work = [](Training& training) {
    for (int i = 0; i < 48; ++i) {
      if (i == 10) training.net->drop->eval();
      if (i == 20) training.net->first->weight.set_requires_grad(false);
      if (i == 30) training.net->first->weight.set_requires_grad(true);
      if (i == 30) training.net->drop->train();
      training.take(i, i % 4 == 3 ? 5 : 8);
    }
  };
  expect_same_run({}, work, 20);
  Training training({}, GraphMode::on);
  work(training);
  EXPECT_GE(training.step->graph_counts().recorded, 8);
}

// As when a run has found which layers need FP32.
TEST(GraphedStep, APolicyOfAPartReachesTheNextStep) {
  const Work work = [](Training& training) {
    for (int i = 0; i < 40; ++i) {
      if (i == 10) demi::apply(demi::Policy("mixed_bfloat16"), *training.net->last);
      if (i == 20) demi::apply(demi::Policy("float32"), *training.net->last);
      if (i == 30) demi::unapply(*training.net->last);
      training.take(i);
    }
  };
  expect_same_run({}, work, 40);
  Training training({}, GraphMode::on);
  work(training);
  EXPECT_EQ(training.step->graph_counts().recorded, 6)
      << "three kinds of batch and of finish(); the first comes back";
}

TEST(GraphedStep, PlainStepsMayStandBetweenReplays) {
  expect_same_run(
      {.precision = "fp16", .clip_norm = 0.5},
      [](Training& training) {
        for (int i = 0; i < 20; ++i) {
          if (i % 5 == 4)
            training.plainly(i);
          else
            training.take(i);
        }
      },
      12);
}

// The loss of examples/captured_ppo.cpp, of two logits and a value.
at::Tensor ppo_loss(const at::Tensor& output, const Tensors& to) {
  const auto all = at::log_softmax(output.narrow(1, 0, 2), 1);
  const auto ratio = (all.gather(1, to[0]).squeeze(1) - to[1]).exp();
  const auto advantage = (to[2] - to[2].mean()) / (to[2].std() + 1e-8);
  const auto gain = at::minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage);
  const auto entropy = -(all.exp() * all).sum(1);
  return ((output.select(1, 2) - to[3]).square() * 0.5 - gain - entropy * 0.01).mean();
}

TEST(GraphedStep, RolloutsMayStandBetweenReplays) {
  expect_same_run(
      {.precision = "bf16", .clip_norm = 0.5, .has_scaler = false},
      [](Training& training) {
        training.loss = ppo_loss;
        Tensors x, y;
        for (int i = 0; i < 24; ++i) {
          if (i % 4 == 0) {
            training.set_rate(0.1 / (i + 1));
            const at::NoGradGuard no_grad;
            const demi::Autocast region(kDevice.type(), at::kBFloat16);
            x = Training::inputs(i);
            const at::Tensor out = training.net->forward(x[0]).to(at::kFloat);
            const at::Tensor actions = (Training::targets(i)[0] % 2).unsqueeze(1);
            const at::Tensor chances = at::log_softmax(out.narrow(1, 0, 2), 1);
            y = {actions, chances.gather(1, actions).squeeze(1), out.select(1, 0) + i,
                 out.select(1, 1) + 1};
          }
          training.losses.push_back(training.batch(x, y));
          training.results.push_back(training.step->finish().front());
        }
      },
      /*least_replays=*/36);
}

TEST(GraphedStep, ADroppedStepLeavesNothingBehind) {
  expect_same_run(
      {.guards = true},
      [](Training& training) {
        for (int i = 0; i < 16; ++i) {
          if (i % 3 == 2) {
            training.batch(Training::inputs(i), Training::targets(i));
            training.step->drop();
            EXPECT_FALSE(training.net->first->weight.grad().defined());
          }
          training.take(i);
        }
      },
      10);
}

TEST(GraphedStep, AnExceptionInALossIsThatOfThePlainStep) {
  expect_same_run(
      {.guards = true},
      [](Training& training) {
        for (int i = 0; i < 12; ++i) {
          if (i == 1) {
            training.loss = [](const at::Tensor&, const Tensors&) -> at::Tensor {
              throw std::runtime_error("of the program");
            };
            EXPECT_THROW(training.take(i), std::runtime_error);
            training.loss = nullptr;
            EXPECT_FALSE(training.step->is_open());
          }
          training.take(i);
        }
      },
      10);
}

// The weights' addresses are others: state and memory of the parameter are.
TEST(GraphedStep, AParameterInOtherMemoryIsTrainedThere) {
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    expect_same_run(
        {.precision = precision, .has_scaler = false},
        [](Training& training) {
          for (int i = 0; i < 20; ++i) {
            if (i == 9) {
              at::Tensor& weight = training.net->first->weight;
              weight.set_data(weight.detach().clone());
            }
            training.take(i);
          }
        },
        12);
  }
}

TEST(GraphedStep, ALoadedStateIsThatOfTheNextStep) {
  expect_same_run(
      {.has_scaler = false},
      [](Training& training) {
        std::map<std::string, at::Tensor> saved;
        for (int i = 0; i < 20; ++i) {
          if (i == 5)
            for (const auto& [name, one] : training.optimizer->state_tensors())
              saved[name] = one.clone();
          if (i == 12) training.optimizer->load_state_tensors(saved);
          if (i == 12)  // a plain step comes first, which makes the tables anew
            training.plainly(i);
          else
            training.take(i);
        }
      },
      12);
}

// The graph writes the weight and its bf16 copy, and knows of no other.
TEST(GraphedStep, ACopyInAnotherFormatIsThatOfTheReplayedWeight) {
  Training training({.has_scaler = false}, GraphMode::on);
  const at::Tensor& weight = training.net->first->weight;
  for (int i = 0; i < 12; ++i) {
    training.take(i);
    const auto version = weight._version();
    const at::NoGradGuard no_grad;
    for (const auto dtype : {at::kHalf, at::kBFloat16})
      EXPECT_TRUE(at::equal(demi::weights::low_precision(weight, dtype).cpu(),
                            weight.detach().cpu().to(dtype)))
          << i << " " << dtype;
    EXPECT_EQ(weight._version(), version);
  }
  EXPECT_GE(training.step->graph_counts().replays, 8);
  const auto version = weight._version();
  training.take(12);
  EXPECT_GT(weight._version(), version) << "a graph of autograd's that saved it is refused";
}

std::string refusal_of(const Setting& setting, const std::function<void(Training&, int)>& work) {
  Training training(setting, GraphMode::automatic);
  for (int i = 0; i < 10; ++i) work(training, i);
  EXPECT_EQ(training.step->graph_counts().replays, 0);
  return training.step->graph_counts().refusal;
}

struct Fault {
  const char* name;
  std::function<void(Training&)> plant;
  const char* says;
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all{
      {"a fresh tensor of a closure",
       [](Training& training) {
         const auto weights = std::make_shared<at::Tensor>();
         training.before = [weights, n = 0]() mutable {
           *weights = at::full({3}, 1.0 + ++n).to(kDevice);
         };
         training.loss = [weights](const at::Tensor& out, const Tensors& to) {
           return at::cross_entropy_loss(out, to[0], *weights);
         };
       },
       "handed over"},
      {"a number of the host that changes",
       [](Training& training) {
         training.loss = [n = 0](const at::Tensor& out, const Tensors& to) mutable {
           return cross_entropy(out, to[0]) * (1.0 + 0.5 * ++n);
         };
       },
       "number of the host"},
      {"a host read",
       [](Training& training) {
         training.loss = [](const at::Tensor& out, const Tensors& to) {
           const at::Tensor loss = cross_entropy(out, to[0]);
           return loss.item<float>() > 0 ? loss : -loss;
         };
       },
       "the host reads the device (aten::item, after the module last)"},
      {"a copy from the host",
       [](Training& training) {
         training.loss = [](const at::Tensor& out, const Tensors& to) {
           return at::cross_entropy_loss(out, to[0], at::ones({3}).to(kDevice));
         };
       },
       "from one device to another"},
      {"other work each time",
       [](Training& training) {
         training.loss = [n = 0](const at::Tensor& out, const Tensors& to) mutable {
           const at::Tensor loss = cross_entropy(out, to[0]);
           return ++n % 2 == 0 ? loss : loss + out.square().mean();
         };
       },
       "other ops"},
  };
  return all;
}

TEST(GraphedStep, WhatCannotBeRecordedIsFoundAndNamed) {
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.name);
    const std::string refusal = refusal_of({}, [&](Training& training, int i) {
      if (i == 0) fault.plant(training);
      training.take(i);
    });
    EXPECT_NE(refusal.find(fault.says), std::string::npos) << refusal;
    Tensors plain, automatic;
    for (Tensors* seen : {&plain, &automatic}) {
      Training training({}, seen == &plain ? GraphMode::off : GraphMode::automatic);
      fault.plant(training);
      for (int i = 0; i < 10; ++i) training.take(i);
      *seen = training.seen();
    }
    expect_same(plain, automatic);
  }
}

// No op shows that the host waits. The recording fails, and the step runs plainly.
TEST(GraphedStep, ARecordingThatFailsLeavesTheStepAsItWas) {
  std::string refusal;
  Tensors seen[2];
  for (const bool graphed : {false, true}) {
    Training training({.precision = "fp16", .clip_norm = 0.5, .guards = true},
                      graphed ? GraphMode::automatic : GraphMode::off);
    training.forward = [&](const Tensors& in) {
      const at::Tensor output = training.net->forward(in[0]);
      c10::impl::VirtualGuardImpl(kDevice.type()).synchronizeDevice(0);
      return output;
    };
    for (int i = 0; i < 8; ++i) training.take(i);
    seen[graphed] = training.seen();
    refusal = training.step->graph_counts().refusal;
    EXPECT_EQ(training.step->graph_counts().recorded, 0);
  }
  EXPECT_NE(refusal.find("capturing"), std::string::npos) << refusal;
  expect_same(seen[0], seen[1]);
}

TEST(GraphedStep, AnExceptionOfTheProgramInARecordingIsItsOwn) {
  expect_same_run(
      {.guards = true},
      [](Training& training) {
        for (int i = 0; i < 14; ++i) {
          if (i == 3) {  // is recorded in a run with graphs
            training.forward = [](const Tensors&) -> at::Tensor {
              throw std::runtime_error("of the program");
            };
            EXPECT_THROW(training.take(i), std::runtime_error);
            EXPECT_FALSE(training.step->is_open());
            EXPECT_FALSE(training.net->first->weight.grad().defined());
            training.forward = nullptr;
          }
          training.take(i);
        }
      },
      8);
}

// What the recording of finish() has told optimizer and scaler is forgotten.
// The second run has another op than the third, so that one more is compared, and that one throws.
TEST(GraphedStep, AnExceptionBetweenRunsThatDifferIsThatOfThePlainStep) {
  expect_same_run(
      {},
      [](Training& training) {
        training.loss = [](const at::Tensor& out, const Tensors& to) {
          return cross_entropy(out, to[0]);
        };
        const auto usual = training.loss;
        for (int i = 0; i < 14; ++i) {
          if (i == 1)
            training.loss = [&](const at::Tensor& out, const Tensors& to) {
              return usual(out, to) + out.square().mean();
            };
          if (i == 2) training.loss = usual;
          if (i == 3) {
            training.loss = [](const at::Tensor&, const Tensors&) -> at::Tensor {
              throw std::runtime_error("of the program");
            };
            EXPECT_THROW(training.take(i), std::runtime_error);
            training.loss = usual;
          }
          training.take(i);
        }
      },
      8);
}

TEST(GraphedStep, AFinishThatCannotBeRecordedRunsPlainly) {
  Tensors seen[2];
  for (const bool graphed : {false, true}) {
    Training training({.kind = KindId::kAdam, .precision = "fp16", .limits_norm = true},
                      graphed ? GraphMode::automatic : GraphMode::off);
    for (int i = 0; i < 12; ++i) training.take(i);
    seen[graphed] = training.seen();
    if (graphed) {
      EXPECT_NE(training.step->graph_counts().refusal, "");
    }
  }
  expect_same(seen[0], seen[1]);
}

TEST(GraphedStep, GradientsOfTheProgramCount) {
  expect_same_run(
      {.has_scaler = false},
      [](Training& training) {
        const at::Tensor& weight = training.net->last->weight;
        for (int i = 0; i < 20; ++i) {
          if (i == 10) weight.mutable_grad() = at::ones_like(weight);
          training.losses.push_back(training.batch(Training::inputs(i), Training::targets(i)));
          if (i == 13) weight.mutable_grad() = at::full_like(weight, 0.5);
          training.results.push_back(training.step->finish().front());
        }
      },
      12);
}

TEST(GraphedStep, OnThrowsWhatAutomaticWarnsOf) {
  Training training({}, GraphMode::on);
  faults()[2].plant(training);
  const auto run = [&] {
    for (int i = 0; i < 10; ++i) training.take(i);
  };
  try {
    run();
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("the host reads the device"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(training.step->is_open());
}

TEST(GraphedStep, RefusesByNameWhatNoGraphRepeats) {
  second_device::Graphs graphs;
  Net net;
  net->to(kDevice);
  torch::optim::SGD theirs(net->parameters(), 0.1);
  demi::optim::SGD ours(net->parameters(), demi::optim::SGDOptions(0.1));
  const auto make = [&](torch::optim::Optimizer* optimizer, Options options) {
    Step step({.models = {&*net}, .optimizers = {optimizer}}, options, graphs);
    return step.graph_counts().refusal;
  };
  const Options on{.device = kDevice, .graph = GraphMode::on};
  Options automatic = on, phases = on, here = on;
  automatic.graph = GraphMode::automatic;
  phases.synchronise_phases = true;
  here.device = c10::kCPU;
  EXPECT_THROW(make(&theirs, on), UsageError);
  EXPECT_NE(make(&theirs, automatic).find("torch::optim"), std::string::npos);
  EXPECT_THROW(make(&ours, phases), UsageError);
  EXPECT_THROW(make(&ours, here), UsageError);
}

TEST(GraphedStep, ABatchOfAnotherDeviceIsRefused) {
  Training training({}, GraphMode::on);
  EXPECT_THROW(training.batch({at::randn({8, 6})}, Training::targets(0)), UsageError);
  EXPECT_FALSE(training.step->is_open());
}

class Watcher : public demi::loop::StepObserver {
 public:
  explicit Watcher(int64_t interval) : interval_(interval) {}
  bool needs_step(int64_t step) override { return interval_ > 0 && step % interval_ == 0; }
  void after_backward(const demi::loop::StepView& view) override {
    inside.push_back(view.step);
    norms.push_back(view.gradient(view.module.parameters()[0]).norm().item<double>());
  }
  void on_step(const demi::loop::StepMetrics& metrics, int64_t) override {
    steps.push_back(metrics);
  }
  std::vector<int64_t> inside;
  std::vector<double> norms;
  std::vector<demi::loop::StepMetrics> steps;

 private:
  int64_t interval_;
};

// Observers hear of a run that cannot be recorded as of any.
TEST(GraphedStep, ARefusedRunTellsItsObserversAll) {
  Training training({}, GraphMode::automatic);
  faults()[2].plant(training);
  auto watcher = std::make_shared<Watcher>(0);  // needs no step
  training.step->watch(watcher);
  for (int i = 0; i < 10; ++i) training.take(i);
  EXPECT_NE(training.step->graph_counts().refusal, "");
  EXPECT_EQ(watcher->inside.back(), 10);
}

TEST(GraphedStep, ObserversHearOfEveryStepAndOfTheInsideWhereTheyNeedIt) {
  std::vector<std::vector<double>> losses(2), norms(2);
  for (const bool graphed : {false, true}) {
    Training training({.precision = "fp16"}, graphed ? GraphMode::on : GraphMode::off,
                      /*read_every=*/5);
    auto watcher = std::make_shared<Watcher>(6);
    training.step->watch(watcher);
    for (int i = 0; i < 20; ++i) training.take(i);
    training.step->read();
    ASSERT_EQ(watcher->steps.size(), 20u);
    for (const auto& one : watcher->steps) {
      losses[std::size_t(graphed)].push_back(one.loss);
      losses[std::size_t(graphed)].push_back(one.grad_norm.value_or(-1));
      losses[std::size_t(graphed)].push_back(one.loss_scale.value_or(-1));
    }
    if (graphed) {
      EXPECT_EQ(watcher->inside, (std::vector<int64_t>{6, 12, 18}));
      norms[1] = watcher->norms;
      EXPECT_GE(training.step->graph_counts().replays, 20);
    } else {
      for (const std::size_t i : {5, 11, 17}) norms[0].push_back(watcher->norms[i]);
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(norms[0], norms[1]);
}

// A fit is a loop over a Step: losses, accuracies and validation are those of the plain one.
TEST(GraphedStep, ATrainerReplaysTheStepsThatNobodyWatches) {
  class Rows : public demi::data::Loader {
   public:
    int64_t examples() const override { return 44; }
    int64_t batches() const override { return 6; }
    demi::data::Batch batch(int64_t epoch, int64_t position) const override {
      const int64_t rows = position == 5 ? 4 : 8;  // a short one at the end
      const int number = int(10 * epoch + position);
      return {Training::inputs(number, rows)[0], Training::targets(number, rows)[0], {}};
    }
  };
  class Lines : public demi::train::Callback {
   public:
    bool needs_step(int64_t) override { return false; }
    void on_step(const demi::loop::StepMetrics& step, int64_t examples) override {
      seen.push_back(step.loss);
      seen.push_back(step.accuracy.value_or(-1));
      seen.push_back(step.grad_norm.value_or(-1));
      seen.push_back(double(examples));
    }
    std::vector<double> seen;
  };
  second_device::Graphs graphs;
  demi::graph::set_machine_graphs(&graphs);
  std::vector<double> seen[2];
  Tensors weights[2];
  int calls[2] = {0, 0};
  for (const bool graphed : {false, true}) {
    EmulatedDevice device(c10::DeviceType::XPU);
    Net net = Training::fresh();
    net->to(kDevice);
    std::shared_ptr<demi::optim::Optimizer> optimizer =
        demi::optim::testing::make(KindId::kAdam, net->parameters(), {}, device);
    demi::TrainerOptions options;
    options.precision = demi::parse_precision("bf16");
    options.epochs = 8;
    options.ema_decay = 0.5;
    options.device = kDevice;
    options.optimizers = {optimizer};
    options.schedule = demi::optim::lr::cosine(48);
    options.graph = graphed ? GraphMode::on : GraphMode::off;
    const demi::train::Network network{
        net.ptr(), [net, &count = calls[graphed]](const demi::data::Batch& batch) mutable {
          ++count;
          return net->forward(batch.input);
        }};
    demi::Trainer trainer(network, options);
    const auto lines = std::make_shared<Lines>();
    trainer.add(lines);
    const Rows rows;
    const auto history = trainer.fit(rows, &rows);
    seen[graphed] = lines->seen;
    for (const auto& epoch : history.epochs) seen[graphed].push_back(epoch.validation->loss);
    for (const at::Tensor& one : net->parameters()) weights[graphed].push_back(one.detach().cpu());
  }
  demi::graph::set_machine_graphs(nullptr);
  EXPECT_LT(calls[1], calls[0] - 24) << "a replay calls no forward";
  EXPECT_EQ(seen[0], seen[1]);
  expect_same(weights[0], weights[1]);
}

TEST(GraphedStep, AScheduleSetsTheRateOfEachReplay) {
  Tensors seen[2];
  for (const bool graphed : {false, true}) {
    Training training({}, graphed ? GraphMode::on : GraphMode::off);
    demi::optim::lr::Scheduler schedule(*training.optimizer, demi::optim::lr::cosine(20));
    for (int i = 0; i < 14; ++i) {
      training.take(i);
      schedule.step();
    }
    seen[graphed] = training.seen();
  }
  expect_same(seen[0], seen[1]);
}

// Of the recorder's own count: what was allocated while it recorded, and the fixed batches.
TEST(GraphedStep, SaysHowMuchMemoryTheGraphsHold) {
  const auto of_graphs = [] {
    return static_cast<int64_t>(second_device::Blocks::all().counts().of_graphs);
  };
  const auto of_batch = [](int64_t rows) { return rows * (6 * 4 + 8); };  // 6 floats and a label
  Training training({}, GraphMode::on);
  for (int i = 0; i < 3; ++i) training.take(i);
  EXPECT_EQ(training.step->graph_counts().bytes, 0);
  ASSERT_EQ(of_graphs(), 0);
  for (int i = 3; i < 10; ++i) training.take(i);
  ASSERT_EQ(training.step->graph_counts().recorded, 2);
  const int64_t one = training.step->graph_counts().bytes;
  EXPECT_GT(of_graphs(), 0);
  EXPECT_EQ(one, of_graphs() + of_batch(8));
  for (int i = 10; i < 20; ++i) training.take(i, 5);
  EXPECT_EQ(training.step->graph_counts().bytes, of_graphs() + of_batch(8) + of_batch(5));
  EXPECT_GT(training.step->graph_counts().bytes, one);
}

// Batches of five rows have a host read.
TEST(GraphedStep, AKindOfBatchThatCannotBeRecordedLeavesTheOthers) {
  const Work work = [](Training& training) {
    training.loss = [](const at::Tensor& out, const Tensors& to) {
      const at::Tensor loss = cross_entropy(out, to[0]);
      return out.size(0) == 5 ? loss * (1 + out.sum().item<float>()) : loss;
    };
    for (int i = 0; i < 24; ++i) training.take(i, i % 3 == 2 ? 5 : 8);
  };
  Tensors plain;
  {
    Training training({.guards = true}, GraphMode::off);
    work(training);
    plain = training.seen();
  }
  Training training({.guards = true}, GraphMode::automatic);
  auto watcher = std::make_shared<Watcher>(0);  // needs no step
  training.step->watch(watcher);
  work(training);
  expect_same(plain, training.seen());
  const auto counts = training.step->graph_counts();
  EXPECT_NE(counts.refusal.find("the host reads the device"), std::string::npos) << counts.refusal;
  EXPECT_EQ(counts.recorded, 2);
  EXPECT_EQ(counts.replays, (16 - 3) + (16 - 6)) << "of batches, and of finish(), of eight rows";
  EXPECT_EQ(watcher->inside.back(), 24) << "of five rows";
}

// As of texts of many lengths. What is known of a kind is forgotten in time.
TEST(GraphedStep, AKindThatIsRecordedOutlivesManyThatAreNot) {
  Training training({.has_scaler = false}, GraphMode::automatic);
  int i = 0;
  for (; i < 10; ++i) training.take(i);
  const auto bytes = training.step->graph_counts().bytes;
  for (int64_t rows = 9; rows < 100; ++rows) {
    training.take(++i, rows);
    if (rows % 8 == 0) training.take(++i);
  }
  const auto before = training.step->graph_counts();
  training.take(++i);
  EXPECT_EQ(training.step->graph_counts().replays, before.replays + 2);
  EXPECT_EQ(before.recorded, 2);
  EXPECT_EQ(before.bytes, bytes);
}

}  // namespace
