// Batches of a set that lies on the device are drawn in the graphs of a Trainer's steps and
// evaluations, and are those that the plain run draws, whatever the order and wherever a run
// resumes. On the device of recorded_graph.h.
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/prefetch_loader.h"
#include "demi/data/tensor_loader.h"
#include "demi/train/trainer.h"
#include "tests/graphed_training.h"

namespace {

using namespace graphed_training;  // NOLINT(google-build-using-namespace)
using demi::data::Batch;
using demi::data::OrderOptions;
using demi::data::TensorLoader;

struct Calls {
  int batches = 0, choices = 0, chosen = 0;
};

/// Counts who asks for what.
class Counted : public demi::data::Loader {
 public:
  Counted(const demi::data::Loader& loader, Calls& calls) : loader_(loader), calls_(calls) {}
  int64_t examples() const override { return loader_.examples(); }
  int64_t batches() const override { return loader_.batches(); }
  Batch batch(int64_t epoch, int64_t position) const override {
    ++calls_.batches;
    return loader_.batch(epoch, position);
  }
  at::Tensor choice(int64_t epoch, int64_t position) const override {
    ++calls_.choices;
    return loader_.choice(epoch, position);
  }
  Batch chosen(const at::Tensor& choice) const override {
    ++calls_.chosen;
    return loader_.chosen(choice);
  }

 private:
  const demi::data::Loader& loader_;
  Calls& calls_;
};

struct Set {
  explicit Set(c10::Device device, int64_t count = 44)
      : x(at::randn({count, 6}, at::detail::createCPUGenerator(5)).to(device)),
        y((at::arange(count) * 7 % 3).to(device)) {}
  TensorLoader loader(const OrderOptions& order) const { return {x, y, order}; }
  at::Tensor x, y;
};

const OrderOptions kShuffled{.batch_size = 8, .shuffle = true, .seed = 3};

TEST(DrawnInTheGraph, AChoiceGivesTheBatchOfItsPosition) {
  const Set set(kDevice), here(c10::kCPU);
  for (const OrderOptions& order :
       {kShuffled, OrderOptions{.batch_size = 8}, OrderOptions{.batch_size = 8, .limit = 21},
        OrderOptions{.batch_size = 8, .shuffle = true, .drop_last = true},
        OrderOptions{.batch_size = 5, .shuffle = true, .rank = 1, .world_size = 3},
        OrderOptions{.batch_size = 64, .keep_all = true}}) {
    const TensorLoader loader = set.loader(order), plain = here.loader(order);
    for (const int64_t epoch : {0, 2, 1})
      for (int64_t position = loader.batches() - 1; position >= 0; --position) {
        const Batch one = loader.chosen(loader.choice(epoch, position));
        const Batch right = plain.batch(epoch, position);
        EXPECT_TRUE(at::equal(one.input.cpu(), right.input)) << epoch << " " << position;
        EXPECT_TRUE(at::equal(one.target.cpu(), right.target)) << epoch << " " << position;
        EXPECT_EQ(one.input.device(), kDevice);
      }
    EXPECT_THROW(loader.choice(0, loader.batches()), demi::UsageError);
    EXPECT_FALSE(plain.choice(0, 0).defined());
    EXPECT_THROW(plain.chosen(at::arange(3)), demi::UsageError);
  }
}

TEST(DrawnInTheGraph, AnOrderIsSentOnceAnEpoch) {
  const Set set(kDevice);
  const TensorLoader loader = set.loader(kShuffled);
  const auto before = second_device::arrivals.load();
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    for (int64_t position = 0; position < loader.batches(); ++position)
      loader.choice(epoch, position);
  EXPECT_EQ(second_device::arrivals - before, 3);
}

class Lines : public demi::train::Callback {
 public:
  explicit Lines(int64_t interval = 0) : interval_(interval) {}
  bool needs_step(int64_t step) override {
    asked.push_back(step);
    return interval_ > 0 && step % interval_ == 0;
  }
  void before_forward(const demi::loop::StepView& view) override {
    for (const auto& [name, tensor] : view.inputs)
      inputs.push_back(name + " " + c10::str(tensor.sizes()));
  }
  void on_step(const demi::loop::StepMetrics& step, int64_t examples) override {
    for (const double one :
         {step.loss, step.accuracy.value_or(-1), step.grad_norm.value_or(-1), double(examples)})
      seen.push_back(one);
  }
  std::vector<double> seen;
  std::vector<int64_t> asked;
  std::vector<std::string> inputs;

