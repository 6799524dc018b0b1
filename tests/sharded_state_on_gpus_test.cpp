// Sharded optimizer state of parameters on GPUs, without one: the ranks are threads, each one's
// parameters lie on a device that has the host's memory (second_device.h), the CUDA kernels' own
// source updates them (emulated_device_testing.h), and a backend in NCCL's place moves their bytes.
// As NCCL it says that a collective has ended once it has begun, and moves the bytes later.
#include <ATen/core/ivalue.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "demi/distributed/nccl.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/distributed/sharded_optimizer_state.h"
#include "demi/optim/clip.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/emulated_device_testing.h"
#include "tests/second_device.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using optim::testing::EmulatedDevice;
using optim::testing::Kind;
using optim::testing::kKinds;
using second_device::kDevice;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The tensors of one rank in a collective.
struct Part {
  at::Tensor own, all;  // all: undefined for a broadcast
  int root = 0;
};

/// A collective of all ranks: moved when the last one has come.
struct Move {
  std::map<int, Part> parts;  // by rank
  std::atomic<bool> over = false;

  void run() {
    for (auto& [to, part] : parts) {
      if (!part.all.defined()) {
        if (to != part.root) copy(part.own, 0, parts.at(part.root).own);
        continue;
      }
      for (auto& [from, other] : parts) {
        const auto place = static_cast<std::size_t>(from) * other.own.nbytes();
        copy(part.all, place, other.own);
      }
    }
    over = true;
  }
  static void copy(const at::Tensor& to, std::size_t place, const at::Tensor& from) {
    std::memmove(static_cast<std::byte*>(to.mutable_data_ptr()) + place, from.const_data_ptr(),
                 from.nbytes());
  }
};

/// The link among the devices of all ranks: moves one collective after the other, each some time
/// after its last rank has come.
class Link {
 public:
  explicit Link(int ranks) : ranks_(ranks), thread_([this] { work(); }) {}
  ~Link() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::shared_ptr<Move> bring(std::int64_t number, int rank, Part part) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Move>& move = moves_[number];
    if (!move) move = std::make_shared<Move>();
    ++(part.all.defined() ? gathers : broadcasts);
    move->parts[rank] = std::move(part);
    if (static_cast<int>(move->parts.size()) == ranks_) {
      ready_.push(move);
      changed_.notify_all();
    }
    return move;
  }

  std::atomic<int> gathers = 0, broadcasts = 0;  // of all ranks

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !ready_.empty(); });
      if (ready_.empty()) return;
      const std::shared_ptr<Move> move = ready_.front();
      ready_.pop();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(300));  // the device's time
      move->run();
      lock.lock();
    }
  }

  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, std::shared_ptr<Move>> moves_;  // by number
  std::queue<std::shared_ptr<Move>> ready_;
  bool ends_ = false;
  std::thread thread_;
};

Link* link = nullptr;  // of the test that runs

class Work final : public c10d::Work {
 public:
  explicit Work(std::shared_ptr<Move> move) : move_(std::move(move)) {}
  bool isCompleted() override { return move_->over; }
  void synchronize() override { EXPECT_TRUE(move_->over) << "before the device's end"; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    future->markCompleted();
    return future;
  }

 private:
  std::shared_ptr<Move> move_;
};

class Backend final : public c10d::Backend {
 public:
  using c10d::Backend::Backend;
  const std::string getBackendName() const override { return "link"; }
  void eagerConnectSingleDevice(at::Device device) override { EXPECT_EQ(device, kDevice); }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return begin({tensors.at(0), {}, static_cast<int>(options.rootRank)});
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& all, at::Tensor& own,
                                                 const c10d::AllgatherOptions&) override {
    EXPECT_EQ(all.device(), kDevice);
    return begin({own, all, 0});
  }
  void shutdown() override {}

 private:
  c10::intrusive_ptr<c10d::Work> begin(Part part) {
    EXPECT_EQ(part.own.device(), kDevice);
    return c10::make_intrusive<Work>(link->bring(number_++, getRank(), std::move(part)));
  }
  std::int64_t number_ = 0;
};

c10d::Backend* make(c10d::Store&, const char*, int rank, int size, std::int64_t) {
  return c10::make_intrusive<Backend>(rank, size).release();
}

/// While it lives, tensors of second_device go over a link of its own among `ranks`.
class LinkedDevices {
 public:
  explicit LinkedDevices(int ranks) : link_(ranks) {
    link = &link_;
    stand_in_for_nccl(&nccl_);
  }
  ~LinkedDevices() {
    stand_in_for_nccl(nullptr);
    link = nullptr;
  }
  LinkedDevices(const LinkedDevices&) = delete;
  LinkedDevices& operator=(const LinkedDevices&) = delete;
  const Link& operator*() const { return link_; }

