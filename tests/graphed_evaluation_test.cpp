// An evaluation that is recorded in graphs gives the numbers of the plain one, bit for bit,
// whatever happens to the weights between two evaluations; what cannot be recorded is found. On the
// device of recorded_graph.h.
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/policy.h"
#include "demi/core/error.h"
#include "demi/optim/replace_parameter.h"
#include "demi/train/evaluate.h"
#include "demi/train/trainer.h"
#include "demi/weights/weights.h"
#include "tests/graphed_training.h"

namespace {

using namespace graphed_training;  // NOLINT(google-build-using-namespace)
using demi::data::Batch;
using demi::train::EvaluateOptions;
using demi::train::Evaluation;
using demi::train::Evaluator;

/// 44 rows in batches of 8; the last one has 4.
class Rows : public demi::data::Loader {
 public:
  int64_t examples() const override { return 44; }
  int64_t batches() const override { return 6; }
  Batch batch(int64_t, int64_t position) const override {
    const int64_t rows = position == 5 ? 4 : 8;
    const int number = int(position);
    Batch one{Training::inputs(number, rows)[0], Training::targets(number, rows)[0], {}};
    if (position == 2) one.target.narrow(0, 0, 3).fill_(demi::train::kIgnoredClass);
    if (lengths) one.lengths = at::full({rows}, 6, at::kLong);
    if (fails_at == position) happens();
    return one;
  }
  bool lengths = false;
  int64_t fails_at = -1;
  std::function<void()> happens;
};

EvaluateOptions options_of(const char* precision, GraphMode mode) {
  EvaluateOptions options{.precision = demi::parse_precision(precision), .device = kDevice};
  options.metrics = {demi::train::top_k(2)};
  options.per_class = true;
  options.graph = mode;
  return options;
}

demi::train::Network network_of(Net net, int* calls = nullptr) {
  return {net.ptr(), [net, calls](const Batch& batch) mutable {
            if (calls) ++*calls;
            return net->forward(batch.input);
          }};
}

std::vector<double> numbers_of(const Evaluation& one) {
  std::vector<double> all{one.loss, one.accuracy.value_or(-1), double(one.examples)};
  for (const auto& [name, metric] : one.metrics) all.push_back(metric);
  for (const double share : one.class_accuracy) all.push_back(std::isnan(share) ? -1 : share);
  return all;
}

/// What happens before each of some evaluations.
using Between = std::function<void(Training&, int)>;

struct Seen {
  std::vector<std::vector<double>> numbers;  // of each evaluation
  demi::loop::GraphCounts counts;
  int calls = 0;
};

Seen evaluations(const Setting& setting, const EvaluateOptions& options, const Between& between,
                 int count = 8) {
  Seen seen;
  Training training(setting, options.graph);
  const Rows rows;
  Evaluator evaluator(network_of(training.net, &seen.calls), rows, options, *training.step);
  for (int i = 0; i < count; ++i) {
    between(training, i);
    seen.numbers.push_back(numbers_of(evaluator.evaluate()));
  }
  seen.counts = evaluator.graph_counts();
  return seen;
}

/// The same program with and without graphs.
Seen expect_same_evaluations(const Setting& setting, const Between& between, int count = 8,
                             std::int64_t graphs = 2) {
  const char* precision = setting.precision;
  const Seen plain = evaluations(setting, options_of(precision, GraphMode::off), between, count);
  const Seen graphed = evaluations(setting, options_of(precision, GraphMode::on), between, count);
  EXPECT_EQ(plain.numbers, graphed.numbers);
  EXPECT_EQ(plain.counts.recorded, 0);
  EXPECT_EQ(graphed.counts.recorded, graphs);
  EXPECT_EQ(graphed.counts.refusal, "");
  EXPECT_EQ(plain.calls, 6 * count);
  // A recording calls forward, too.
  EXPECT_EQ(graphed.calls + graphed.counts.replays, 6 * count + graphed.counts.recorded);
  return graphed;
}

TEST(GraphedEvaluation, HasTheBitsOfThePlainOneWhileAStepTrains) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const auto mode : {demi::weights::Mode::keep, demi::weights::Mode::region}) {
      SCOPED_TRACE(precision);
      const auto before = demi::weights::mode();
      demi::weights::set_mode(mode);
      const Seen seen = expect_same_evaluations({.precision = precision, .guards = true},
                                                [](Training& training, int i) {
                                                  training.take(3 * i);
                                                  training.take(3 * i + 1);
                                                });
      demi::weights::set_mode(before);
      // 3 + 37 of the whole batches, 3 + 5 of the short one.
      EXPECT_EQ(seen.counts.replays, 42);
      EXPECT_NE(seen.numbers.front(), seen.numbers.back());
    }
  }
}

