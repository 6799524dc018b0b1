#include "demi/distributed/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "demi/core/error.h"
#include "demi/core/wait_until_testing.h"
#include "demi/distributed/children_testing.h"
#include "demi/distributed/port_testing.h"
#include "demi/distributed/ranks_testing.h"

namespace demi::distributed {
namespace {

using demi::testing::Child;
using demi::testing::HeldPort;
using demi::testing::on_ranks;
using demi::testing::short_timeouts;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string start_error(const ProcessGroupOptions& options) {
  try {
    const ProcessGroup group(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class Folder : public ::testing::Test {
 protected:
  Folder() {
    std::string name = ::testing::TempDir() + "demi_group_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() override { std::filesystem::remove_all(path_); }
  std::filesystem::path path_;
};

TEST(ProcessGroup, AloneWithoutALauncher) {
  ProcessGroup group;
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.world_size(), 1);
  EXPECT_EQ(group.local_rank(), 0);
  const auto tensor = torch::tensor({1.F, 2.F});
  group.all_reduce(tensor);
  group.broadcast(tensor);
  group.barrier();
  group.require_same("anything", "text");
  EXPECT_THAT(group.compare("text"), IsEmpty());
  const auto gathered = torch::zeros({2});
  group.all_gather(gathered, tensor);
  group.all_gather(tensor, tensor);
  EXPECT_TRUE(torch::equal(gathered, torch::tensor({1.F, 2.F})));
  EXPECT_TRUE(torch::equal(tensor, torch::tensor({1.F, 2.F})));
}

TEST(ProcessGroup, ReducesAndBroadcastsOnThreeRanks) {
  const auto errors = on_ranks(3, [](ProcessGroup& group) {
    for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kDouble,
                             torch::kInt, torch::kLong}) {
      const auto sum = torch::full({5}, group.rank() + 1, dtype);
      group.all_reduce(sum);
      EXPECT_TRUE(torch::equal(sum, torch::full({5}, 6, dtype)));
      const auto most = torch::full({5}, group.rank() + 1, dtype);
      group.all_reduce(most, Reduction::kMax);
      EXPECT_TRUE(torch::equal(most, torch::full({5}, 3, dtype)));
      const auto sent = torch::full({5}, group.rank() + 1, dtype);
      group.broadcast(sent, 1);
      EXPECT_TRUE(torch::equal(sent, torch::full({5}, 2, dtype)));
      // From memory of its own, and from this rank's part of the result.
      const auto all = torch::zeros({3, 2}, dtype), in_place = torch::zeros({3, 2}, dtype);
      const auto expected = torch::tensor({1, 1, 2, 2, 3, 3}).view({3, 2}).to(dtype);
      group.all_gather(all, torch::full({2}, group.rank() + 1, dtype));
      EXPECT_TRUE(torch::equal(all, expected));
      in_place[group.rank()].fill_(group.rank() + 1);
      group.all_gather(in_place, in_place[group.rank()]);
      EXPECT_TRUE(torch::equal(in_place, expected));
    }
    group.barrier();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Those of safetensors.md. Bytes of 0 and 1 are values of each.
const std::vector<torch::Dtype> kDtypes = {
    torch::kDouble,        torch::kFloat,       torch::kHalf,   torch::kBFloat16,
    torch::kFloat8_e4m3fn, torch::kFloat8_e5m2, torch::kLong,   torch::kInt,
    torch::kShort,         torch::kChar,        torch::kUInt64, torch::kUInt32,
    torch::kUInt16,        torch::kByte,        torch::kBool,   torch::kComplexFloat};

torch::Tensor of_bytes(int value, torch::Dtype dtype, std::int64_t count = 3) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(dtype));
  return torch::full({count * size}, value, torch::kByte).view(dtype);
}

bool has_bytes(const torch::Tensor& tensor, int value) {
  return tensor.view(torch::kByte).eq(value).all().item<bool>();
}

TEST(ProcessGroup, SendsEachDtype) {
  const auto errors = on_ranks(3, [](ProcessGroup& group) {
    for (const auto dtype : kDtypes) {
      SCOPED_TRACE(torch::toString(dtype));
      const auto own = of_bytes(group.rank() == 1 ? 1 : 0, dtype), all = of_bytes(7, dtype, 9);
      group.all_gather(all, own);
      for (const int rank : {0, 1, 2})
        EXPECT_TRUE(has_bytes(all.narrow(0, 3 * rank, 3), rank == 1 ? 1 : 0)) << rank;
      group.broadcast(own, 1);
      EXPECT_TRUE(has_bytes(own, 1));
    }
    const auto conjugate = torch::full({2}, c10::complex<float>(1, group.rank())).conj();
    group.broadcast(conjugate, 1);
    EXPECT_TRUE(torch::equal(conjugate, torch::full({2}, c10::complex<float>(1, -1))));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// What distributed.md does not list. On all ranks, and the group stays usable.
TEST(ProcessGroup, RefusesToReduceWhatGlooCannot) {
  const std::vector<torch::Dtype> listed = {torch::kHalf,   torch::kBFloat16, torch::kFloat,
                                            torch::kDouble, torch::kChar,     torch::kByte,
                                            torch::kInt,    torch::kLong};
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    for (const auto dtype : kDtypes) {
      SCOPED_TRACE(torch::toString(dtype));
      if (std::ranges::count(listed, dtype) > 0) {
        EXPECT_NO_THROW(group.all_reduce(of_bytes(0, dtype)));
        continue;
      }
      for (const auto reduction : {Reduction::kSum, Reduction::kMax}) {
        if (dtype == (reduction == Reduction::kMax ? torch::kBool : torch::kComplexFloat)) continue;
        EXPECT_THROW(group.all_reduce(of_bytes(0, dtype), reduction), UsageError);
        EXPECT_THROW(group.start_all_reduce(of_bytes(0, dtype), reduction), UsageError);
      }
    }
    const auto any = of_bytes(group.rank(), torch::kBool);
    group.all_reduce(any, Reduction::kMax);
    EXPECT_TRUE(has_bytes(any, 1));
    const auto sum = torch::ones({2});
    group.all_reduce(sum);
    EXPECT_EQ(sum[0].item<float>(), 2);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroup, DifferencesAreNamedOnEveryRank) {
  const auto errors = on_ranks(3, [](ProcessGroup& group) {
    group.require_same("the model", "a\nb\nc");
    group.require_same("the model", group.rank() == 2 ? "a\nbad\nc" : "a\nb\nc");
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("the model"), HasSubstr("bad on rank 2"),
                                 HasSubstr("accepted: b, as on rank 0"))));
  const auto two = on_ranks(3, [](ProcessGroup& group) {
    const auto found = group.compare(group.rank() == 0   ? "a\nb\nc"
                                     : group.rank() == 1 ? "a\nb\nd"
                                                         : "a\ne\nc");
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[0].rank, 1);
    EXPECT_EQ(found[0].line, "d");
    EXPECT_EQ(found[0].line_of_rank_0, "c");
    EXPECT_EQ(found[1].rank, 2);
    EXPECT_EQ(found[1].line, "e");
    EXPECT_EQ(found[1].line_of_rank_0, "b");
  });
  EXPECT_THAT(two, Each(IsEmpty()));
  const auto shorter = on_ranks(2, [](ProcessGroup& group) {
    group.require_same("the model", group.rank() == 1 ? "a\n" : "a\nb\n");
  });
  EXPECT_THAT(shorter, Each(HasSubstr("nothing on rank 1")));
}

// Named on every rank before anything is sent, and the group stays usable.
TEST(ProcessGroup, CallsThatDifferAreNamedOnEveryRank) {
  using Call = std::function<void(ProcessGroup&)>;
  struct Case {
    Call of_others, of_rank_1;
    const char* said;
  };
  const auto sum = [](const std::vector<std::int64_t>& sizes, torch::Dtype dtype) -> Call {
    return [=](ProcessGroup& group) { group.all_reduce(torch::ones(sizes, dtype)); };
  };
  const auto from = [](int root) -> Call {
    return [=](ProcessGroup& group) { group.broadcast(torch::ones({2}), root); };
  };
  const auto gather = [](torch::Dtype dtype) -> Call {
    return [=](ProcessGroup& group) {
      group.all_gather(torch::zeros({2 * group.world_size()}, dtype), torch::ones({2}, dtype));
    };
  };
  const Call greatest = [](ProcessGroup& group) {
    group.all_reduce(torch::ones({2}), Reduction::kMax);
  };
  const Case cases[] = {
      {sum({1}, torch::kFloat), sum({1}, torch::kInt), "int32 (1) on cpu on rank 1"},
      {sum({2}, torch::kFloat), sum({3}, torch::kFloat), "fp32 (3) on cpu on rank 1"},
      {sum({2, 3}, torch::kFloat), sum({3, 2}, torch::kFloat), "fp32 (3, 2) on cpu on rank 1"},
      {sum({2}, torch::kFloat), greatest, "all_reduce (greatest)"},
      {sum({2}, torch::kFloat), from(0), "broadcast (from rank 0)"},
      {from(0), from(1), "broadcast (from rank 1)"},
      {gather(torch::kFloat), gather(torch::kInt), "all_gather (of all ranks) of int32 (2)"}};
  for (const Case& one : cases) {
    const auto errors = on_ranks(3, [&](ProcessGroup& group) {
      EXPECT_THROW(
          try {
            (group.rank() == 1 ? one.of_rank_1 : one.of_others)(group);
          } catch (const UsageError& error) {
            EXPECT_THAT(error.what(), AllOf(HasSubstr("the ranks call different collectives"),
                                            HasSubstr(one.said)));
            throw;
          },
          UsageError);
      const auto tensor = torch::ones({2});
      group.all_reduce(tensor);
      EXPECT_EQ(tensor[0].item<float>(), 3);
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
}

TEST(ProcessGroup, ComparesItsCallsOnAllRanksOrOnNone) {
  const auto store = thread_store();
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1})
    threads.emplace_back([&, rank] {
      ProcessGroupOptions options = short_timeouts();
      options.compare_calls = rank == 0;
      try {
        const demi::testing::GroupOn group(store, rank, 2, options);
      } catch (const UsageError& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors, Each(HasSubstr("compare_calls false on rank 1")));
}

TEST(ProcessGroup, RefusesWrongArguments) {
  ProcessGroupOptions options;
  options.rank = 0;
  EXPECT_THAT(start_error(options), HasSubstr("rank alone"));
  options.world_size = 0;
  EXPECT_THAT(start_error(options), HasSubstr("rank 0 of 0"));
  options.rank = 2;
  options.world_size = 2;
  EXPECT_THAT(start_error(options), HasSubstr("rank 2 of 2"));
  options.rank = 1;
  options.timeout = milliseconds(0);
  EXPECT_THAT(start_error(options), HasSubstr("0 ms"));
  options = {};
  options.init_method = "tcp://127.0.0.1:80?rank=3&world_size=2";
  EXPECT_THAT(start_error(options), HasSubstr("rank=3"));
  ProcessGroup alone;
  EXPECT_THROW(alone.broadcast(torch::zeros({1}), 1), UsageError);
  EXPECT_THROW(alone.all_reduce(torch::zeros({4, 4}).t().narrow(0, 0, 2)), UsageError);
  EXPECT_THROW(alone.all_gather(torch::zeros({3}), torch::zeros({2})), UsageError);
  EXPECT_THROW(alone.all_gather(torch::zeros({2}), torch::zeros({2}, torch::kInt)), UsageError);
  EXPECT_THROW(alone.all_gather(torch::zeros({2, 2}), torch::zeros({2, 2}).t()), UsageError);
}

TEST(ProcessGroup, AddressesThatFailAreNamed) {
  ProcessGroupOptions options;
  options.world_size = 2;
  options.start_timeout = milliseconds(400);
  options.rank = 0;
  const HeldPort taken;
  taken.listen();
  options.init_method = "tcp://127.0.0.1:" + taken.text();
  EXPECT_THAT(start_error(options), AllOf(HasSubstr("the port is taken"), HasSubstr(taken.text())));
  options.init_method = "tcp://no-such-machine.invalid:29500";
  EXPECT_THAT(start_error(options),
              AllOf(HasSubstr("no machine has this name"), HasSubstr("no-such-machine.invalid")));
  const HeldPort free;
  options.init_method = "tcp://127.0.0.1:" + free.text();
  EXPECT_THAT(start_error(options), HasSubstr("rank 1 of 2 missing"));
  options.rank = 1;
  EXPECT_THAT(start_error(options), HasSubstr("the store does not answer"));
}

// A child: rank CHILD_RANK of CHILD_SIZE. Reduces for ever; "stuck" on rank
// CHILD_STUCK, which stops to take part.
TEST(ChildRank, DISABLED_ReducesForEver) {
  const auto number = [](const char* name) { return std::stoi(std::getenv(name)); };
  ProcessGroupOptions options;
  options.init_method = std::getenv("CHILD_METHOD");
  options.rank = number("CHILD_RANK");
  options.world_size = number("CHILD_SIZE");
  options.timeout = seconds(number("CHILD_TIMEOUT"));
  const int stuck = number("CHILD_STUCK");
  try {
    ProcessGroup group(options);
    const auto tensor = torch::ones({1 << 20});
    for (std::int64_t step = 0;; ++step) {
      if (step == 3 && group.rank() == stuck) {
        std::fprintf(stderr, "stuck\n");
        std::this_thread::sleep_for(std::chrono::hours(1));  // until the test kills it
      }
      group.all_reduce(tensor);
      tensor.fill_(1);
      if (step == 3) std::fprintf(stderr, "running\n");
    }
  } catch (const DeviceError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(4);
  }
}

// One job of several processes.
class Job {
 public:
  Job(int count, const std::string& method, int stuck, int timeout_s,
      const std::filesystem::path& folder) {
    std::filesystem::create_directory(folder);
    for (int rank = 0; rank < count; ++rank)
      ranks_.push_back(std::make_unique<Child>(
          "ChildRank.DISABLED_ReducesForEver",
          std::map<std::string, std::string>{{"CHILD_METHOD", method},
                                             {"CHILD_RANK", std::to_string(rank)},
                                             {"CHILD_SIZE", std::to_string(count)},
                                             {"CHILD_STUCK", std::to_string(stuck)},
                                             {"CHILD_TIMEOUT", std::to_string(timeout_s)},
                                             {"OMP_NUM_THREADS", "1"}},
          folder / std::to_string(rank)));
  }
  Child& rank(size_t rank) { return *ranks_[rank]; }

  // All but `gone` end with 4 and a message that names it.
  void expect_the_others_name(size_t gone, const std::string& text, seconds limit) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == gone) continue;
      EXPECT_EQ(ranks_[rank]->wait(limit), 4) << rank << ": " << ranks_[rank]->output();
      EXPECT_THAT(ranks_[rank]->output(), HasSubstr(text));
    }
  }

 private:
  std::vector<std::unique_ptr<Child>> ranks_;
};

// As after an exception in backward, with a bucket on its way, while the other rank computes.
TEST(ProcessGroup, EndsWithACollectiveUnderWay) {
  const auto store = thread_store();
  std::atomic<bool> has_ended = false;
  const auto options = demi::testing::short_timeouts();
  std::thread leaves([&] {
    {
      demi::testing::GroupOn group(store, 0, 2, options);
      const auto pending = group.start_all_reduce(torch::ones({4}));
    }
    has_ended = true;
  });
  std::thread computes([&] {
    demi::testing::GroupOn group(store, 1, 2, options);
    EXPECT_TRUE(wait_until([&] { return has_ended.load(); }, options.timeout / 2));
  });
  leaves.join();
  computes.join();
}

// Killed in an all-reduce; killed outside of one, the rank that has the store; alive, but no longer
// taking part. The three jobs run side by side, since they wait most of the time.
TEST_F(Folder, RanksThatAreGoneAreNamedByTheOthers) {
  const HeldPort port;
  Job with_store(3, "tcp://127.0.0.1:" + port.text(), 0, 60, path_ / "a");
  Job in_all_reduce(3, "file://" + (path_ / "store_b").string(), -1, 60, path_ / "b");
  Job stops(3, "file://" + (path_ / "store_c").string(), 2, 2, path_ / "c");
  ASSERT_TRUE(with_store.rank(0).has_said("stuck", seconds(60))) << with_store.rank(0).output();
  with_store.rank(0).send(SIGKILL);
  ASSERT_TRUE(in_all_reduce.rank(1).has_said("running", seconds(60)))
      << in_all_reduce.rank(1).output();
  in_all_reduce.rank(1).send(SIGKILL);
  ASSERT_TRUE(stops.rank(2).has_said("stuck", seconds(60))) << stops.rank(2).output();
  with_store.expect_the_others_name(0, "rank 0", seconds(60));
  in_all_reduce.expect_the_others_name(1, "rank 1: no sign of life", seconds(60));
  stops.expect_the_others_name(2, "rank 2 is alive but behind", seconds(60));
}

// Nobody waits for data of it: rank 1, which computes, is between it and rank 0 in a ring of three.
// A silent rank counts after dead_after, a minute.
TEST_F(Folder, ARankThatDiesWhileAnotherOneComputesIsNamed) {
  Job job(3, "file://" + (path_ / "store").string(), /*stuck=*/1, 600, path_ / "a");
  ASSERT_TRUE(job.rank(1).has_said("stuck", seconds(60))) << job.rank(1).output();
  job.rank(2).send(SIGKILL);
  EXPECT_EQ(job.rank(0).wait(seconds(30)), 4) << job.rank(0).output();
  EXPECT_THAT(job.rank(0).output(), HasSubstr("rank 2: no sign of life"));
}

}  // namespace
}  // namespace demi::distributed