 private:
  Link link_;
  Nccl nccl_{.make = &make, .why = "", .device = kDevice.type()};
};

at::Tensor on_device(const at::Tensor& tensor) {
  return tensor.detach().to(kDevice).requires_grad_();
}

/// Parameters of several layouts, among them one with gaps and an empty one.
std::vector<at::Tensor> parameters_of(at::ScalarType dtype) {
  using optim::testing::parameter;
  std::vector<at::Tensor> all;
  for (const auto& host :
       {parameter({7, 5}, dtype, 1), parameter({3}, dtype, 2), parameter({2, 3, 4, 2}, dtype, 3),
        parameter({1}, at::kDouble, 4), parameter({0}, dtype, 5), parameter({40}, dtype, 6),
        parameter({6, 6}, dtype, 7), parameter({9}, dtype, 8)})
    all.push_back(on_device(host));
  const at::NoGradGuard no_grad;
  all[2] = on_device(all[2].detach().contiguous(at::MemoryFormat::ChannelsLast));
  all[6] = all[6].detach().slice(1, 0, 6, 2).requires_grad_();
  return all;
}

struct DeviceRun {
  std::vector<at::Tensor> parameters;
  std::map<std::string, at::Tensor> state;  // of rank 0, whole
  std::vector<bool> skipped;
};

/// Five steps with scaler and clipping; the third has an Inf, the last parameter a gradient in odd
/// ones. All ranks have the same gradients. `group`: null without sharing.
DeviceRun five_steps(const Kind& kind, at::ScalarType dtype, const optim::Backend& backend,
                     ProcessGroup* group) {
  const std::vector<at::Tensor> parameters = parameters_of(dtype);
  const auto optimizer = kind.make(parameters, {}, backend);
  std::unique_ptr<ShardedOptimizerState> shards;
  if (group)  // several parameters in a piece, and every one cut
    shards = std::make_unique<ShardedOptimizerState>(*optimizer, *group,
                                                     ShardOptions{.bucket_bytes = 100});
  GradScaler scaler({.init_scale = 64, .growth_interval = 2});
  scaler.scale(at::ones({}, kDevice));
  DeviceRun run;
  for (int step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const bool is_double = parameters[i].scalar_type() == at::kDouble;
      at::Tensor gradient =
          (optim::testing::gradient(parameters[i], at::kDouble, step) * scaler.get_scale())
              .to(is_double ? at::kDouble : at::kBFloat16);
      if (step == 2 && i == 1) gradient[0] = std::numeric_limits<float>::infinity();
      parameters[i].mutable_grad() = i == 7 && step % 2 == 0 ? at::Tensor() : gradient.to(kDevice);
    }
    scaler.unscale_(*optimizer);
    optim::clip_grad_norm_(parameters, 2);
    run.skipped.push_back(scaler.step(*optimizer).skipped());
    scaler.update();
  }
  if (shards) shards->consolidate();
  if (!group || group->rank() == 0)
    for (const auto& [name, tensor] : optimizer->state_tensors())
      run.state[name] = tensor.detach().cpu().clone();
  for (const at::Tensor& parameter : parameters) run.parameters.push_back(parameter.detach().cpu());
  return run;
}

void expect_same(const DeviceRun& run, const DeviceRun& expected) {
  EXPECT_EQ(run.skipped, expected.skipped);
  ASSERT_EQ(run.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < expected.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(run.parameters[i], expected.parameters[i])) << "parameter " << i;
}

void expect_same_state(const std::map<std::string, at::Tensor>& state,
                       const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(state.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(state.contains(name)) << name;
    EXPECT_EQ(state.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(state.at(name), tensor)) << name;
  }
}

class ShardedOnGpus : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ShardedOptimizerState, ShardedOnGpus, ::testing::Values(2, 3));

TEST_P(ShardedOnGpus, StepsHaveTheBitsOfOneThatSharesNothing) {
  const int n = GetParam();
  const EmulatedDevice device(kDevice.type());
  for (const Kind& kind : kKinds) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::string(kind.name) + " " + c10::toString(dtype));
      const std::int64_t before = EmulatedDevice::launches();
      const DeviceRun alone = five_steps(kind, dtype, device, nullptr);
      EXPECT_EQ(alone.skipped, (std::vector<bool>{false, false, true, false, false}));
      EXPECT_GT(EmulatedDevice::launches(), before);
      const LinkedDevices linked(n);
      std::vector<DeviceRun> runs(static_cast<std::size_t>(n));
      const auto errors = on_ranks(n, [&](ProcessGroup& group) {
        runs[static_cast<std::size_t>(group.rank())] = five_steps(kind, dtype, device, &group);
      });
      EXPECT_THAT(errors, Each(IsEmpty()));
      for (const DeviceRun& run : runs) expect_same(run, alone);
      expect_same_state(runs.front().state, alone.state);
      EXPECT_GT((*linked).gathers, 0);
    }
  }
}

