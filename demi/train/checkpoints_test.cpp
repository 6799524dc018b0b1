// The checkpoints that a Trainer writes: when, what they say, and that a run goes on from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "demi/checkpoint/training_state.h"
#include "demi/core/error.h"
#include "demi/core/memory_testing.h"
#include "demi/optim/adamw.h"
#include "demi/optim/sgd.h"
#include "demi/train/resume_testing.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::train {
namespace {

using namespace testing;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// A folder that is gone at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "demi-checkpoints-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~ScratchFolder() { fs::remove_all(path_); }
  fs::path path() const { return path_ / "checkpoints"; }

  /// Names of the checkpoints, in order.
  std::vector<std::string> steps() const {
    std::vector<std::string> names;
    if (!fs::exists(path())) return names;
    for (const auto& entry : fs::directory_iterator(path()))
      if (entry.path().filename().string().starts_with("step-"))
        names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  fs::path path_;
};

/// While a checkpoint of one of these steps is saved, files of this process end at 1 byte: what a
/// full disk does. The step before is written to its end first.
class Outage {
 public:
  explicit Outage(std::set<double> steps) : steps_(std::move(steps)) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
  }
  ~Outage() { end(); }
  Outage(const Outage&) = delete;
  Outage& operator=(const Outage&) = delete;

  void before_save(const checkpoint::Checkpoint& checkpoint) {
    const rlimit limit{1, before_.rlim_max};
    const bool fails = steps_.contains(checkpoint.numbers.at("progress").at("step"));
    setrlimit(RLIMIT_FSIZE, fails ? &limit : &before_);
  }
  void end() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  std::set<double> steps_;
  rlimit before_{};
};

std::string step_name(int64_t step) {
  std::string digits = std::to_string(step);
  return "step-" + std::string(8 - digits.size(), '0') + digits;
}

// 3 epochs of 4 batches, in the same weights each time.
Job plain_job(const fs::path& folder, CheckpointOptions checkpoints = {}) {
  torch::manual_seed(5);
  Job one;
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Dropout(0.3),
                              torch::nn::Linear(8, 3));
  one.network = network(model);
  one.options.epochs = 3;
  one.options.optimizers = {
      std::make_shared<optim::AdamW>(model->parameters(), optim::AdamWOptions(0.05))};
  one.options.checkpoints = std::move(checkpoints);
  one.options.checkpoints.folder = folder;
  one.training = rows(16, 4, 7);
  one.validation = rows(7, 4, 8);
  return one;
}

Outcome from_disk(Job one, const fs::path& path) {
  const checkpoint::Checkpoint state = checkpoint::load(path);
  return train(std::move(one), &state);
}

// Without the texts and folders that a run without checkpoints lacks.
void expect_same_run(const Outcome& a, const Outcome& b) {
  expect_same(a.state, b.state);
  EXPECT_EQ(a.history.steps.size(), b.history.steps.size());
}

TEST(Checkpoints, AreWrittenEverySoManySteps) {
  for (const bool in_background : {true, false}) {
    ScratchFolder folder;
    train(plain_job(folder.path(),
                    {.every = {.steps = 5}, .keep_last = 0, .in_background = in_background}));
    EXPECT_EQ(folder.steps(),
              (std::vector<std::string>{step_name(5), step_name(10), step_name(12)}))
        << "and the last state, at the end";
  }
}

TEST(Checkpoints, AreWrittenAtTheEndOfEpochsAndOnlyTheLastAreKept) {
  ScratchFolder folder;
  train(plain_job(folder.path(), {.every = {.epochs = 1}, .keep_last = 2}));
  EXPECT_EQ(folder.steps(), (std::vector<std::string>{step_name(8), step_name(12)}));
}

TEST(Checkpoints, AreWrittenByTheClock) {
  ScratchFolder folder;
  train(plain_job(folder.path(), {.every = {.minutes = 1e-9}, .keep_last = 0}));
  EXPECT_EQ(folder.steps().size(), 12U) << "each step";
  EXPECT_EQ(folder.steps().back(), step_name(12)) << "once, with its validation";
  ScratchFolder never;
  train(plain_job(never.path(), {.every = {.minutes = 60}, .keep_last = 0}));
  EXPECT_EQ(never.steps(), std::vector<std::string>{step_name(12)});
}