// Each second evaluation has weights of its own for a while, as those of a Trainer with averages.
TEST(GraphedEvaluation, SeesWhateverIsWrittenToTheWeights) {
  expect_same_evaluations(
      {.precision = "bf16", .averages = true},
      [](Training& training, int i) {
        if (training.average->is_swapped()) training.average->swap();
        if (i < 3 || i == 9) training.take(i);
        const at::NoGradGuard no_grad;
        if (i == 4) training.net->first->weight.mul_(-1);
        if (i == 5) training.net->last->weight.data().add_(0.25);
        if (i == 6) demi::weights::drop();
        if (i == 7) training.net->norm->running_mean.fill_(1);
        if (i == 8) training.net->last->bias.fill_(0.5);
        if (i % 2 == 1 || i > 9) training.average->swap();
      },
      14);
}

// The first evaluation under averages is where the graph is recorded: its copies are read, not cast
// anew in each replay.
TEST(GraphedEvaluation, IsNotRecordedWithCastsOfItsWeights) {
  MachineGraphs graphs;
  Training training({.precision = "bf16", .averages = true}, GraphMode::off);
  training.take(0);
  const Rows rows;
  EvaluateOptions options = options_of("bf16", GraphMode::on);
  int64_t batches = 0;
  options.should_stop = [&] { return batches++ == 3; };
  Evaluator evaluator(network_of(training.net), rows, options);
  evaluator.evaluate();  // three plain batches
  EXPECT_EQ(evaluator.graph_counts().recorded, 0);
  {
    const EMA::InPlace averages(*training.average);
    batches = 0;
    evaluator.evaluate();
  }
  EXPECT_EQ(evaluator.graph_counts().recorded, 1);
  const at::Tensor& weight = training.net->first->weight;
  const auto held = demi::weights::copies_of(weight);
  ASSERT_EQ(held.size(), 1U);
  // A copy that the graph does not read could be anything without harm.
  training.take(1);
  batches = 0;
  const std::vector<double> right = numbers_of(evaluator.evaluate());
  {
    const at::Tensor copy = demi::weights::copies_of(weight).front();
    EXPECT_EQ(copy.const_data_ptr(), held.front().const_data_ptr());
    second_device::on_host(copy).zero_();  // the host does not know
  }
  batches = 0;
  EXPECT_NE(numbers_of(evaluator.evaluate()), right);
}

TEST(GraphedEvaluation, OtherPoliciesAndBackendsAreRecordedAnew) {
  const demi::OpPolicy before = demi::global_op_policy();
  expect_same_evaluations(
      {.precision = "bf16"},
      [&](Training& training, int i) {
        demi::OpPolicy policy = before;
        if (i >= 4) policy.set("linear", demi::OpCategory::fp32);
        demi::set_global_op_policy(policy);
        training.take(i);
      },
      8, /*graphs=*/4);
  demi::set_global_op_policy(before);

  const auto evaluate = [](GraphMode mode) {
    MachineGraphs graphs;
    Training training({.precision = "bf16"}, GraphMode::off);
    const Rows rows;
    demi::train::Network network = network_of(training.net);
    network.forward = [net = training.net](const Batch& batch) mutable {
      return at::softmax(net->forward(batch.input), 1);
    };
    Evaluator evaluator(network, rows, options_of("bf16", mode));
    std::vector<std::vector<double>> all;
    for (int i = 0; i < 6; ++i) {
      demi::set_global_policy(i % 2 == 0 ? "float32" : "mixed_bfloat16");
      all.push_back(numbers_of(evaluator.evaluate()));
    }
    demi::set_global_policy("float32");
    EXPECT_EQ(evaluator.graph_counts().recorded, mode == GraphMode::on ? 2 : 0);
    return all;
  };
  EXPECT_EQ(evaluate(GraphMode::off), evaluate(GraphMode::on));
}

// A part of the model that a policy keeps in FP32 from now on.
TEST(GraphedEvaluation, APartThatBecomesFp32IsInTheNextEvaluation) {
  expect_same_evaluations(
      {.precision = "bf16"},
      [](Training& training, int i) {
        if (i == 4) demi::apply(demi::OpPolicy().keep_part_in_fp32("last"), *training.net);
        training.take(i);
      },
      8, /*graphs=*/4);
}

TEST(GraphedEvaluation, AModuleThatIsMovedIsRecordedAnew) {
  expect_same_evaluations(
      {.precision = "fp32", .has_scaler = false},
      [](Training& training, int i) {
        const at::NoGradGuard no_grad;
        at::Tensor& weight = training.net->last->weight;
        if (i == 5) weight.set_data(weight.detach() * 2);
      },
      9, /*graphs=*/4);
}