// 4 MiB hold all of it: one all-gather a step, whatever the number of ranks.
TEST_P(ShardedOnGpus, OneAllGatherAPiece) {
  const int n = GetParam();
  const LinkedDevices linked(n);
  const EmulatedDevice device(kDevice.type());
  const auto errors = on_ranks(n, [&](ProcessGroup& group) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 6; ++i)
      parameters.push_back(on_device(optim::testing::parameter({50}, at::kFloat, i)));
    const auto optimizer = kKinds[2].make(parameters, {}, device);
    ShardedOptimizerState shards(*optimizer, group);
    for (int step = 0; step < 3; ++step) {
      for (const auto& parameter : parameters)
        parameter.mutable_grad() =
            optim::testing::gradient(parameter, at::kFloat, step).to(kDevice);
      optimizer->step();
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_EQ((*linked).gathers, 3 * n);
  EXPECT_EQ((*linked).broadcasts, 0);
}

// One rank has nearly all bytes: an all-gather would move as many of padding.
TEST(ShardedOptimizerState, AGiantParameterIsBroadcast) {
  const LinkedDevices linked(3);
  const EmulatedDevice device(kDevice.type());
  const auto parameters_of_rank = [] {
    return std::vector{on_device(optim::testing::parameter({300}, at::kFloat, 1)),
                       on_device(optim::testing::parameter({4}, at::kFloat, 2))};
  };
  const auto step = [](optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters)
      parameter.mutable_grad() = optim::testing::gradient(parameter, at::kFloat, 1).to(kDevice);
    optimizer.step();
  };
  const auto expected = parameters_of_rank();
  step(*kKinds[2].make(expected, {}, device), expected);
  const auto errors = on_ranks(3, [&](ProcessGroup& group) {
    const auto parameters = parameters_of_rank();
    const auto optimizer = kKinds[2].make(parameters, {}, device);
    ShardedOptimizerState shards(*optimizer, group);
    step(*optimizer, parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(at::equal(parameters[i].detach().cpu(), expected[i].detach().cpu())) << i;
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_EQ((*linked).gathers, 0);
  EXPECT_EQ((*linked).broadcasts, 3 * 2);
}

// What cannot be

std::vector<std::string> errors_with(
    const std::function<std::vector<at::Tensor>(int)>& parameters) {
  return on_ranks(2, [&](ProcessGroup& group) {
    optim::SGD optimizer(parameters(group.rank()), optim::SGDOptions(0.1));
    ShardedOptimizerState shards(optimizer, group);
  });
}

TEST(ShardedOptimizerState, AllParametersOfARankAreOnOneDevice) {
  const LinkedDevices linked(2);
  const auto on_both = [](int) {
    return std::vector{torch::zeros({2}).requires_grad_(), torch::zeros({3}).requires_grad_(),
                       on_device(torch::zeros({4}))};
  };
  EXPECT_THAT(errors_with(on_both),
              Each(AllOf(HasSubstr("the parameters of a rank are on several devices"),
                         HasSubstr("parameter 0 on cpu, parameter 2 on xpu:0"))));
}

TEST(ShardedOptimizerState, RanksHaveTheSameKindOfDevice) {
  const LinkedDevices linked(2);
  const auto one_each = [](int rank) {
    const at::Tensor parameter = torch::zeros({4});
    return std::vector{rank == 0 ? on_device(parameter) : parameter.requires_grad_()};
  };
  EXPECT_THAT(errors_with(one_each),
              Each(AllOf(HasSubstr("parameter 0 of group 0: cpu, fp32 (4), strides (1) on rank 1"),
                         HasSubstr("parameter 0 of group 0: xpu, fp32"))));
}

TEST(ShardedOptimizerState, ADeviceThatNobodySendsFromIsNamed) {
  EXPECT_THAT(errors_with([](int) { return std::vector{on_device(torch::zeros({4}))}; }),
              Each(AllOf(HasSubstr("a parameter cannot be sent to the other ranks"),
                         HasSubstr("parameter 0 on xpu:0"))));
}

}  // namespace
}  // namespace demi::distributed
