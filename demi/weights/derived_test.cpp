#include "demi/weights/derived.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "demi/weights/mutation_hook.h"
#include "demi/weights/streams_testing.h"
#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

class Derived : public testing::Weights {
 protected:
  /// The parameter's double and its half.
  std::vector<at::Tensor> both(const at::Tensor& p, std::uint64_t key = 1) {
    return derived(p, key, [&] {
      ++made;
      return std::vector<at::Tensor>{p * 2, p / 2, at::Tensor()};
    });
  }
  int made = 0;
};

TEST_F(Derived, IsMadeOnceForEachKeyAndWrite) {
  const at::Tensor p = owned_parameter();
  const at::Tensor first = both(p)[0];
  EXPECT_TRUE(both(p)[0].is_same(first));
  EXPECT_FALSE(both(p, 2)[0].is_same(first));
  EXPECT_EQ(made, 2);
  EXPECT_EQ(stats().copies, 2);
  EXPECT_EQ(stats().bytes, 2 * 2 * 16 * 4) << "two keys, two tensors of 16 numbers";
  EXPECT_FALSE(first.requires_grad());
  p.data().fill_(3);
  EXPECT_EQ(both(p)[0][0][0].item<float>(), 6);
  EXPECT_EQ(made, 3);
  EXPECT_EQ(stats().copies, 2) << "in the place of the old one";
  mark_dirty(p);
  both(p);
  EXPECT_EQ(made, 4);
  drop();
  EXPECT_EQ(stats().bytes, 0);
}

TEST_F(Derived, IsMadeAnewForAnotherViewOfTheSameMemory) {
  const at::Tensor p = owned_parameter();
  p.data().copy_(at::arange(16).view({4, 4}));
  both(p);
  p.set_data(p.detach().t());
  EXPECT_TRUE(both(p)[0].equal(2 * p.detach()));
  EXPECT_EQ(made, 2);
  p.set_data(p.detach().t().view({2, 8}));
  EXPECT_EQ(both(p)[0].sizes(), p.sizes());
}

TEST_F(Derived, IsNotKeptOfAParameterThatIsNotOwnedAndInOtherModes) {
  const at::Tensor p = parameter(), q = owned_parameter();
  both(p);
  both(p);
  EXPECT_EQ(made, 2);
  set_mode(Mode::region);
  both(q);
  both(q);
  EXPECT_EQ(made, 4);
  EXPECT_EQ(stats().copies, 0);
}

TEST_F(Derived, AWriteWhileItIsMadeCounts) {
  const at::Tensor p = owned_parameter();
  derived(p, 1, [&] {
    const at::Tensor early = p.detach().clone();
    p.data().fill_(5);
    return std::vector<at::Tensor>{early};
  });
  EXPECT_EQ(both(p)[0][0][0].item<float>(), 10);
}

TEST_F(Derived, AnExceptionLeavesNothing) {
  const at::Tensor p = owned_parameter();
  EXPECT_THROW(
      derived(p, 1, []() -> std::vector<at::Tensor> { throw std::runtime_error("no memory"); }),
      std::runtime_error);
  EXPECT_EQ(stats().copies, 0);
  EXPECT_EQ(both(p)[1].sizes(), p.sizes());
}

TEST_F(Derived, ThreadsMayAskAtOnce) {
  const at::Tensor p = owned_parameter({64, 64});
  std::vector<std::thread> threads;
  std::vector<at::Tensor> seen(4);
  for (std::size_t i = 0; i < seen.size(); ++i)
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 20; ++turn)
        seen[i] = derived(p, static_cast<std::uint64_t>(turn),
                          [&] { return std::vector<at::Tensor>{p.detach() * 2}; })[0];
    });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& one : seen) EXPECT_TRUE(one.equal(p.detach() * 2));
  EXPECT_EQ(stats().copies, 20);
}

TEST_F(Derived, AnotherStreamWaitsOnceAndHoldsAllOfTheMemory) {
  testing::FakeStreams streams;
  const at::Tensor p = owned_parameter();
  streams.use(1);
  both(p);
  streams.use(2);
  const auto tensors = both(p);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(streams.waits().size(), 1U);
  for (const at::Tensor& one : {tensors[0], tensors[1]})
    EXPECT_EQ(streams.users_of(one.storage().data_ptr().get()), std::set<c10::StreamId>{2});
  both(p);
  EXPECT_TRUE(streams.waits().empty());
  drop();
}

// A replay computes what it records anew, of the parameter as it is then.
TEST_F(Derived, ACapturedStreamKeepsNothing) {
  if (!hook_is_free()) GTEST_SKIP() << "LibTorch before 2.15 does not know that it captures";
  testing::FakeStreams streams;
  const at::Tensor p = owned_parameter();
  streams.use(1);
  both(p);
  streams.capture(1);
  both(p);
  both(p);
  EXPECT_EQ(made, 3);
  streams.capture(-1);
  drop();
}

}  // namespace
}  // namespace demi::weights