// 3 epochs of 4 steps, in which the saves of these steps fail.
Job job_with(Outage& outage, const ScratchFolder& folder, CheckpointOptions checkpoints) {
  checkpoints.keep_last = 0;
  checkpoints.before_save = [&](checkpoint::Checkpoint& state) { outage.before_save(state); };
  return plain_job(folder.path(), std::move(checkpoints));
}

std::vector<std::string> step_names(const std::vector<int64_t>& steps) {
  std::vector<std::string> names;
  for (const int64_t step : steps) names.push_back(step_name(step));
  return names;
}

TEST(Checkpoints, ThatCannotBeSavedEndNoTrainingAndEachOutageIsWarnedOfOnce) {
  ScratchFolder unbroken;
  const Outcome expected = train(plain_job(unbroken.path()));
  for (const bool in_background : {true, false}) {
    ScratchFolder folder;
    Outage outage({2, 4, 8});
    const weights::testing::RecordedWarnings warnings;
    const Outcome outcome =
        train(job_with(outage, folder, {.every = {.steps = 2}, .in_background = in_background}));
    outage.end();
    EXPECT_EQ(folder.steps(), step_names({6, 10, 12}));
    EXPECT_EQ(warnings.holding("could not be saved"), 2);
    EXPECT_EQ(warnings.holding("the checkpoint of step 2 could not be saved"), 1);
    EXPECT_EQ(warnings.holding("the checkpoint of step 8 could not be saved"), 1);
    EXPECT_EQ(warnings.holding("File too large"), 2);
    expect_same_run(outcome, expected);
  }
}

TEST(Checkpoints, ThatCouldNotBeSavedAreTriedAgainAfterSoManySeconds) {
  ScratchFolder soon, later;
  Outage outage({4});
  const weights::testing::RecordedWarnings warnings;
  train(job_with(outage, soon,
                 {.every = {.steps = 4}, .in_background = false, .retry_seconds = 1e-9}));
  EXPECT_EQ(soon.steps(), step_names({5, 8, 12}));
  train(job_with(outage, later,
                 {.every = {.steps = 4}, .in_background = false, .retry_seconds = 3600}));
  EXPECT_EQ(later.steps(), step_names({8, 12}));
}

// In the background, too, and while the second try is written none follows. How many batches pass
// until the first is known to have failed is the disk's matter.
TEST(Checkpoints, ThatCouldNotBeSavedInTheBackgroundAreTriedAgainOnce) {
  ScratchFolder folder;
  Outage outage({6});
  const weights::testing::RecordedWarnings warnings;
  std::chrono::steady_clock::time_point now;
  std::vector<double> tries;
  Job one =
      plain_job(folder.path(), {.keep_last = 0, .retry_seconds = 1, .clock = [&] { return now; }});
  one.options.epochs = 10'000;
  one.options.checkpoints.before_save = [&](checkpoint::Checkpoint& state) {
    tries.push_back(state.numbers.at("progress").at("step"));
    state.model["large"] = at::zeros({8 << 20});  // so that it takes longer than a step
    outage.before_save(state);
  };
  int64_t batch = 0, known = 0;
  one.options.should_save = [&] {
    ++batch;
    if (known == 0 && warnings.holding("could not be saved") > 0) known = batch;
    if (known == 0 && batch > 6) std::this_thread::sleep_for(1ms);  // until the next look
    if (known > 0 && batch == known + 1) now += 999ms;
    if (known > 0 && batch == known + 2) now += 1ms;
    return batch == 6;
  };
  one.options.should_stop = [&] { return known > 0 && batch >= known + 5; };
  const int64_t last = train(std::move(one)).history.steps.back().step;
  EXPECT_THAT(tries, ::testing::ElementsAre(6, known + 2, last));
  EXPECT_EQ(folder.steps(), step_names({known + 2, last}));
  EXPECT_EQ(warnings.holding("could not be saved"), 1);
}

TEST(Checkpoints, AreTriedAgainBetweenStepsAlone) {
  ScratchFolder folder;
  Outage outage({2});
  const weights::testing::RecordedWarnings warnings;
  std::vector<double> tries;
  Job one = plain_job(folder.path(),
                      {.every = {.steps = 2}, .in_background = false, .retry_seconds = 1e-9});
  one.options.accumulate = 2;
  one.options.checkpoints.before_save = [&](checkpoint::Checkpoint& state) {
    tries.push_back(state.numbers.at("progress").at("step"));
    outage.before_save(state);
  };
  train(std::move(one));
  EXPECT_THAT(tries, ::testing::ElementsAre(2, 3, 4, 6)) << "none in the middle of a step";
}

