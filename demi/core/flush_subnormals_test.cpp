#include "demi/core/flush_subnormals.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <limits>
#include <vector>

namespace demi {
namespace {

// The smallest normal number halved, and that doubled again: 0 where results, or operands, flush.
bool flushes() {
  volatile float least = std::numeric_limits<float>::min();
  const volatile float half = least * 0.5F;
  return half * 2.0F == 0.0F;
}

bool flushes_operands() {
  const volatile float subnormal = std::numeric_limits<float>::denorm_min();
  return subnormal * 16777216.0F * 16777216.0F == 0.0F;
}

// Whether each of the threads that share a loop flushes.
std::vector<bool> of_threads(int threads) {
  std::vector<char> seen(static_cast<std::size_t>(threads));
#pragma omp parallel num_threads(threads)
  seen[static_cast<std::size_t>(omp_get_thread_num())] = flushes();
  return {seen.begin(), seen.end()};
}

class WithThreads : public testing::Test {
 public:
  WithThreads() : before_(omp_get_max_threads()) { omp_set_num_threads(3); }
  ~WithThreads() override { omp_set_num_threads(before_); }

 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "TSan does not see that OpenMP waits for its threads";
#endif
  }

 private:
  int before_;
};

using FlushSubnormalsTest = WithThreads;

TEST_F(FlushSubnormalsTest, HoldsInEveryThreadUntilTheEndOfTheScope) {
#if !defined(__x86_64__) && !defined(__aarch64__)
  GTEST_SKIP() << "this processor's control word is not known";
#endif
  ASSERT_FALSE(flushes());
  {
    const FlushSubnormals flush;
    EXPECT_TRUE(flushes());
    EXPECT_TRUE(flushes_operands());
    EXPECT_EQ(of_threads(3), std::vector<bool>(3, true));
  }
  EXPECT_FALSE(flushes());
  EXPECT_FALSE(flushes_operands());
  EXPECT_EQ(of_threads(3), std::vector<bool>(3, false));
}

TEST_F(FlushSubnormalsTest, OffChangesNothing) {
  const FlushSubnormals flush(false);
  EXPECT_FALSE(flushes());
  EXPECT_EQ(of_threads(3), std::vector<bool>(3, false));
}

TEST_F(FlushSubnormalsTest, AnInnerOneLeavesTheOuterOneOn) {
  const FlushSubnormals outer;
  const bool on = flushes();
  { const FlushSubnormals inner; }
  EXPECT_EQ(flushes(), on);
  EXPECT_EQ(of_threads(3), std::vector<bool>(3, on));
}

TEST_F(FlushSubnormalsTest, ThreadsThatWereMadeMeanwhileComeBackToo) {
  {
    const FlushSubnormals flush;
    omp_set_num_threads(5);
    of_threads(5);
  }
  EXPECT_EQ(of_threads(5), std::vector<bool>(5, false));
}

}  // namespace
}  // namespace demi