struct GrowingImpl : torch::nn::Module {
  at::Tensor rows = register_parameter("rows", at::full({3, 6}, 0.5));
  void set(const at::Tensor& now) { parameters_["rows"] = rows = now; }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(rows.t()); }
};
TORCH_MODULE(Growing);

TEST(GraphedEvaluation, AParameterInAnothersPlaceIsRecordedAnew) {
  const auto evaluate = [](GraphMode mode) {
    MachineGraphs graphs;
    EmulatedDevice device(c10::DeviceType::XPU);
    Growing model;
    model->set(at::arange(18).view({3, 6}).sin().to(kDevice).set_requires_grad(true));
    const auto optimizer =
        demi::optim::testing::make(KindId::kAdam, model->parameters(), {}, device);
    const Rows rows;
    const demi::train::Network network{
        model.ptr(), [model](const Batch& batch) mutable { return model->forward(batch.input); }};
    Evaluator evaluator(network, rows, options_of("fp32", mode));
    std::vector<std::vector<double>> all;
    for (int i = 0; i < 6; ++i) {
      if (i == 3) {
        const at::Tensor old = model->rows;
        model->set(at::arange(24).view({4, 6}).cos().to(kDevice).set_requires_grad(true));
        demi::optim::replace_parameter(*optimizer, old, model->rows,
                                       at::tensor({0, 1, 2, -1}, at::kLong));
      }
      all.push_back(numbers_of(evaluator.evaluate()));
    }
    EXPECT_NE(all[2], all[3]);
    return all;
  };
  EXPECT_EQ(evaluate(GraphMode::off), evaluate(GraphMode::on));
}

// Each evaluation begins with sums of its own, and has what `should_stop` leaves of them.
TEST(GraphedEvaluation, NoSumIsCarriedOver) {
  MachineGraphs graphs;
  for (const bool stops : {false, true}) {
    Training training({}, GraphMode::off);
    const Rows rows;
    EvaluateOptions options = options_of("bf16", GraphMode::on);
    int64_t batches = 0;
    options.should_stop = [&] { return stops && batches++ == 4; };
    Evaluator evaluator(network_of(training.net), rows, options);
    const auto first = numbers_of(evaluator.evaluate());
    EXPECT_EQ(first[2], stops ? 32 : 44);
    for (int i = 0; i < 6; ++i) {
      batches = 0;
      EXPECT_EQ(numbers_of(evaluator.evaluate()), first) << i;
    }
    EXPECT_GT(evaluator.graph_counts().replays, 20);
  }
}

// The step's graph writes the copy of its own format, and knows of another one only if that was
// there before.
TEST(GraphedEvaluation, AnotherFormatThanTheStepsIsThatOfTheWeights) {
  for (const bool evaluates_first : {false, true}) {
    std::vector<std::vector<double>> numbers[2];
    for (const bool graphed : {false, true}) {
      const GraphMode mode = graphed ? GraphMode::on : GraphMode::off;
      Training training({.precision = "bf16"}, mode);
      const Rows rows;
      Evaluator evaluator(network_of(training.net), rows, options_of("fp16", mode), *training.step);
      for (int i = 0; i < (evaluates_first ? 3 : 0); ++i)
        numbers[graphed].push_back(numbers_of(evaluator.evaluate()));
      for (int i = 0; i < 12; ++i) {
        training.take(i);
        if (evaluates_first || i > 6) numbers[graphed].push_back(numbers_of(evaluator.evaluate()));
      }
      if (graphed) {
        EXPECT_EQ(training.step->graph_counts().recorded, 2);
        EXPECT_EQ(training.step->graph_counts().replays, 15);
        EXPECT_EQ(evaluator.graph_counts().recorded, 2);
      }
    }
    EXPECT_EQ(numbers[0], numbers[1]);
  }
}

TEST(GraphedEvaluation, TheTrainingModeOfEachModuleComesBack) {
  Training training({}, GraphMode::on);
  training.net->drop->eval();
  const Rows rows;
  Evaluator evaluator(network_of(training.net), rows, options_of("bf16", GraphMode::on),
                      *training.step);
  for (int i = 0; i < 5; ++i) {
    evaluator.evaluate();
    EXPECT_TRUE(training.net->norm->is_training());
    EXPECT_FALSE(training.net->drop->is_training());
  }
}

