// Ranks whose network delays, stalls or breaks: they end in time and say who is meant, or go on
// with the same bits. DEMI_LONG: every fault, on each link, in each moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/load_testing.h"
#include "demi/data/tensor_loader.h"
#include "demi/distributed/c10d.h"
#include "demi/distributed/children_testing.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/signs_testing.h"
#include "demi/train/names.h"
#include "demi/train/trainer.h"
#include "tests/network_proxy.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;

using demi::testing::Child;
using demi::testing::Link;
using demi::testing::NetworkProxy;
using demi::testing::waits_in_a_collective;
using ::testing::HasSubstr;
using Fault = NetworkProxy::Fault;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kStep = 4;  // in which the network fails
constexpr seconds kTimeout{4};
constexpr seconds kNoTimeout{120};  // longer than any loaded machine needs
constexpr seconds kStartTimeout{10};
constexpr seconds kLoading{5};  // until a program runs

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Comes to DEMI_TEST_MOMENT, says so, and waits there until the test has made the fault.
void pause_at(const std::string& moment) {
  static bool was_there = false;
  if (was_there || moment != variable("DEMI_TEST_MOMENT")) return;
  was_there = true;
  std::fprintf(stderr, "comes to %s\n", moment.c_str());
  const fs::path folder = variable("DEMI_TEST_FOLDER");  // it goes if the test ends before
  while (fs::exists(folder) && !fs::exists(folder / "go")) ::usleep(10'000);
}

class Moments : public Callback {
 public:
  Moments(int rank, std::vector<at::Tensor> parameters)
      : rank_(rank), parameters_(std::move(parameters)) {}
  void after_forward(const StepView& view, const at::Tensor& output) override {
    if (view.step != kStep || std::to_string(rank_) != variable("DEMI_TEST_AT")) return;
    pause_at("forward");
    // The others wait in the all-reduce of their buckets.
    output.register_hook([](const at::Tensor&) { pause_at("all-reduce"); });
  }
  void after_update(const StepView& view) override {
    double sum = 0;  // of all bits: equal weights have equal sums
    for (const at::Tensor& p : parameters_) {
      const at::Tensor bits = p.detach().contiguous().view(at::kInt).to(at::kDouble);
      sum += (bits * at::arange(1, bits.numel() + 1, at::kDouble).view(bits.sizes()))
                 .sum()
                 .item<double>();
    }
    std::fprintf(stderr, "step %lld has bits %.17g\n", static_cast<long long>(view.step), sum);
  }

 private:
  int rank_;
  std::vector<at::Tensor> parameters_;
};

// A rank of the tests below. They disable it, and run it as a process.
TEST(NetworkFaults, DISABLED_Child) {
  distributed::ProcessGroupOptions times;
  times.timeout = times.dead_after = seconds(std::stoi(variable("DEMI_TEST_TIMEOUT")));
  times.start_timeout = kStartTimeout;
  auto group = std::make_shared<distributed::ProcessGroup>(times);
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::Tanh(),
                              torch::nn::Linear(256, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  TrainerOptions options;
  options.epochs = std::stoi(variable("DEMI_TEST_EPOCHS"));
  options.loss = Loss::mse;
  options.group = group;
  options.distributed.bucket_bytes = options.distributed.first_bucket_bytes = 16 << 10;
  options.checkpoints = {.folder = fs::path(variable("DEMI_TEST_FOLDER")) / "saved",
                         .every = {.steps = 2},
                         .in_background = false};
  options.checkpoints.before_save = [saves = 0](checkpoint::Checkpoint&) mutable {
    if (++saves == 2) pause_at("save");
  };
  Trainer trainer(network(model), options);
  trainer.add(std::make_shared<Moments>(group->rank(), model->parameters()));
  const at::Tensor x = torch::sin(torch::arange(24 * 64).view({24, 64}));
  trainer.fit(data::TensorLoader(
      x, x.sum(1, true),
      {.batch_size = 2, .rank = group->rank(), .world_size = group->world_size()}));
  std::fprintf(stderr, "has trained\n");
}

// A job and its network.
class FaultyJob {
 public:
  FaultyJob(const std::string& name, int ranks, std::string moment, int at, int epochs = 100'000,
            Fault from_the_start = Fault::kNone, NetworkProxy::Links links = {},
            seconds timeout = kTimeout)
      : folder_(fs::temp_directory_path() /
                ("demi-network-" + std::to_string(::getpid()) + "-" + name)),
        moment_(std::move(moment)),
        at_(moment_ == "save" ? 0 : at) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    proxy_.set(from_the_start, std::move(links));
    since_ = std::chrono::steady_clock::now();
    for (int rank = 0; rank < ranks; ++rank)
      ranks_.push_back(std::make_unique<Child>(
          "NetworkFaults.DISABLED_Child",
          std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                             {"WORLD_SIZE", std::to_string(ranks)},
                                             {"DEMI_TEST_PROXY", std::to_string(proxy_.port())},
                                             {"DEMI_TEST_MOMENT", moment_},
                                             {"DEMI_TEST_AT", std::to_string(at_)},
                                             {"DEMI_TEST_EPOCHS", std::to_string(epochs)},
                                             {"DEMI_TEST_TIMEOUT", std::to_string(timeout.count())},
                                             {"DEMI_TEST_FOLDER", folder_.string()},
                                             {"GLOO_SOCKET_IFNAME", "lo"},
                                             {"OMP_NUM_THREADS", "1"},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", std::to_string(store_.port)},
                                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
          folder_ / std::to_string(rank)));
  }
  ~FaultyJob() { fs::remove_all(folder_); }
  FaultyJob(const FaultyJob&) = delete;
  FaultyJob& operator=(const FaultyJob&) = delete;

  // Waits for the moment, in which all others wait in a collective, and lets the ranks go on in a
  // network with the fault.
  void fail(Fault fault, const NetworkProxy::Links& links, milliseconds delay = {}) {
    ASSERT_TRUE(rank(at_).has_said("comes to " + moment_, seconds(60))) << rank(at_).output();
    const int pairs = std::ssize(ranks_) * (std::ssize(ranks_) - 1) / 2;
    ASSERT_GE(proxy_.count([](const Link& link) { return link.is_between_ranks(); }), pairs);
    ASSERT_GE(proxy_.count([](const Link& link) { return !link.is_between_ranks(); }),
              std::ssize(ranks_));
    for (int other = 0; other < std::ssize(ranks_); ++other)
      ASSERT_TRUE(other == at_ || waits_in_a_collective(*store_.store, other))
          << rank(other).output();
    proxy_.set(fault, links, delay);
    since_ = std::chrono::steady_clock::now();
    std::ofstream(folder_ / "go") << "go";
  }

  void recover() { proxy_.set(Fault::kNone, {}); }

  // `blamed`: the rank that the others name, if the fault is one of all its connections.
  void expect_all_end(int blamed = -1) {
    expect_errors(kTimeout, blamed < 0 ? "rank" : "rank " + std::to_string(blamed));
    expect_same_bits();
    EXPECT_GE(bits_of(0).size(), 3U);
    const checkpoint::Checkpoint saved = checkpoint::load(folder_ / "saved");
    EXPECT_GE(saved.numbers.at("progress").at("step"), 2);
  }

  // All ranks end before the first step.
  void expect_no_start(const std::string& named) { expect_errors(kLoading + kStartTimeout, named); }

  void expect_all_train() {
    for (int i = 0; i < std::ssize(ranks_); ++i)
      EXPECT_EQ(rank(i).wait(kNoTimeout), 0) << rank(i).output();
    expect_same_bits();
    EXPECT_EQ(bits_of(0).size(), 18U);
  }

  // By step.
  std::map<int, std::string> bits_of(int rank) const {
    std::map<int, std::string> all;
    std::istringstream lines(ranks_[static_cast<std::size_t>(rank)]->output());
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string a, has, b, bits;
      int step = 0;
      if (words >> a >> step >> has >> b >> bits && a == "step" && has == "has" && b == "bits")
        all[step] = bits;
    }
    return all;
  }

 private:
  Child& rank(int at) { return *ranks_[static_cast<std::size_t>(at)]; }

  void expect_errors(seconds timeout, const std::string& named) {
    const auto end = since_ + timeout + demi::under_load(seconds(5));
    for (int i = 0; i < std::ssize(ranks_); ++i) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
      const int code = rank(i).wait(std::max(left, milliseconds(0)));
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - since_;
      std::printf("%s: rank %d ended with %d after %.1f s: %s\n", folder_.filename().c_str(), i,
                  code, taken.count(), error_of(i).c_str());
      EXPECT_NE(code, -1) << "rank " << i << " hangs; " << rank(i).output();
      EXPECT_NE(code, 0) << rank(i).output();
      EXPECT_THAT(error_of(i), HasSubstr(named)) << rank(i).output();
    }
  }

  // The value seen in the library's first exception.
  std::string error_of(int at) {
    const std::string output = rank(at).output();
    const std::size_t begin = output.find("; seen: ", output.find("[distributed."));
    return begin == std::string::npos ? "" : output.substr(begin, output.find('\n', begin) - begin);
  }

  // In every step that two ranks have made.
  void expect_same_bits() {
    const auto first = bits_of(0);
    for (int other = 1; other < std::ssize(ranks_); ++other)
      for (const auto& [step, bits] : bits_of(other)) {
        if (!first.contains(step)) continue;
        EXPECT_EQ(bits, first.at(step)) << "step " << step;
      }
  }

  fs::path folder_;
  std::string moment_;
  int at_;
  distributed::ServedStore store_ = distributed::serve_store();
  NetworkProxy proxy_;
  std::vector<std::unique_ptr<Child>> ranks_;
  std::chrono::steady_clock::time_point since_;
};

