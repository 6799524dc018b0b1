// A rank that dies, as a process of its own: in forward, in an all-reduce, in the gather of what
// the others updated, while a checkpoint is saved. DEMI_LONG: every rank of 2, 3 and 4, in each of
// them. And a rank that ends at any point of a program at which the others wait for it, by a
// signal, by an exit, by an exception, wherever the store is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/load_testing.h"
#include "demi/core/wait_until_testing.h"
#include "demi/data/tensor_loader.h"
#include "demi/distributed/c10d.h"
#include "demi/distributed/children_testing.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/port_testing.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/sharding.h"
#include "demi/distributed/signs_testing.h"
#include "demi/distributed/store.h"
#include "demi/train/names.h"
#include "demi/train/resume_testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;

using demi::testing::Child;
using demi::testing::HeldPort;
using demi::testing::sign_of;
using demi::testing::waits_in_a_collective;
using ::testing::HasSubstr;

constexpr int64_t kFatalStep = 4;
constexpr std::chrono::seconds kTimeout{10};
constexpr std::chrono::milliseconds kNow{0};
constexpr const char* kComes = "comes to the all-reduce";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Memory that the present process may not write to any more from some moment on: whoever does is
// killed.
class FatalMemory {
 public:
  explicit FatalMemory(std::size_t bytes)
      : bytes_(bytes),
        begin_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (begin_ == MAP_FAILED) throw std::runtime_error("no memory can be mapped");
  }
  ~FatalMemory() { ::munmap(begin_, bytes_); }
  FatalMemory(const FatalMemory&) = delete;
  FatalMemory& operator=(const FatalMemory&) = delete;

  void* begin() const { return begin_; }
  void protect() const {
    ::signal(SIGSEGV, [](int) { ::raise(SIGKILL); });
    ::mprotect(begin_, bytes_, PROT_READ);
  }

 private:
  std::size_t bytes_;
  void* begin_;
};

// The moment in step 4 at which DEMI_TEST_DIES is the present rank's.
class Dies : public Callback {
 public:
  Dies(std::string moment, std::shared_ptr<FatalMemory> received)
      : moment_(std::move(moment)), received_(std::move(received)) {}
  void after_forward(const StepView& view, const at::Tensor& output) override {
    if (view.step != kFatalStep) return;
    if (moment_ == "forward") ::raise(SIGKILL);
    // The others have sent their buckets when the test kills it: it comes to none of their sums.
    if (moment_ == "all-reduce")
      output.register_hook([](const at::Tensor&) {
        std::fprintf(stderr, "%s\n", kComes);
        ::sleep(600);  // the test kills it before
      });
  }
  // The first piece of a parameter that another rank updates comes in the gather, and is written.
  void after_backward(const StepView& view) override {
    if (view.step == kFatalStep && moment_ == "gather") received_->protect();
  }
  // Of the step that is saved, in the save: before the optimizers' states are brought together.
  void on_step(const StepMetrics& step, std::int64_t) override {
    if (step.step == kFatalStep && moment_ == "consolidation") ::raise(SIGKILL);
  }

 private:
  std::string moment_;
  std::shared_ptr<FatalMemory> received_;
};

// A layer a rank, of equal sizes: each rank keeps the state of one. That of the next rank lies in
// the memory that comes back.
std::shared_ptr<FatalMemory> put_next_ranks_layer(const std::vector<at::Tensor>& weights,
                                                  const distributed::ProcessGroup& group) {
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& weight : weights) sizes.push_back(weight.numel());
  const auto owners = distributed::owners_of_tensors(sizes, group.world_size());
  const int next = (group.rank() + 1) % group.world_size();
  const auto found = std::find(owners.begin(), owners.end(), next) - owners.begin();
  const at::Tensor& weight = weights.at(static_cast<std::size_t>(found));
  auto memory = std::make_shared<FatalMemory>(weight.nbytes());
  const at::Tensor there = at::from_blob(memory->begin(), weight.sizes(), at::kFloat);
  there.copy_(weight.detach());
  weight.set_data(there);
  return memory;
}