TEST(GraphedEvaluation, AnExceptionIsItsOwnAndLeavesNoRecording) {
  for (const int64_t where : {0, 3, 4}) {  // the fourth batch is recorded
    for (const bool of_loader : {false, true}) {
      SCOPED_TRACE(where);
      std::vector<std::vector<double>> numbers;
      for (const auto mode : {GraphMode::off, GraphMode::on}) {
        MachineGraphs graphs;
        Training training({}, GraphMode::off);
        bool fails = true;
        demi::train::Network network = network_of(training.net);
        Rows rows;
        if (of_loader) {
          rows.fails_at = where;
          rows.happens = [&] {
            if (fails) throw std::runtime_error("of the program");
          };
        } else {
          network.forward = [&, n = 0, net = training.net](const Batch& batch) mutable {
            if (fails && n++ == where) throw std::runtime_error("of the program");
            return net->forward(batch.input);
          };
        }
        Evaluator evaluator(network, rows, options_of("bf16", mode));
        EXPECT_THROW(evaluator.evaluate(), std::runtime_error);
        EXPECT_TRUE(training.net->is_training());
        fails = false;
        for (int i = 0; i < 4; ++i) {
          numbers.push_back(numbers_of(evaluator.evaluate()));
          EXPECT_EQ(numbers.back(), numbers.front());
        }
        EXPECT_GE(evaluator.graph_counts().replays, mode == GraphMode::on ? 12 : 0);
      }
    }
  }
}

struct Fault {
  const char* name;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> metric;
  const char* says;
};

TEST(GraphedEvaluation, WhatCannotBeRecordedRunsPlainlyOrIsAnError) {
  const std::vector<Fault> faults{
      {"a host read",
       [](const at::Tensor& output, const at::Tensor&) {
         return at::full({}, double(output.sum().item<float>() > 0)).to(kDevice);
       },
       "the host reads the device"},
      {"a mask",
       [](const at::Tensor& output, const at::Tensor& target) {
         return output.masked_select(target.ne(demi::train::kIgnoredClass).unsqueeze(1)).sum();
       },
       "the host reads the device"},
      {"a number that changes",
       [n = 0](const at::Tensor& output, const at::Tensor&) mutable {
         return output.sum() * (1.0 + ++n % 6);
       },
       "number of the host"},
  };
  MachineGraphs graphs;
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    std::vector<std::vector<double>> numbers;
    for (const auto mode : {GraphMode::off, GraphMode::automatic}) {
      Training training({}, GraphMode::off);
      const Rows rows;
      EvaluateOptions options = options_of("bf16", mode);
      options.metrics = {{.name = "of_the_user", .sum = fault.metric}};
      Evaluator evaluator(network_of(training.net), rows, options);
      for (int i = 0; i < 3; ++i) numbers.push_back(numbers_of(evaluator.evaluate()));
      EXPECT_EQ(evaluator.graph_counts().replays, 0);
      const std::string refusal = evaluator.graph_counts().refusal;
      EXPECT_EQ(refusal.find(fault.says) != std::string::npos, mode == GraphMode::automatic)
          << refusal;
    }
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(numbers[i], numbers[i + 3]);

    Training training({}, GraphMode::off);
    const Rows rows;
    EvaluateOptions options = options_of("bf16", GraphMode::on);
    options.metrics = {{.name = "of_the_user", .sum = fault.metric}};
    Evaluator evaluator(network_of(training.net), rows, options);
    try {
      for (int i = 0; i < 3; ++i) evaluator.evaluate();
      FAIL() << "nothing was thrown";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("the evaluation cannot be recorded"),
                std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find(fault.says), std::string::npos) << error.what();
    }
    EXPECT_TRUE(training.net->is_training());
  }
}

TEST(GraphedEvaluation, OnIsRefusedWhereNothingIsRecorded) {
  Net net;
  const Rows rows;
  EvaluateOptions options{.graph = GraphMode::on};
  EXPECT_THROW(Evaluator(network_of(net), rows, options), UsageError);
  options.graph = GraphMode::automatic;
  const Evaluator here(network_of(net), rows, options);
  EXPECT_NE(here.graph_counts().refusal, "");
}

TEST(GraphedEvaluation, LengthsOnTheCpuRunPlainly) {
  std::vector<std::vector<double>> numbers;
  for (const auto mode : {GraphMode::off, GraphMode::on}) {
    MachineGraphs graphs;
    Training training({}, GraphMode::off);
    Rows rows;
    rows.lengths = true;
    demi::train::Network network = network_of(training.net);
    network.forward = [net = training.net](const Batch& batch) mutable {
      return net->forward(batch.input) * batch.lengths[0].item<int64_t>();
    };
    Evaluator evaluator(network, rows, options_of("bf16", mode));
    for (int i = 0; i < 4; ++i) numbers.push_back(numbers_of(evaluator.evaluate()));
    EXPECT_EQ(evaluator.graph_counts().recorded, 0);
    EXPECT_EQ(evaluator.graph_counts().refusal, "");
  }
  EXPECT_EQ(numbers[0], numbers[4]);
}

}  // namespace