const NetworkProxy::Links kPeers = [](const Link& link) { return link.is_between_ranks(); };
const NetworkProxy::Links kAll = [](const Link&) { return true; };
NetworkProxy::Links store_of(int rank) {
  return [rank](const Link& link) { return link.from == rank && !link.is_between_ranks(); };
}
NetworkProxy::Links all_of(int rank) {
  return [rank](const Link& link) { return link.is_of(rank); };
}

// A delay below the timeout changes no bit, nor does a stall that is over before it.
TEST(NetworkFaults, ADelayChangesNothing) {
  const auto job = [](const char* name) {
    return FaultyJob(name, 2, "all-reduce", 1, 3, Fault::kNone, {}, kNoTimeout);
  };
  FaultyJob delayed = job("delayed"), quick = job("quick"), stalled = job("stalled");
  delayed.fail(Fault::kDelay, kAll, milliseconds(30));
  stalled.fail(Fault::kStall, kAll);
  quick.fail(Fault::kNone, kAll);
  std::this_thread::sleep_for(seconds(1));  // how long the stall is
  stalled.recover();
  delayed.expect_all_train();
  stalled.expect_all_train();
  quick.expect_all_train();
  EXPECT_EQ(delayed.bits_of(0), quick.bits_of(0));
  EXPECT_EQ(stalled.bits_of(0), quick.bits_of(0));
}