// A rank of the tests below. They disable it, and run it as a process.
TEST(DyingRank, DISABLED_Child) {
  distributed::ProcessGroupOptions times;
  times.timeout = kTimeout;
  auto group = std::make_shared<distributed::ProcessGroup>(times);
  const bool dies = std::to_string(group->rank()) == variable("DEMI_TEST_DIES");
  const std::string moment = dies ? variable("DEMI_TEST_MOMENT") : "";
  const bool shards = !variable("DEMI_TEST_SHARDS").empty();
  // A layer is four rounds of the gather or more. Two are under way before the first is written, so
  // a rank that dies in this write has not begun the third, for which the others wait.
  const int64_t width = shards ? 1280 : 4;
  torch::manual_seed(7);
  torch::nn::Sequential model;
  for (int layer = 0; layer < group->world_size(); ++layer)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
  const auto received = put_next_ranks_layer(model->parameters(), *group);
  TrainerOptions options;
  options.epochs = 2;
  options.loss = Loss::mse;
  options.group = group;
  options.shard_optimizer = shards;
  options.checkpoints = {
      .folder = variable("DEMI_TEST_FOLDER"), .every = {.steps = 2}, .in_background = false};
  options.checkpoints.before_save = [&, saves = 0](checkpoint::Checkpoint&) mutable {
    if (moment == "save" && ++saves == 2) ::raise(SIGKILL);
  };
  Trainer trainer(network(model), options);
  trainer.add(std::make_shared<Dies>(moment, received));
  if (!variable("DEMI_TEST_RESUMES").empty()) trainer.resume(options.checkpoints.folder);
  // Step 4 ends no epoch: of that, the ranks' weights are compared before it is saved.
  constexpr int64_t kRows = 40;
  const at::Tensor x = (at::arange(kRows * width, at::kDouble) * 1.3).sin().to(at::kFloat);
  trainer.fit(data::TensorLoader(
      x.view({kRows, width}), x.view({kRows, width}).flip(1),
      {.batch_size = 2, .rank = group->rank(), .world_size = group->world_size()}));
}

// Without printing 1280 x 1280 numbers.
void expect_same_bits(const checkpoint::Checkpoint& a, const checkpoint::Checkpoint& b) {
  for (const auto part : {&checkpoint::Checkpoint::model, &checkpoint::Checkpoint::state}) {
    EXPECT_EQ((a.*part).size(), (b.*part).size());
    for (const auto& [name, tensor] : a.*part) {
      ASSERT_TRUE((b.*part).contains(name)) << name;
      if (!testing::is_compared(name)) continue;
      EXPECT_TRUE(testing::same_bits(tensor, (b.*part).at(name))) << name;
    }
  }
}

// Options of a job of the tests below.
struct Job {
  int ranks = 2;
  bool shards = false;
  std::string moment = {};  // none: nobody dies
  int dies = -1;
  bool goes_on = false;  // afterwards
};

class RankThatDies : public ::testing::Test {
 protected:
  RankThatDies() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~RankThatDies() override { fs::remove_all(folder_); }
  RankThatDies(const RankThatDies&) = delete;
  RankThatDies& operator=(const RankThatDies&) = delete;

  // By rank. The checkpoints are below `saved`.
  std::vector<std::unique_ptr<Child>> start(const Job& job, const std::string& saved,
                                            bool resumes = false) {
    stores_.push_back(distributed::serve_store());
    std::vector<std::unique_ptr<Child>> children;
    for (int rank = 0; rank < job.ranks; ++rank) {
      const std::string name = std::to_string(stores_.size()) + "-" + std::to_string(rank);
      children.push_back(std::make_unique<Child>(
          "DyingRank.DISABLED_Child",
          std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                             {"WORLD_SIZE", std::to_string(job.ranks)},
                                             {"DEMI_TEST_DIES", std::to_string(job.dies)},
                                             {"DEMI_TEST_MOMENT", job.moment},
                                             {"DEMI_TEST_SHARDS", job.shards ? "1" : ""},
                                             {"DEMI_TEST_RESUMES", resumes ? "1" : ""},
                                             {"DEMI_TEST_FOLDER", (folder_ / saved).string()},
                                             {"OMP_NUM_THREADS", "1"},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", std::to_string(stores_.back().port)},
                                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
          folder_ / name));
    }
    return children;
  }

  // The state at the end.
  checkpoint::Checkpoint trained(const Job& job, const std::string& saved, bool resumes) {
    for (const auto& child : start(job, saved, resumes)) {
      const int code = child->wait(std::chrono::seconds(120));
      EXPECT_EQ(code, 0) << child->output();
    }
    return checkpoint::load(folder_ / saved);
  }

