// A rank that dies, as a process of its own: in forward, in an all-reduce, while it saves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/data/tensor_loader.h"
#include "demi/distributed/c10d.h"
#include "demi/distributed/children_testing.h"
#include "demi/distributed/process_group.h"
#include "demi/train/step_view.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;

using demi::testing::Child;
using ::testing::HasSubstr;

constexpr int64_t kFatalStep = 4;

// The moment in step 4 at which DEMI_TEST_DIES is the present rank's.
class Dies : public Callback {
 public:
  explicit Dies(std::string moment) : moment_(std::move(moment)) {}
  void after_forward(const StepView& view, const at::Tensor& output) override {
    if (view.step != kFatalStep) return;
    if (moment_ == "forward") ::raise(SIGKILL);
    // The other rank has sent its buckets by then: this one comes to none of their sums.
    if (moment_ == "all-reduce")
      output.register_hook([](const at::Tensor&) {
        ::sleep(1);
        ::raise(SIGKILL);
      });
  }

 private:
  std::string moment_;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// A rank of the tests below. They disable it, and run it as a process.
TEST(RankThatDies, DISABLED_Child) {
  auto group = std::make_shared<distributed::ProcessGroup>();
  const bool dies = std::to_string(group->rank()) == variable("DEMI_TEST_DIES");
  const std::string moment = dies ? variable("DEMI_TEST_MOMENT") : "";
  torch::nn::Linear model(4, 1);
  TrainerOptions options;
  options.epochs = 3;
  options.loss = Loss::mse;
  options.group = group;
  options.checkpoints = {
      .folder = variable("DEMI_TEST_FOLDER"), .every = {.steps = 2}, .in_background = false};
  options.checkpoints.before_save = [&, saves = 0](checkpoint::Checkpoint&) mutable {
    if (moment == "save" && ++saves == 2) ::raise(SIGKILL);
  };
  Trainer trainer(network(model), options);
  trainer.add(std::make_shared<Dies>(moment));
  const at::Tensor x = torch::ones({16, 4});
  trainer.fit(data::TensorLoader(
      x, x.sum(1, true),
      {.batch_size = 2, .rank = group->rank(), .world_size = group->world_size()}));
}

// The others end with a message that names it, and what was saved can be read.
void expect_end(const std::string& moment, int dies, int64_t last_step, int count = 2) {
  const fs::path folder =
      fs::temp_directory_path() / ("demi-rank-dies-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  const distributed::ServedStore store = distributed::serve_store();
  std::vector<std::unique_ptr<Child>> children;
  for (int rank = 0; rank < count; ++rank)
    children.push_back(std::make_unique<Child>(
        "RankThatDies.DISABLED_Child",
        std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                           {"WORLD_SIZE", std::to_string(count)},
                                           {"DEMI_TEST_DIES", std::to_string(dies)},
                                           {"DEMI_TEST_MOMENT", moment},
                                           {"DEMI_TEST_FOLDER", (folder / "saved").string()},
                                           {"OMP_NUM_THREADS", "1"},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", std::to_string(store.port)},
                                           {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
        folder / std::to_string(rank)));
  Child& dead = *children[static_cast<std::size_t>(dies)];
  EXPECT_EQ(dead.wait(std::chrono::seconds(60)), 128 + SIGKILL) << dead.output();
  for (const auto& other : children) {
    if (other.get() == &dead) continue;
    const int code = other->wait(std::chrono::seconds(20));
    EXPECT_NE(code, -1) << "it hangs";
    EXPECT_NE(code, 0);
    EXPECT_THAT(other->output(), HasSubstr("rank " + std::to_string(dies))) << "exit code " << code;
  }
  const checkpoint::Checkpoint saved = checkpoint::load(folder / "saved");
  EXPECT_EQ(saved.numbers.at("progress").at("step"), static_cast<double>(last_step));
  fs::remove_all(folder);
}

// Rank 0 saves the last whole step when another one dies; if it dies itself, there is the last one
// that was saved.
TEST(RankThatDies, InForward) { expect_end("forward", 1, 3); }
TEST(RankThatDies, InForwardIfItIsTheFirst) { expect_end("forward", 0, 2); }
TEST(RankThatDies, InAllReduce) { expect_end("all-reduce", 1, 3); }
TEST(RankThatDies, InAllReduceIfItIsTheFirst) { expect_end("all-reduce", 0, 2); }
TEST(RankThatDies, InAllReduceOfFour) { expect_end("all-reduce", 2, 3, 4); }
TEST(RankThatDies, WhileItSaves) { expect_end("save", 0, 2); }

}  // namespace
}  // namespace demi::train