 private:
  int64_t interval_;
};

struct Fit {
  std::vector<double> numbers;
  Tensors weights;
  Calls training, validation;
  std::vector<int64_t> asked;
  std::vector<std::string> inputs;
};

struct Plan {
  GraphMode mode = GraphMode::off;
  int64_t accumulate = 1, interval = 0;
  std::optional<int64_t> stops_after;  // steps, and resumes in a Trainer of its own
  std::function<at::Tensor(Net&, const Batch&)> forward = nullptr;
};

/// Eight epochs of six batches, with an average, dropout and a validation.
Fit fit(const Plan& plan, const demi::data::Loader& training,
        const demi::data::Loader& validation) {
  second_device::Graphs graphs;
  demi::graph::set_machine_graphs(&graphs);
  Fit result;
  const Counted counted(training, result.training), tested(validation, result.validation);
  EmulatedDevice device(c10::DeviceType::XPU);
  std::optional<demi::checkpoint::Checkpoint> saved;
  for (const bool resumes : {false, true}) {
    if (resumes && !plan.stops_after) break;
    Net net = Training::fresh();
    net->to(kDevice);
    demi::TrainerOptions options{.epochs = 8,
                                 .precision = demi::parse_precision("bf16"),
                                 .metrics = {demi::train::top_k(2)},
                                 .accumulate = plan.accumulate,
                                 .ema_decay = 0.5,
                                 .device = kDevice,
                                 .graph = plan.mode};
    options.optimizers = {std::shared_ptr<demi::optim::Optimizer>(
        demi::optim::testing::make(KindId::kAdam, net->parameters(), {}, device))};
    options.schedule = demi::optim::lr::cosine(48);
    torch::manual_seed(11);
    demi::Trainer trainer(demi::train::Network{net.ptr(),
                                               [net, &plan](const Batch& batch) mutable {
                                                 return plan.forward ? plan.forward(net, batch)
                                                                     : net->forward(batch.input);
                                               }},
                          options);
    const auto lines = std::make_shared<Lines>(plan.interval);
    trainer.add(lines);
    if (resumes) trainer.resume(*saved);
    demi::Trainer::Parts parts(trainer, counted, &tested);
    if (!resumes && plan.stops_after) {
      parts.advance(*plan.stops_after);
      saved = parts.checkpoint();
    } else {
      parts.advance(1000);
      for (const auto& epoch : parts.history().epochs)
        for (const double one :
             {epoch.loss, epoch.validation->loss, epoch.validation->metrics[0].second})
          result.numbers.push_back(one);
      for (const at::Tensor& one : net->parameters()) result.weights.push_back(one.detach().cpu());
    }
    result.numbers.insert(result.numbers.end(), lines->seen.begin(), lines->seen.end());
    result.asked = lines->asked;
    result.inputs = lines->inputs;
  }
  demi::graph::set_machine_graphs(nullptr);
  return result;
}

void expect_same(const Fit& plain, const Fit& graphed) {
  EXPECT_EQ(plain.numbers, graphed.numbers);
  graphed_training::expect_same(plain.weights, graphed.weights);
}

TEST(DrawnInTheGraph, ATrainerTrainsOnTheSameBatches) {
  const Set set(kDevice), test(kDevice, 20);
  const TensorLoader validation = test.loader({.batch_size = 8});
  for (const OrderOptions& order : {kShuffled, OrderOptions{.batch_size = 8}}) {
    for (const int64_t accumulate : {1, 2}) {
      SCOPED_TRACE(accumulate);
      const TensorLoader training = set.loader(order);
      const Fit plain = fit({.accumulate = accumulate}, training, validation);
      const Fit graphed =
          fit({.mode = GraphMode::on, .accumulate = accumulate}, training, validation);
      expect_same(plain, graphed);
      EXPECT_EQ(plain.training.batches, 48);
      EXPECT_EQ(plain.training.choices, 0);
      EXPECT_EQ(graphed.training.batches, 0);
      EXPECT_EQ(graphed.training.choices, 48);
      EXPECT_LE(graphed.training.chosen, 20) << "a replay calls no loader";
      EXPECT_EQ(graphed.validation.batches, 0);
      EXPECT_EQ(graphed.validation.choices, 24);
      EXPECT_EQ(graphed.validation.chosen, 8) << "three plain batches of a shape and its recording";
    }
  }
}

// Wherever a run is resumed, also within an epoch and a step.
TEST(DrawnInTheGraph, AResumedRunContinuesTheOrder) {
  const Set set(kDevice), test(kDevice, 20);
  const TensorLoader training = set.loader(kShuffled), validation = test.loader({.batch_size = 8});
  for (const int64_t stops : {2, 15, 24, 33}) {
    SCOPED_TRACE(stops);
    const Fit plain = fit({}, training, validation);
    const Fit graphed = fit({.mode = GraphMode::on, .stops_after = stops}, training, validation);
    graphed_training::expect_same(plain.weights, graphed.weights);
    EXPECT_EQ(graphed.training.choices, 48);
  }
}

// An observer that needs a step sees the tensors of its batch, and is asked once a step.
TEST(DrawnInTheGraph, AStepThatIsWatchedHasItsBatch) {
  const Set set(kDevice), test(kDevice, 20);
  const TensorLoader training = set.loader(kShuffled), validation = test.loader({.batch_size = 8});
  const Fit plain = fit({.interval = 5}, training, validation);
  const Fit graphed = fit({.mode = GraphMode::on, .interval = 5}, training, validation);
  expect_same(plain, graphed);
  EXPECT_EQ(graphed.training.batches, 9);
  ASSERT_EQ(graphed.asked.size(), 48U);
  for (std::size_t i = 0; i < 48; ++i) EXPECT_EQ(graphed.asked[i], int64_t(i) + 1);
  ASSERT_EQ(graphed.inputs.size(), 18U);
  EXPECT_EQ(graphed.inputs[0], "input [8, 6]");
  EXPECT_EQ(graphed.inputs[1], "target [8]");
}

// From then on batches come from the loader.
TEST(DrawnInTheGraph, ARunThatCannotBeRecordedDrawsPlainly) {
  const Set set(kDevice), test(kDevice, 20);
  const TensorLoader training = set.loader(kShuffled), validation = test.loader({.batch_size = 8});
  const auto reads = [](Net& net, const Batch& batch) {
    at::Tensor out = net->forward(batch.input);
    return out.sum().item<float>() > 0 ? out : out * 2;
  };
  const Fit plain = fit({.forward = reads}, training, validation);
  const Fit graphed = fit({.mode = GraphMode::automatic, .forward = reads}, training, validation);
  expect_same(plain, graphed);
  EXPECT_GT(graphed.training.batches, 40);
  EXPECT_GT(graphed.validation.batches, 16);
}

// Workers make batches ahead; sets elsewhere are moved batch by batch.
TEST(DrawnInTheGraph, OtherLoadersHandTheirBatchesOver) {
  const Set set(kDevice), here(c10::kCPU), test(kDevice, 20);
  const auto rows = std::make_shared<TensorLoader>(set.x, set.y, kShuffled);
  const demi::data::PrefetchLoader ahead(rows, {.workers = 2, .depth = 3, .device = kDevice});
  const TensorLoader moved = here.loader(kShuffled), validation = test.loader({.batch_size = 8});
  const Fit plain = fit({}, *rows, validation);
  for (const demi::data::Loader* one : {static_cast<const demi::data::Loader*>(&ahead),
                                        static_cast<const demi::data::Loader*>(&moved)}) {
    const Fit graphed = fit({.mode = GraphMode::on}, *one, validation);
    expect_same(plain, graphed);
    EXPECT_EQ(graphed.training.batches, 48);
    EXPECT_EQ(graphed.training.chosen, 0);
  }
}

}  // namespace