TEST(Checkpoints, WhoseLastIsSavedAfterAnOutageEndWell) {
  ScratchFolder folder;
  Outage outage({8});
  const weights::testing::RecordedWarnings warnings;
  train(job_with(outage, folder, {.every = {.steps = 4}, .in_background = true}));
  EXPECT_EQ(folder.steps(), step_names({4, 12}));
}

// One is due after the first step alone.
TEST(Checkpoints, ThatAreDueByTheClockAndFailAreNotTriedAtEachStep) {
  ScratchFolder folder;
  Outage outage({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const weights::testing::RecordedWarnings warnings;
  std::chrono::steady_clock::time_point now;
  std::vector<double> tries;
  Job one =
      plain_job(folder.path(),
                {.every = {.minutes = 1}, .in_background = false, .clock = [&] { return now; }});
  one.options.checkpoints.before_save = [&](checkpoint::Checkpoint& state) {
    tries.push_back(state.numbers.at("progress").at("step"));
    outage.before_save(state);
  };
  one.options.should_save = [&, first = true]() mutable {
    if (std::exchange(first, false)) now += 1min;
    return false;
  };
  train(std::move(one));
  EXPECT_THAT(tries, ::testing::ElementsAre(1, 12)) << "and the last state";
}

TEST(Checkpoints, ThatCannotBeSavedAtTheEndAreAnError) {
  for (const bool in_background : {true, false}) {
    ScratchFolder folder;
    Outage outage({12});
    const weights::testing::RecordedWarnings warnings;
    EXPECT_THROW(
        train(job_with(outage, folder, {.every = {.steps = 4}, .in_background = in_background})),
        TrainingError);
    outage.end();
    EXPECT_EQ(folder.steps(), step_names({4, 8}));
  }
}

/// Fails once, in the thread that writes the state of this step.
void fail_once(Job& one, Outage& outage) {
  one.options.checkpoints.before_save = [&, tries = 0](checkpoint::Checkpoint& state) mutable {
    tries++ == 0 ? outage.before_save(state) : outage.end();
  };
}

TEST(Checkpoints, ThatAThreadCouldNotWriteAreTriedAgainAtTheEnd) {
  ScratchFolder folder;
  Outage outage({12});
  const weights::testing::RecordedWarnings warnings;
  Job one = plain_job(folder.path(), {.every = {.epochs = 3}});
  fail_once(one, outage);
  train(std::move(one));
  EXPECT_EQ(warnings.holding("could not be saved"), 1);
  EXPECT_EQ(folder.steps(), step_names({12}));
}

/// Its fifth batch cannot be read.
struct Unreadable : data::Loader {
  std::shared_ptr<const data::Loader> inner;
  explicit Unreadable(std::shared_ptr<const data::Loader> of) : inner(std::move(of)) {}
  int64_t examples() const override { return inner->examples(); }
  int64_t batches() const override { return inner->batches(); }
  data::Batch batch(int64_t epoch, int64_t position) const override {
    if (epoch == 1) throw std::runtime_error("unreadable");
    return inner->batch(epoch, position);
  }
};

TEST(Checkpoints, ThatAThreadCouldNotWriteAreTriedAgainAfterAnException) {
  for (const double retry_seconds : {60., 0.}) {
    ScratchFolder folder;
    Outage outage({4});
    const weights::testing::RecordedWarnings warnings;
    Job one = plain_job(folder.path(), {.every = {.epochs = 1}, .retry_seconds = retry_seconds});
    fail_once(one, outage);
    one.training = std::make_shared<Unreadable>(one.training);
    EXPECT_THROW(train(std::move(one)), std::runtime_error);
    EXPECT_EQ(folder.steps(), step_names({4})) << retry_seconds;
  }
}

// What is tried again is the state from before the epoch was closed, from which it goes on.
TEST(Checkpoints, OfARunThatIsStoppedWithinAnEpochAreTriedAgain) {
  const Outcome whole = train(plain_job({}));
  ScratchFolder folder;
  Outage outage({8});
  const weights::testing::RecordedWarnings warnings;
  Job one = plain_job(folder.path(), {.in_background = false});
  one.options.checkpoints.before_save = [&, tries = 0](checkpoint::Checkpoint& state) mutable {
    tries++ == 0 ? outage.before_save(state) : outage.end();
  };
  stopped_after(std::move(one), 8);
  EXPECT_EQ(warnings.holding("could not be saved"), 1);
  ASSERT_EQ(folder.steps(), step_names({8}));
  expect_same_run(whole, from_disk(plain_job({}), folder.path() / step_name(8)));
}

TEST(Checkpoints, ThatCannotBeSavedEndTheTrainingWhereNoneIsTriedAgain) {
  ScratchFolder folder;
  Outage outage({4, 5});
  const weights::testing::RecordedWarnings warnings;
  EXPECT_THROW(train(job_with(outage, folder,
                              {.every = {.steps = 2}, .in_background = false, .retry_seconds = 0})),
               TrainingError);
  EXPECT_EQ(folder.steps(), step_names({2}));
  EXPECT_TRUE(warnings.messages().empty());
}

TEST(Checkpoints, AreWrittenWhenAskedFor) {
  ScratchFolder folder;
  Job one = plain_job(folder.path(), {.keep_last = 0});
  one.options.should_save = [batches = 0]() mutable { return ++batches == 7; };
  const Outcome whole = train(plain_job({}));
  const Outcome saved = train(std::move(one));
  EXPECT_EQ(folder.steps(), (std::vector<std::string>{step_name(7), step_name(12)}));
  expect_same_run(whole, saved);  // saving changes nothing of the run
  expect_same_run(whole, from_disk(plain_job({}), folder.path() / step_name(7)));
}

TEST(Checkpoints, AreNotWrittenWithoutAFolder) {
  Job one = plain_job({}, {.every = {.steps = 1}});
  one.options.should_save = [] {
    ADD_FAILURE() << "asked";
    return true;
  };
  train(std::move(one));
}

TEST(Checkpoints, ResumeFindsTheLastOfAFolder) {
  ScratchFolder folder;
  const Outcome whole = train(plain_job({}));
  for (int64_t k = 1; k <= 17; k += 3) {
    Job one = plain_job(folder.path());
    one.options.accumulate = 1;
    stopped_after(std::move(one), k);
    Job next = plain_job({});
    Trainer trainer(next.network, next.options);
    trainer.resume(folder.path());
    Trainer::Parts parts(trainer, *next.training, next.validation.get());
    while (parts.advance(2)) {
    }
    SCOPED_TRACE(k);
    expect_same(whole.state, copy_of(parts.checkpoint()));
    EXPECT_EQ(folder.steps().size(), 1U);
  }
}

TEST(Checkpoints, SayWhatTheyAre) {
  ScratchFolder folder;
  Job one = plain_job(folder.path(), {.text = {{"demi.config", "{}"}, {"who", "me"}}});
  one.options.precision = parse_precision("bf16");
  one.options.checkpoints.before_save = [](checkpoint::Checkpoint& state) {
    state.numbers["mine"]["a"] = 3;
  };
  const Outcome outcome = train(std::move(one));
  const checkpoint::Checkpoint saved = checkpoint::load(folder.path());
  EXPECT_EQ(saved.numbers.at("mine").at("a"), 3);
  EXPECT_EQ(saved.text.at("demi.precision"), "bf16");
  EXPECT_EQ(saved.text.at("demi.epoch"), "3");
  EXPECT_EQ(saved.text.at("demi.step"), "12");
  EXPECT_EQ(saved.text.at("demi.config"), "{}");
  EXPECT_EQ(saved.text.at("who"), "me");
  EXPECT_EQ(saved.text.at("demi.optimizer"), "AdamW");
  EXPECT_THAT(saved.text.at("demi.libtorch"), HasSubstr("2."));
  EXPECT_FALSE(saved.text.at("demi.version").empty());
  const History& history = outcome.history;
  EXPECT_DOUBLE_EQ(std::stod(saved.text.at("demi.test_accuracy")),
                   *history.epochs.back().validation->accuracy);
  double best = 0;
  for (const EpochRecord& epoch : history.epochs)
    best = std::max(best, *epoch.validation->accuracy);
  EXPECT_DOUBLE_EQ(std::stod(saved.text.at("demi.best_accuracy")), best);
}

// The first epochs are the best: the rate is too high after them.
TEST(Checkpoints, KeepTheBestInFp32AcrossARestart) {
  ScratchFolder folder;
  const auto make = [&] {
    Job one = plain_job(folder.path(), {.every = {.steps = 1}, .keep_best = true});
    one.options.precision = parse_precision("bf16");
    one.options.epochs = 4;
    one.options.loss = LossFunction([](const at::Tensor& output, const at::Tensor& target) {
      return loss_of(Loss::cross_entropy, output, target);
    });
    one.options.schedule = [](int64_t step, double base) { return step < 8 ? base : 100 * base; };
    return one;
  };
  const Outcome part = stopped_after(make(), 14);  // within the third epoch
  const Outcome rest = from_disk(make(), folder.path());
  ASSERT_TRUE(rest.history.best_epoch);
  const int64_t epoch = *rest.history.best_epoch;
  ASSERT_LE(epoch, 2) << "before the restart";
  const checkpoint::Checkpoint best = checkpoint::load(folder.path() / "best");
  EXPECT_EQ(best.text.at("demi.epoch"), std::to_string(epoch));
  EXPECT_EQ(best.text.at("demi.step"), std::to_string(4 * epoch));
  for (const auto& [name, tensor] : best.model) EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
  EXPECT_EQ(checkpoint::load(folder.path()).text.at("demi.step"), "16");
}

// A body is trained from the end of the first epoch on, in a group of its own.
struct Unfreezes : Callback {
  Unfreezes(std::shared_ptr<torch::optim::Optimizer> of, std::vector<at::Tensor> what)
      : optimizer(std::move(of)), body(std::move(what)) {
    for (const at::Tensor& p : body) p.set_requires_grad(false);
  }
  static torch::optim::OptimizerParamGroup group(const std::vector<at::Tensor>& of) {
    return {of, std::make_unique<optim::SGDOptions>(optim::SGDOptions(0.05).momentum(0.9))};
  }
  void on_epoch_end(const EpochRecord& epoch) override {
    if (epoch.epoch != 1) return;
    for (const at::Tensor& p : body) p.set_requires_grad(true);
    optimizer->add_param_group(group(body));
  }
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::vector<at::Tensor> body;
};

// The checkpoint is saved before the schedule's next step.
TEST(Checkpoints, HoldTheRateOfAGroupThatACallbackHasAdded) {
  ScratchFolder folder;
  const auto body_of = [](const Job& one) {
    const auto all = one.network.module->parameters();
    return std::vector<at::Tensor>(all.begin(), all.begin() + 2);
  };
  const auto make = [&](bool is_unfrozen) {
    Job one = plain_job(folder.path(), {.every = {.epochs = 1}, .keep_last = 0});
    const auto all = one.network.module->parameters();
    one.options.optimizers = {std::make_shared<optim::SGD>(
        std::vector<at::Tensor>(all.begin() + 2, all.end()), optim::SGDOptions(0.1).momentum(0.9))};
    if (is_unfrozen) one.options.optimizers[0]->add_param_group(Unfreezes::group(body_of(one)));
    one.options.schedule = optim::lr::exponential(0.75);
    return one;
  };
  Job first = make(false);
  const auto unfreezes = std::make_shared<Unfreezes>(first.options.optimizers[0], body_of(first));
  const Outcome whole = train(std::move(first), nullptr, unfreezes);
  EXPECT_EQ(whole.state.numbers.at("schedule").at("base_lrs.1"), 0.05);
  const fs::path of_epoch = folder.path() / step_name(4);
  EXPECT_EQ(checkpoint::load(of_epoch).numbers.at("schedule").at("base_lrs.1"), 0.05);
  expect_same_run(from_disk(make(true), of_epoch), whole);
}

// Throws from a place of the loop, once.
enum class Place { kLoader, kForward, kCallback, kValidation, kUpdate };

struct ThrowsIn : Callback {
  explicit ThrowsIn(Place where) : place(where) {}
  void on_step(const StepMetrics& step, int64_t) override {
    if (place == Place::kCallback && step.step == 6) throw std::runtime_error("callback");
  }
  void on_evaluate_begin(int64_t epoch) override {
    if (place == Place::kValidation && epoch == 2) throw std::runtime_error("validation");
  }
  Place place;
};

class ThrowingLoader : public data::Loader {
 public:
  explicit ThrowingLoader(std::shared_ptr<const data::Loader> inner) : inner_(std::move(inner)) {}
  int64_t examples() const override { return inner_->examples(); }
  int64_t batches() const override { return inner_->batches(); }
  data::Batch batch(int64_t epoch, int64_t position) const override {
    if (epoch == 1 && position == 3) throw std::runtime_error("loader");
    return inner_->batch(epoch, position);
  }

 private:
  std::shared_ptr<const data::Loader> inner_;
};

TEST(Checkpoints, HoldTheLastWholeStateAfterAnException) {
  for (const int64_t accumulate : {1, 3}) {
    const auto make = [&](const fs::path& folder) {
      Job one = plain_job(folder);
      one.options.accumulate = accumulate;
      one.options.read_every = 1;
      return one;
    };
    const Outcome whole = train(make({}));
    for (const Place place :
         {Place::kLoader, Place::kForward, Place::kCallback, Place::kValidation}) {
      if (place == Place::kCallback && accumulate == 3) continue;  // that step is the last batch's
      SCOPED_TRACE(std::to_string(static_cast<int>(place)) + " " + std::to_string(accumulate));
      ScratchFolder folder;
      Job broken = make(folder.path());
      if (place == Place::kLoader)
        broken.training = std::make_shared<ThrowingLoader>(broken.training);
      if (place == Place::kForward) {
        const auto forward = broken.network.forward;
        broken.network.forward = [forward, calls = 0](const data::Batch& batch) mutable {
          at::Tensor output = forward(batch);
          if (++calls == 8) throw std::runtime_error("forward");
          return output;
        };
      }
      EXPECT_THROW(train(std::move(broken), nullptr, std::make_shared<ThrowsIn>(place)),
                   std::runtime_error);
      ASSERT_EQ(folder.steps().size(), 1U);
      expect_same_run(whole, from_disk(make({}), folder.path()));
    }
  }
}

TEST(Checkpoints, AreNotWrittenOfAHalfDoneUpdate) {
  ScratchFolder folder;
  Job one = plain_job(folder.path(), {.every = {.steps = 4}});
  one.options.schedule = [](int64_t step, double base) {
    if (step > 5) throw std::runtime_error("schedule");
    return base;
  };
  EXPECT_THROW(train(std::move(one)), std::runtime_error);
  EXPECT_EQ(folder.steps(), std::vector<std::string>{step_name(4)});
}

TEST(Checkpoints, OfARunThatFailedStayThoseFromBefore) {
  ScratchFolder folder;
  Job one = plain_job(folder.path(), {.every = {.steps = 2}});
  one.options.give_up_after = 1;
  one.options.read_every = 1;
  one.options.loss =
      LossFunction([calls = 0](const at::Tensor& output, const at::Tensor& target) mutable {
        const at::Tensor loss = loss_of(Loss::cross_entropy, output, target);
        return ++calls > 5 ? loss * NAN : loss;
      });
  const Outcome outcome = train(std::move(one));
  ASSERT_TRUE(outcome.history.failed);
  EXPECT_EQ(folder.steps(), std::vector<std::string>{step_name(4)});
}

TEST(Trainer, ASecondFitGoesOnWithTheScale) {
  Job one = plain_job({});
  one.options.precision = parse_precision("fp16");
  one.options.epochs = 1;
  one.options.scaler = {.init_scale = 1024, .growth_interval = 3};
  Trainer trainer(one.network, one.options);
  const History first = trainer.fit(*one.training), second = trainer.fit(*one.training);
  EXPECT_EQ(first.steps.back().loss_scale, 2048);
  EXPECT_EQ(second.steps.front().loss_scale, 2048) << "1 of 3 clean steps are counted";
  EXPECT_EQ(second.steps[2].loss_scale, 4096);
}

struct ThrowsOnce : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (!std::exchange(threw, true)) throw std::runtime_error("optimizer");
    return SGD::step(closure);
  }
  bool threw = false;
};