  // The others end in time with a message that names the rank and the last checkpoint. That one
  // loads, and with `goes_on` the run that begins there is the one in which nobody died, bit for
  // bit.
  void expect_end(const Job& job, int64_t last_step) {
    SCOPED_TRACE(job.moment + " of rank " + std::to_string(job.dies) + " of " +
                 std::to_string(job.ranks) + (job.shards ? ", sharded" : ""));
    const std::string saved =
        job.moment + std::to_string(job.dies) + (job.shards ? "-sharded" : "");
    const auto children = start(job, saved);
    Child& dead = *children[static_cast<std::size_t>(job.dies)];
    if (job.moment == "all-reduce") kill_in_all_reduce(job, dead);
    ASSERT_EQ(dead.wait(std::chrono::seconds(60)), 128 + SIGKILL) << dead.output();
    const char* where = job.moment == "gather"          ? "[distributed.optimizer step]"
                        : job.moment == "consolidation" ? "[distributed.broadcast]"
                                                        : "[distributed.";
    const auto limit =
        std::chrono::steady_clock::now() + kTimeout + demi::under_load(std::chrono::seconds(5));
    for (const auto& other : children) {
      if (other.get() == &dead) continue;
      const auto left = limit - std::chrono::steady_clock::now();
      const int code =
          other->wait(std::max(std::chrono::duration_cast<std::chrono::milliseconds>(left), kNow));
      EXPECT_NE(code, -1) << "it hangs";
      EXPECT_NE(code, 0);
      EXPECT_THAT(other->output(),
                  HasSubstr("rank " + std::to_string(job.dies) + ": no sign of life"))
          << "exit code " << code;
      EXPECT_THAT(other->output(), HasSubstr(where));
      EXPECT_THAT(other->output(), HasSubstr("the last checkpoint is that of step "));
      const bool knows = other == children.front() || job.dies == 0 || job.shards;
      EXPECT_THAT(other->output(),
                  HasSubstr(knows ? "of step " + std::to_string(last_step) + ", " : ""));
    }
    const auto at_the_end = checkpoint::load(folder_ / saved);
    EXPECT_EQ(at_the_end.numbers.at("progress").at("step"), static_cast<double>(last_step));
    if (job.goes_on) expect_goes_on(job, saved);
    fs::remove_all(folder_ / saved);
  }

  void kill_in_all_reduce(const Job& job, const Child& dies) {
    ASSERT_TRUE(dies.has_said(kComes, std::chrono::seconds(60))) << dies.output();
    for (int other = 0; other < job.ranks; ++other)
      ASSERT_TRUE(other == job.dies || waits_in_a_collective(*stores_.back().store, other));
    dies.send(SIGKILL);
  }

  void expect_goes_on(const Job& job, const std::string& saved) {
    const Job whole{.ranks = job.ranks, .shards = job.shards};
    auto& unbroken = unbroken_[{job.ranks, job.shards}];
    if (unbroken.model.empty())
      unbroken = trained(whole, "unbroken" + std::to_string(unbroken_.size()), false);
    const auto resumed = trained(whole, saved, true);
    EXPECT_GT(resumed.numbers.at("progress").at("step"), static_cast<double>(kFatalStep));
    expect_same_bits(resumed, unbroken);
  }

  fs::path folder_ = fs::temp_directory_path() / ("demi-rank-dies-" + std::to_string(::getpid()));

 private:
  std::vector<distributed::ServedStore> stores_;
  std::map<std::pair<int, bool>, checkpoint::Checkpoint> unbroken_;  // by ranks and sharing
};

// Rank 0 saves the last whole step when another one dies; if it dies itself, there is the last one
// that was saved.
TEST_F(RankThatDies, InForward) {
  expect_end({.moment = "forward", .dies = 1, .goes_on = true}, 3);
}
TEST_F(RankThatDies, InForwardIfItIsTheFirst) { expect_end({.moment = "forward", .dies = 0}, 2); }
TEST_F(RankThatDies, InAllReduce) { expect_end({.moment = "all-reduce", .dies = 1}, 3); }
TEST_F(RankThatDies, InAllReduceIfItIsTheFirst) {
  expect_end({.moment = "all-reduce", .dies = 0}, 2);
}
TEST_F(RankThatDies, InAllReduceOfFour) {
  expect_end({.ranks = 4, .moment = "all-reduce", .dies = 2}, 3);
}
TEST_F(RankThatDies, WhileItSaves) { expect_end({.moment = "save", .dies = 0}, 2); }

// A state that is shared out cannot be saved without the dead rank: there is the last one that was
// saved.
TEST_F(RankThatDies, WithASharedState) {
  for (const char* moment : {"forward", "all-reduce", "consolidation"})
    expect_end({.shards = true, .moment = moment, .dies = 1}, 2);
  expect_end({.shards = true, .moment = "gather", .dies = 1, .goes_on = true}, 2);
  expect_end({.shards = true, .moment = "save", .dies = 0, .goes_on = true}, 2);
}

