// Tensors of GPUs on a machine without one: tensors that say they are on a GPU and hold nothing,
// and a backend of c10d that does nothing until the test says so. It says, as LibTorch's NCCL
// backend, that a collective has ended once it has begun.
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/wait_until_testing.h"
#include "demi/distributed/nccl.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using demi::testing::short_timeouts;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The behaviour of a rank's backend, and the calls that it got.
struct Script {
  std::atomic<bool> over = false, fails = false, never_connects = false, never_made = false;
  std::atomic<int> connected = 0, began = 0, asked = 0, synchronised = 0, aborted = 0,
                   shut_down = 0, gone = 0;
  std::atomic<std::int64_t> timeout_ms = 0;
};

std::atomic<bool> begins_slowly = false;
std::atomic<int> beginning = 0, most_at_once = 0;

std::array<std::shared_ptr<Script>, 2> scripts;

class Work final : public c10d::Work {
 public:
  explicit Work(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  bool isCompleted() override {
    ++script_->asked;
    if (script_->fails && !exception())
      finish(std::make_exception_ptr(std::runtime_error("the link is down")));
    return script_->fails || script_->over;
  }
  void synchronize() override { ++script_->synchronised; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    future->markCompleted();
    return future;
  }

 private:
  std::shared_ptr<Script> script_;
};

class Backend final : public c10d::Backend {
 public:
  Backend(int rank, int size)
      : c10d::Backend(rank, size), script_(scripts[static_cast<size_t>(rank)]) {}
  ~Backend() override { ++script_->gone; }
  const std::string getBackendName() const override { return "scripted"; }
  void eagerConnectSingleDevice(at::Device) override {
    ++script_->connected;
    while (script_->never_connects) std::this_thread::sleep_for(milliseconds(1));
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return begin();
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override {
    return begin();
  }
  void abort() override { ++script_->aborted; }
  void shutdown() override { ++script_->shut_down; }

 private:
  c10::intrusive_ptr<c10d::Work> begin() {
    ++script_->began;
    if (begins_slowly) {
      most_at_once = std::max<int>(most_at_once, ++beginning);
      std::this_thread::sleep_for(milliseconds(50));  // in which no other may begin
      --beginning;
    }
    return c10::make_intrusive<Work>(script_);
  }
  std::shared_ptr<Script> script_;
};

c10d::Backend* make(c10d::Store&, const char*, int rank, int size, std::int64_t timeout_ms) {
  Script& script = *scripts[static_cast<size_t>(rank)];
  script.timeout_ms = timeout_ms;
  if (script.never_made) throw std::runtime_error("no GPUs found");
  return c10::make_intrusive<Backend>(rank, size).release();
}

class GroupWithGpus : public ::testing::Test {
 protected:
  GroupWithGpus() {
    for (auto& script : scripts) script = std::make_shared<Script>();
    stand_in_for_nccl(&nccl_);
  }
  ~GroupWithGpus() override { stand_in_for_nccl(nullptr); }

 private:
  Nccl nccl_{&make, ""};
};

at::Tensor on_gpu(int index = 0) {
  return at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>(),
      c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
}

ProcessGroupOptions with_timeout(milliseconds timeout) {
  ProcessGroupOptions options = short_timeouts();
  options.timeout = timeout;
  return options;
}

TEST_F(GroupWithGpus, WaitEndsWithTheDevice) {
  const auto errors = on_ranks(1, [](ProcessGroup& group) {
    auto pending = group.start_all_reduce(on_gpu());
    std::atomic<bool> said = false;
    std::thread device([&, before = scripts[0]->asked.load()] {
      EXPECT_TRUE(wait_until([&] { return scripts[0]->asked > before; })) << "nobody waits";
      said = true;
      scripts[0]->over = true;
    });
    pending.wait();
    EXPECT_TRUE(said);
    EXPECT_EQ(scripts[0]->synchronised, 1);
    group.broadcast(on_gpu());
    EXPECT_EQ(scripts[0]->began, 2);
    device.join();
  });
  EXPECT_THAT(errors, ElementsAre(""));
  EXPECT_EQ(scripts[0]->connected, 1);
  EXPECT_EQ(scripts[0]->aborted, 0);
  EXPECT_EQ(scripts[0]->shut_down, 1);
  EXPECT_GT(scripts[0]->timeout_ms, short_timeouts().timeout.count());  // names no rank
}

TEST_F(GroupWithGpus, TensorsOfTheCpuNeedNoGpu) {
  const auto errors = on_ranks(2, [](ProcessGroup& group) {
    const auto tensor = torch::ones({3});
    group.all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(torch::full({3}, 2.0F)));
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(scripts[0]->connected, 0);
}

TEST_F(GroupWithGpus, ARankThatLeavesIsNamed) {
  const auto errors = on_ranks(
      2,
      [](ProcessGroup& group) {
        auto pending = group.start_all_reduce(on_gpu());
        if (group.rank() == 1) throw std::runtime_error("out of memory");
        pending.wait();
      },
      with_timeout(std::chrono::hours(1)));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the group"));
  EXPECT_EQ(scripts[0]->aborted, 1);
  EXPECT_EQ(scripts[0]->synchronised, 0);
  EXPECT_EQ(scripts[0]->shut_down, 0);
}

TEST_F(GroupWithGpus, ATimeoutIsOursAndNotTheWatchdogs) {
  const auto errors = on_ranks(
      1, [](ProcessGroup& group) { group.all_reduce(on_gpu()); }, with_timeout(milliseconds(100)));
  EXPECT_THAT(errors, ElementsAre(HasSubstr("no end after 0.1 s")));
  EXPECT_EQ(scripts[0]->aborted, 1);
}

TEST_F(GroupWithGpus, AnErrorOfTheDeviceIsSaid) {
  scripts[0]->fails = true;
  const auto errors = on_ranks(1, [](ProcessGroup& group) { group.all_reduce(on_gpu()); });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("the link is down")));
  EXPECT_EQ(scripts[0]->aborted, 1);
}

TEST_F(GroupWithGpus, ARankHasOneGpu) {
  scripts[0]->over = true;
  const auto errors = on_ranks(1, [](ProcessGroup& group) {
    group.all_reduce(on_gpu(0));
    EXPECT_THROW(group.broadcast(on_gpu(1)), UsageError);
    group.all_reduce(on_gpu(0));
    group.all_reduce(on_gpu(1));
  });
  EXPECT_THAT(errors, ElementsAre(AllOf(HasSubstr("on several GPUs"), HasSubstr("cuda:1"),
                                        HasSubstr("cuda:0, as the first one"))));
  EXPECT_EQ(scripts[0]->began, 2);
}

TEST_F(GroupWithGpus, WithoutAGpuTheGroupServesTheCpuOn) {
  scripts[0]->never_made = true;
  const auto errors = on_ranks(1, [](ProcessGroup& group) {
    try {
      group.all_reduce(on_gpu());
      ADD_FAILURE();
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("NCCL does not start"), HasSubstr("no GPUs found")));
    }
    group.all_reduce(torch::ones({3}));
  });
  EXPECT_THAT(errors, ElementsAre(""));
}

