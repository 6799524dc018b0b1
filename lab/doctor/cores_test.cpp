#include "lab/doctor/cores.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

namespace demi::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Cores, UsableAreThoseThatAffinityAndQuotaLeave) {
  Cores cores{.threads = 4, .online = 8, .allowed = 4};
  EXPECT_EQ(cores.usable(), 4);
  cores.quota = 2.5;
  EXPECT_EQ(cores.usable(), 2.5);
  cores.quota = 16;
  EXPECT_EQ(cores.usable(), 4);
}

TEST(Cores, FaultsNameTheNumberOfThreads) {
  Cores cores{.threads = 8, .online = 16, .allowed = 8};
  EXPECT_THAT(faults(cores), IsEmpty());
  cores.quota = 2;
  EXPECT_THAT(faults(cores), ElementsAre(HasSubstr("8 threads share 2 cores")));
  cores.quota = 0.5;
  EXPECT_THAT(faults(cores), ElementsAre(HasSubstr("--threads 1,")));
  cores = {.threads = 3, .online = 16, .allowed = 8};
  EXPECT_THAT(faults(cores), ElementsAre(HasSubstr("leave 5 of 8 cores idle")));
  cores.threads = 4;  // LibTorch's own choice where each core has two threads
  EXPECT_THAT(faults(cores), IsEmpty());
}

TEST(Cores, OfThisProcess) {
  const Cores here = cores();
  EXPECT_EQ(here.threads, at::get_num_threads());
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(here.allowed, CPU_COUNT(&mask));
  EXPECT_GE(here.online, here.allowed);
  EXPECT_FALSE(here.allocator.empty());
}

}  // namespace
}  // namespace demi::doctor