TEST_F(RankThatDies, EveryRankInEveryMoment) {
  if (variable("DEMI_LONG").empty()) GTEST_SKIP() << "minutes; ctest -L long runs it";
  for (const int ranks : {2, 3, 4})
    for (int dies = 0; dies < ranks; ++dies) {
      for (const char* moment : {"forward", "all-reduce"})
        expect_end({ranks, false, moment, dies, true}, dies > 0 ? 3 : 2);
      for (const char* moment : {"forward", "all-reduce", "gather", "consolidation"})
        expect_end({ranks, true, moment, dies, true}, 2);
      if (dies > 0) continue;  // rank 0 alone writes
      for (const bool shards : {false, true}) expect_end({ranks, shards, "save", dies, true}, 2);
    }
}

// The points of a program at which ranks wait for each other, in their order. At "rendezvous" the
// third rank never comes.
const std::vector<std::string> kPoints{"before",      "rendezvous", "require_same", "compare",
                                       "constructor", "forward",    "bucket",       "totals",
                                       "checkpoint",  "evaluation", "shipped"};

void end_at(const std::string& point) {
  if (point != variable("DEMI_TEST_POINT")) return;
  const std::string how = variable("DEMI_TEST_HOW");
  if (how == "exit") ::_exit(3);
  if (how == "exception") throw std::runtime_error("by the test");
  ::raise(SIGKILL);
}

class EndsAtAPoint : public Callback {
 public:
  void after_forward(const StepView&, const at::Tensor& output) override {
    end_at("forward");
    output.register_hook([](const at::Tensor&) { end_at("bucket"); });
  }
  void after_backward(const StepView&) override { end_at("totals"); }
  void on_evaluate_begin(std::int64_t) override { end_at("evaluation"); }
};

// A rank of the tests below. They disable it, and run it as a process. Nothing in it waits for less
// than a minute.
TEST(DyingRank, DISABLED_AtAPoint) {
  end_at("before");
  distributed::ProcessGroupOptions times;
  times.init_method = variable("DEMI_TEST_METHOD");
  times.rank = std::stoi(variable("DEMI_TEST_RANK"));
  times.world_size = std::stoi(variable("DEMI_TEST_RANKS"));
  auto group = std::make_shared<distributed::ProcessGroup>(times);
  end_at("require_same");
  group->require_same("anything", "text");
  end_at("compare");
  group->compare("text");
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  TrainerOptions options;
  options.epochs = 2;
  options.loss = Loss::mse;
  options.group = group;
  options.checkpoints = {.folder = variable("DEMI_TEST_FOLDER"), .in_background = false};
  options.checkpoints.before_save = [](checkpoint::Checkpoint&) { end_at("checkpoint"); };
  end_at("constructor");
  Trainer trainer(network(model), options);
  trainer.add(std::make_shared<EndsAtAPoint>());
  const at::Tensor x = at::ones({12, 4});
  data::OrderOptions order{
      .batch_size = 2, .rank = group->rank(), .world_size = group->world_size()};
  const data::TensorLoader training(x, x, order);
  order.keep_all = true;
  const data::TensorLoader validation(x, x, order);
  trainer.fit(training, &validation);
  end_at("shipped");
  distributed::broadcast_weights(*model, *group);
}

class RankThatEnds : public RankThatDies {
 protected:
  struct End {
    std::string point, how = "signal", store = "agent";
    int ranks = 2, rank = 1;
  };

  struct Started {
    End end;
    std::vector<std::unique_ptr<Child>> children;  // null: it never comes
    distributed::ServedStore store;                // of "agent"
    std::unique_ptr<HeldPort> port;                // of "rank 0"
  };