// Side by side, since they wait most of the time. Each fails as soon as it comes to its moment: the
// ranks that wait for that have their timeout already.
TEST(NetworkFaults, RanksEndInTime) {
  FaultyJob forward_stall("forward-stall", 2, "forward", 0);
  FaultyJob reduce_cut("reduce-cut", 2, "all-reduce", 1);
  FaultyJob save_isolated("save-isolated", 2, "save", 0);
  FaultyJob reduce_store("reduce-store", 2, "all-reduce", 1);
  {
    const std::jthread threads[] = {
        std::jthread([&] { forward_stall.fail(Fault::kStall, kPeers); }),
        std::jthread([&] { reduce_cut.fail(Fault::kCut, kPeers); }),
        std::jthread([&] { save_isolated.fail(Fault::kStall, all_of(1)); }),
        std::jthread([&] { reduce_store.fail(Fault::kStall, store_of(1)); })};
  }
  forward_stall.expect_all_end();
  reduce_cut.expect_all_end();
  save_isolated.expect_all_end(1);
  reduce_store.expect_all_end(1);
}

TEST(NetworkFaults, EveryFaultInEveryMoment) {
  if (variable("DEMI_LONG").empty()) GTEST_SKIP() << "minutes; ctest -L long runs it";
  const std::map<std::string, NetworkProxy::Links> places{
      {"peers", kPeers},
      {"store-0", store_of(0)},
      {"store-1", store_of(1)},
      {"store-2", store_of(2)},
      {"all-0", all_of(0)},
      {"all-1", all_of(1)},
      {"everything", kAll},
      {"1-2", [](const Link& link) { return link.is_between_ranks() && !link.is_of(0); }},
      {"0-1", [](const Link& link) { return link.is_between_ranks() && !link.is_of(2); }}};
  for (const char* moment : {"forward", "all-reduce", "save"})
    for (const auto& [fault_name, fault] :
         std::map<std::string, Fault>{{"stall", Fault::kStall}, {"cut", Fault::kCut}})
      for (const auto& [place, links] : places) {
        SCOPED_TRACE(std::string(moment) + " " + fault_name + " " + place);
        FaultyJob job(std::string(moment) + "-" + fault_name + "-" + place, 3, moment, 1);
        job.fail(fault, links);
        const bool is_of_one = place == "all-1" || place == "store-1";
        job.expect_all_end(is_of_one ? 1 : -1);
      }
}

// Also where the ranks meet: in the store, and when Gloo connects them.
TEST(NetworkFaults, FromTheStart) {
  if (variable("DEMI_LONG").empty()) GTEST_SKIP() << "a minute; ctest -L long runs it";
  for (const Fault fault : {Fault::kStall, Fault::kCut}) {
    FaultyJob peers("start-peers", 2, "forward", 1, 1, fault, kPeers);
    FaultyJob store("start-store", 2, "forward", 1, 1, fault, store_of(1));
    FaultyJob all("start-all", 2, "forward", 1, 1, fault, kAll);
    peers.expect_no_start("");
    store.expect_no_start("");
    all.expect_no_start("");
  }
}

}  // namespace
}  // namespace demi::train