TEST_F(GroupWithGpus, ARankThatLeavesBeforeItConnectsIsNamed) {
  scripts[0]->never_connects = true;
  const auto errors = on_ranks(
      2,
      [](ProcessGroup& group) {
        if (group.rank() == 0) group.all_reduce(on_gpu());
      },
      with_timeout(std::chrono::hours(1)));
  scripts[0]->never_connects = false;
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the group"));
  EXPECT_EQ(scripts[0]->began, 0);
}

TEST_F(GroupWithGpus, ConnectingHasItsTimeout) {
  scripts[0]->never_connects = true;
  const auto errors = on_ranks(
      1, [](ProcessGroup& group) { group.all_reduce(on_gpu()); }, with_timeout(milliseconds(100)));
  scripts[0]->never_connects = false;
  EXPECT_THAT(errors, ElementsAre(HasSubstr("no end after 0.1 s")));
  // The thread that was left to connect uses this file's backend until it has.
  EXPECT_TRUE(wait_until([] { return scripts[0]->gone > 0; }));
}

// The lock under which collectives begin is not held meanwhile: other groups go on.
TEST_F(GroupWithGpus, OthersBeginWhileItConnects) {
  scripts[0]->never_connects = true;
  std::thread other([] {
    while (scripts[0]->connected == 0) std::this_thread::sleep_for(milliseconds(1));
    const auto errors = on_ranks(2, [](ProcessGroup& group) { group.barrier(); });
    EXPECT_THAT(errors, Each(""));
    scripts[0]->over = true;
    scripts[0]->never_connects = false;
  });
  const auto errors = on_ranks(1, [](ProcessGroup& group) { group.all_reduce(on_gpu()); });
  other.join();
  EXPECT_THAT(errors, ElementsAre(""));
}

// Collectives of all groups and kinds begin one at a time: c10d's flight recorder has no lock of
// its own.
TEST_F(GroupWithGpus, OneCollectiveBeginsAtATime) {
  for (const auto& script : scripts) script->over = true;
  ProcessGroupOptions options = short_timeouts();
  options.compare_calls = false;  // the ranks' calls differ, and no device sees them
  const auto errors = on_ranks(
      2,
      [](ProcessGroup& group) {
        group.all_reduce(on_gpu());
        group.barrier();
        begins_slowly = true;
        if (group.rank() == 0) group.all_reduce(on_gpu());
        if (group.rank() == 1) group.broadcast(on_gpu());
        group.barrier();
      },
      options);
  begins_slowly = false;
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(scripts[0]->began + scripts[1]->began, 4);
  EXPECT_EQ(most_at_once, 1);
}

TEST(GroupWithoutNccl, SaysWhy) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "here is a GPU";
  const auto errors = on_ranks(2, [](ProcessGroup& group) { group.all_reduce(on_gpu()); });
  if (load_nccl().make)
    EXPECT_THAT(errors, Each(HasSubstr("NCCL does not start")));  // LibTorch's own refusal
  else
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("there is no NCCL for tensors of GPUs"),
                                   HasSubstr(load_nccl().why), HasSubstr("-DDEMI_NCCL=ON"))));
}

}  // namespace
}  // namespace demi::distributed