  Started start(const End& end) {
    Started started{.end = end, .children = {}, .store = {}, .port = {}};
    const std::string name = "end" + std::to_string(++started_);
    std::map<std::string, std::string> all{{"DEMI_TEST_RANKS", std::to_string(end.ranks)},
                                           {"DEMI_TEST_FOLDER", (folder_ / name).string()},
                                           {"OMP_NUM_THREADS", "1"}};
    all["DEMI_TEST_METHOD"] = "env://";
    all["MASTER_ADDR"] = "127.0.0.1";
    if (end.store == "file") {
      all["DEMI_TEST_METHOD"] = "file://" + (folder_ / (name + "-store")).string();
    } else if (end.store == "agent") {
      started.store = distributed::serve_store();
      all["MASTER_PORT"] = std::to_string(started.store.port);
      all["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    } else {
      started.port = std::make_unique<HeldPort>();
      all["MASTER_PORT"] = started.port->text();
      all["TORCHELASTIC_USE_AGENT_STORE"] = "False";
    }
    for (int rank = 0; rank < end.ranks; ++rank) {
      auto own = all;
      own["DEMI_TEST_RANK"] = std::to_string(rank);
      own["DEMI_TEST_POINT"] = rank == end.rank ? end.point : "";
      own["DEMI_TEST_HOW"] = end.how;
      const bool comes = end.point != "rendezvous" || rank < end.ranks - 1;
      started.children.push_back(
          comes ? std::make_unique<Child>("DyingRank.DISABLED_AtAPoint", own,
                                          folder_ / (name + "-" + std::to_string(rank)))
                : nullptr);
    }
    return started;
  }

  // All others end, and say which rank it was: 5 s are promised. What is waited for here is three
  // times as long, on a machine that has more to do, and a tenth of any timeout of theirs.
  static void expect_noticed(const Started& started) {
    const End& end = started.end;
    SCOPED_TRACE("rank " + std::to_string(end.rank) + " of " + std::to_string(end.ranks) + " at " +
                 end.point + ", " + end.how + ", store of " + end.store);
    const auto& dies = started.children[static_cast<std::size_t>(end.rank)];
    if (end.point == "rendezvous") kill_in_rendezvous(started);
    ASSERT_GT(dies->wait(std::chrono::seconds(60)), 0) << dies->output();
    if (end.point == "before")  // as the process that starts ranks does
      started.store.store->set(distributed::kEndedRank,
                               "rank " + std::to_string(end.rank) + " ended");
    for (const auto& other : started.children) {
      if (!other || other == dies) continue;
      const int code = other->wait(demi::under_load(std::chrono::seconds(15)));
      EXPECT_NE(code, -1) << "it hangs: " << other->output();
      EXPECT_NE(code, 0) << other->output();
      EXPECT_THAT(other->output(), HasSubstr("rank " + std::to_string(end.rank)));
    }
  }

  // When those that come know each other: a rank that comes later cannot tell a rank 0 that has
  // ended from one of an earlier start.
  static void kill_in_rendezvous(const Started& started) {
    const auto are_there = [&] {
      for (int rank = 0; rank < started.end.ranks - 1; ++rank)
        if (!sign_of(*started.store.store, rank)) return false;
      return true;
    };
    EXPECT_TRUE(demi::wait_until(are_there));
    started.children[static_cast<std::size_t>(started.end.rank)]->send(SIGKILL);
  }

  // Side by side, since they wait most of the time.
  void expect_all_noticed(const std::vector<End>& ends) {
    std::vector<Started> started;
    started.reserve(ends.size());
    for (const End& end : ends) started.push_back(start(end));
    for (const Started& one : started) expect_noticed(one);
  }

 private:
  int started_ = 0;
};

TEST_F(RankThatEnds, IsNoticedByTheOthers) {
  expect_all_noticed({{.point = "before"}, {.point = "rendezvous", .ranks = 3}});
  expect_all_noticed({{.point = "require_same", .store = "file"},
                      {.point = "compare", .rank = 0},
                      {.point = "constructor", .how = "exception", .store = "rank 0"}});
  expect_all_noticed({{.point = "evaluation", .how = "exit"}, {.point = "shipped", .rank = 0}});
}

TEST_F(RankThatEnds, IsNoticedAtEveryPoint) {
  if (variable("DEMI_LONG").empty()) GTEST_SKIP() << "minutes; ctest -L long runs it";
  for (const std::string& point : kPoints)
    for (const char* store : {"agent", "file", "rank 0"})
      for (const char* how : {"signal", "exit", "exception"}) {
        // Nobody knows of a rank that has never come, but the process that started it.
        const bool is_seen = point != "before" || std::string(store) == "agent";
        const bool is_killed = point != "rendezvous" ||
                               (std::string(store) == "agent" && std::string(how) == "signal");
        if (!is_seen || !is_killed) continue;
        std::vector<End> ends;
        for (const int rank : {0, 1}) {
          if (point == "checkpoint" && rank > 0) continue;  // rank 0 alone saves
          ends.push_back({point, how, store, 3, rank});
        }
        expect_all_noticed(ends);
      }
}

}  // namespace
}  // namespace demi::train