// What an exception between unscale_ and update leaves behind does not reach the next fit.
TEST(Trainer, ASecondFitStartsCleanAfterAnException) {
  Job one = plain_job({});
  one.options.precision = parse_precision("fp16");
  one.options.epochs = 1;
  one.options.clip_norm = 1;
  one.options.optimizers = {std::make_shared<ThrowsOnce>(one.network.module->parameters(), 0.1)};
  Trainer trainer(one.network, one.options);
  EXPECT_THROW(trainer.fit(*one.training), std::runtime_error);
  EXPECT_EQ(trainer.fit(*one.training).steps.size(), 4U);
}

TEST(Trainer, ResumeRefusesWhatDoesNotFitAndChangesNothing) {
  const Outcome part = stopped_after(plain_job({}), 6);
  const auto expect_refused = [](Job one, const checkpoint::Checkpoint& from, const char* words) {
    Trainer trainer(one.network, one.options);
    const auto before = copy_of(checkpoint::capture({.models = {one.network.module.get()}}));
    try {
      trainer.resume(from);
      Trainer::Parts parts(trainer, *one.training, one.validation.get());
      ADD_FAILURE() << words;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
    if (std::string(words).find("other batches") == std::string::npos)
      expect_same(before, copy_of(checkpoint::capture({.models = {one.network.module.get()}})));
  };
  checkpoint::Checkpoint weights{.model = part.state.model, .state = {}, .numbers = {}, .text = {}};
  expect_refused(plain_job({}), weights, "weights alone");
  checkpoint::Checkpoint broken = part.state;
  broken.state.erase("history/steps.loss");
  expect_refused(plain_job({}), broken, "history/steps.loss");
  broken = part.state;
  broken.numbers["progress"]["position"] = -1;
  expect_refused(plain_job({}), broken, "position");
  broken = part.state;
  broken.state["gradient/nobody"] = torch::zeros(3);
  expect_refused(plain_job({}), broken, "nobody");
  Job other = plain_job({});
  other.options.optimizers = {std::make_shared<optim::SGD>(other.network.module->parameters())};
  expect_refused(std::move(other), part.state, "another optimizer");
  Job more = plain_job({});
  more.training = rows(20, 4, 7);
  expect_refused(std::move(more), part.state, "other batches");
  Job slower = plain_job({});
  slower.options.accumulate = 2;
  expect_refused(std::move(slower), part.state, "other batches");
  Job scheduled = plain_job({});
  scheduled.options.schedule = optim::lr::exponential(0.5);
  broken = part.state;
  broken.numbers["schedule"]["last_epoch"] = 1;
  expect_refused(std::move(scheduled), broken, "base_lrs");
  Job lost = plain_job({});
  EXPECT_THROW(Trainer(lost.network, lost.options).resume("/nowhere/at/all"), DataError);
}

TEST(Trainer, TwoRunsInOneFolderAreRefused) {
  ScratchFolder folder;
  Job one = plain_job(folder.path()), two = plain_job(folder.path());
  Trainer first(one.network, one.options), second(two.network, two.options);
  const Trainer::Parts parts(first, *one.training);
  EXPECT_THROW(second.fit(*two.training), UsageError);
}

// 16 layers of 4 MiB, trained for one step, the second batch of which is still to come.
Job large_job(const fs::path& folder) {
  Job one;
  torch::nn::Sequential model;
  for (int64_t i = 0; i < 16; ++i)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
  one.network = network(model);
  one.options.optimizers = {
      std::make_shared<optim::AdamW>(model->parameters(), optim::AdamWOptions(0.01))};
  one.options.accumulate = 2;
  one.options.max_steps = 2;
  one.options.checkpoints.folder = folder;
  one.training = std::make_shared<data::TensorLoader>(
      torch::ones({8, 1024}), torch::zeros({8}, torch::kLong), data::OrderOptions{.batch_size = 2});
  return one;
}

TEST(Checkpoints, AreResumedInOneTensorOfMemoryBeyondTheTrainings) {
  constexpr int64_t kTensors = 16, kTensorKilobytes = 4096;
  const ScratchFolder folder;
  {
    Job first = large_job(folder.path());
    int64_t batches = 0;
    first.options.should_stop = [&] { return ++batches == 3; };
    train(std::move(first));
  }
  // The first call also pays for code that no other call has used before, 8 MiB at times.
  int64_t taken = std::numeric_limits<int64_t>::max();
  for (int call = 0; call < 2; ++call) {
    Job second = large_job(folder.path());
    Trainer trainer(second.network, std::move(second.options));
    taken = std::min(taken, peak_kilobytes_of([&] { trainer.resume(folder.path()); }));
  }
  if (taken < 0) GTEST_SKIP() << "memory cannot be measured here";
  EXPECT_LT(taken, (3 * kTensors + 2) * kTensorKilobytes) << "two moments and the open gradients";
  // Memory that the first call gave back may serve the second: 46 of 48 tensors were new under
  // AddressSanitizer.
  EXPECT_GT(taken, 2 * kTensors * kTensorKilobytes) << "else nothing is measured";
}

}  // namespace
}  // namespace demi::train
