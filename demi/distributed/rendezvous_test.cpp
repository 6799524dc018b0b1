#include "demi/distributed/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/distributed/liveness.h"
#include "demi/distributed/ranks_testing.h"

namespace demi::distributed {
namespace {

using demi::testing::GroupOn;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A process of a job: its rank, and the world size that was set for it.
struct Process {
  int rank, world_size;
};

// The error that each of them throws, with one store; empty if it met the others.
std::vector<std::string> errors_of(const std::shared_ptr<Store>& store,
                                   const std::vector<Process>& processes,
                                   milliseconds start_timeout) {
  std::vector<std::string> errors(processes.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < processes.size(); ++i)
    threads.emplace_back([&, i] {
      ProcessGroupOptions options;
      options.start_timeout = start_timeout;
      options.timeout = seconds(60);
      try {
        GroupOn group(store, processes[i].rank, processes[i].world_size, options);
        group.barrier();
      } catch (const Error& error) {
        errors[i] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

const std::vector<Process> kTwo{{0, 2}, {1, 2}};

// torchrun's agents keep one store for all restarts, and what a killed rank wrote stays in it.
TEST(Rendezvous, IgnoresWhatAnEarlierStartLeft) {
  const auto store = thread_store();
  const std::string name = "demi/main/";
  store->set(name + "session", "dead 2");
  store->set(name + "number/0", "dead");
  store->set(name + "number/1", "one");
  store->set(name + "answer/one", "dead");
  store->set(name + "dead/joined/0", "2");
  store->set(name + "dead/joined/1", "2");
  store->set(name + "dead/begin", "yes");
  store->set(name + "dead/sign/0", Sign{false, 7, 3}.text());
  store->set(name + "dead/sign/1", Sign{false, 7, 3}.text());
  store->set(name + "dead/finding", "of the dead");
  for (int start = 0; start < 2; ++start)
    EXPECT_THAT(errors_of(store, kTwo, seconds(60)), Each(IsEmpty())) << start;
}

TEST(Rendezvous, NamesThoseThatAreMissingOnEveryRank) {
  EXPECT_THAT(errors_of(thread_store(), {{0, 4}, {2, 4}}, milliseconds(700)),
              Each(HasSubstr("ranks 1, 3 of 4 missing")));
  EXPECT_THAT(errors_of(thread_store(), {{1, 2}}, milliseconds(200)),
              Each(HasSubstr("rank 0 of 2 missing")));
}

TEST(Rendezvous, NamesRanksThatDisagreeOnTheirNumber) {
  EXPECT_THAT(
      errors_of(thread_store(), {{0, 2}, {1, 3}}, seconds(60)),
      Each(AllOf(HasSubstr("the ranks disagree on their number"), HasSubstr("3 on rank 1"))));
  EXPECT_THAT(
      errors_of(thread_store(), {{0, 3}, {1, 2}}, seconds(60)),
      Each(AllOf(HasSubstr("the ranks disagree on their number"), HasSubstr("2 on rank 1"))));
}

TEST(Rendezvous, ThirdProcessOfAJobIsNamed) {
  for (const Process third : {Process{1, 2}, Process{0, 2}, Process{2, 3}}) {
    const auto store = thread_store();
    const auto options = demi::testing::short_timeouts();
    std::string error;
    const auto errors = [&] {
      std::vector<std::string> all(2);
      std::vector<std::thread> threads;
      std::unique_ptr<GroupOn> groups[2];
      for (int rank : {0, 1})
        threads.emplace_back(
            [&, rank] { groups[rank] = std::make_unique<GroupOn>(store, rank, 2, options); });
      for (std::thread& thread : threads) thread.join();
      error = errors_of(store, {third}, seconds(60))[0];
      return all;
    }();
    EXPECT_THAT(error, HasSubstr(third.world_size == 3 ? "3 on rank 2, 2 on rank 0"
                                                       : "a rank is there twice"));
  }
}

// It has joined, gave a sign of life, and gives no other; the third rank has not come. Rank 0 says
// so long before its 60 s are over.
TEST(Rendezvous, NoticesARankThatDiesBeforeAllHaveCome) {
  const auto store = thread_store();
  const std::string name = "demi/main/";
  std::thread dies([&] {
    store->set(name + "number/1", "one");
    while (!store->get(name + "answer/one")) std::this_thread::sleep_for(milliseconds(5));
    const std::string session = name + *store->get(name + "answer/one");
    store->set(session + "/joined/1", "3");
    store->set(session + "/sign/1", Sign{false, 1, 0}.text());
  });
  const auto errors = errors_of(store, {{0, 3}}, seconds(60));
  dies.join();
  EXPECT_THAT(errors, Each(HasSubstr("rank 1: no sign of life")));
}

// The process that started the ranks has seen one end.
TEST(Rendezvous, EndsIfARankWillNotCome) {
  const auto store = thread_store();
  store->set(kEndedRank, "rank 2 ended with exit code 3");
  EXPECT_THAT(errors_of(store, {{0, 3}, {1, 3}}, seconds(60)),
              Each(HasSubstr("rank 2 ended with exit code 3")));
}

}  // namespace
}  // namespace demi::distributed
