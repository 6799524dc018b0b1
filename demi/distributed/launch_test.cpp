#include "demi/distributed/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "demi/core/error.h"

namespace demi::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Values = std::map<std::string, std::string>;

Variables of(Values values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

std::string ranks_error(Values values) {
  return error_of([&] { read_ranks(of(std::move(values))); });
}

std::string address_error(Values values) {
  const Variables variables = of(std::move(values));
  return error_of([&] { read_store_address(variables, read_ranks(variables)); });
}

// The names are those of torchrun (torch/distributed/run.py), Open MPI (its FAQ "running"), MPICH
// and srun's manual page.
TEST(Ranks, OfEachLauncher) {
  const Ranks torchrun = read_ranks(of({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}));
  EXPECT_EQ(torchrun.launcher, "torchrun");
  EXPECT_EQ(torchrun.rank, 5);
  EXPECT_EQ(torchrun.world_size, 8);
  EXPECT_EQ(torchrun.local_rank, 1);
  const Ranks mpirun = read_ranks(of({{"OMPI_COMM_WORLD_RANK", "2"},
                                      {"OMPI_COMM_WORLD_SIZE", "4"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  EXPECT_EQ(mpirun.launcher, "mpirun");
  EXPECT_EQ(mpirun.rank, 2);
  EXPECT_EQ(mpirun.world_size, 4);
  EXPECT_EQ(mpirun.local_rank, 0);
  EXPECT_EQ(read_ranks(of({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})).rank, 3);
  const Ranks srun = read_ranks(
      of({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "1"}}));
  EXPECT_EQ(srun.launcher, "srun");
  EXPECT_EQ(srun.rank, 1);
  EXPECT_EQ(srun.world_size, 2);
}

TEST(Ranks, OneWithoutALauncher) {
  const Ranks alone = read_ranks(of({}));
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.world_size, 1);
  EXPECT_EQ(alone.launcher, "none");
  // A batch script of Slurm, outside srun.
  EXPECT_EQ(read_ranks(of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})).world_size, 1);
}

TEST(Ranks, OfALauncherInsideAnother) {
  const Values inside{{"RANK", "3"},
                      {"WORLD_SIZE", "4"},
                      {"SLURM_PROCID", "1"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"TORCHELASTIC_RUN_ID", "none"}};
  EXPECT_EQ(read_ranks(of(inside)).rank, 3);
  EXPECT_EQ(read_ranks(of({{"RANK", "0"},
                           {"WORLD_SIZE", "1"},
                           {"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"}}))
                .rank,
            1);
}

// srun --mpi=pmi2 sets PMI's two as well, to its own ranks: an address comes from Slurm then.
TEST(Ranks, OfSrunWithPmi2) {
  const Values values{{"PMI_RANK", "1"},      {"PMI_SIZE", "4"},
                      {"SLURM_PROCID", "1"},  {"SLURM_STEP_NUM_TASKS", "4"},
                      {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NODELIST", "node[1-2]"},
                      {"SLURM_JOB_ID", "12"}};
  const Ranks ranks = read_ranks(of(values));
  EXPECT_EQ(ranks.launcher, "srun");
  EXPECT_EQ(ranks.rank, 1);
  EXPECT_EQ(ranks.world_size, 4);
  EXPECT_EQ(ranks.local_rank, 1);
  const StoreAddress address = read_store_address(of(values), ranks);
  EXPECT_EQ(address.host, "node1");
  EXPECT_EQ(address.port, 20012);
}

// MPICH's mpiexec starts one proxy a machine by srun, and the proxies start the ranks: Slurm's are
// those of the proxies.
TEST(Ranks, OfMpichBelowSrun) {
  const Values one_machine{{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},
                           {"MPI_LOCALRANKID", "3"}, {"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},   {"SLURM_STEP_NUM_TASKS", "1"}};
  const Ranks ranks = read_ranks(of(one_machine));
  EXPECT_EQ(ranks.launcher, "mpirun");
  EXPECT_EQ(ranks.rank, 3);
  EXPECT_EQ(ranks.world_size, 4);
  EXPECT_EQ(ranks.local_rank, 3);
  // Two proxies: two launchers of several processes that contradict each other.
  EXPECT_THAT(ranks_error({{"PMI_RANK", "3"},
                           {"PMI_SIZE", "4"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_STEP_NUM_TASKS", "2"}}),
              AllOf(HasSubstr("PMI_RANK=3, PMI_SIZE=4"), HasSubstr("SLURM_PROCID=1")));
}

TEST(Ranks, WrongVariablesAreNamed) {
  EXPECT_THAT(ranks_error({{"RANK", "1"}}),
              AllOf(HasSubstr("RANK=1"), HasSubstr("WORLD_SIZE is not set")));
  EXPECT_THAT(ranks_error({{"WORLD_SIZE", "2"}}), HasSubstr("set RANK"));
  EXPECT_THAT(ranks_error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("RANK=2, WORLD_SIZE=2"), HasSubstr("RANK from 0 to 1")));
  EXPECT_THAT(ranks_error({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=-1"));
  EXPECT_THAT(ranks_error({{"RANK", "1x"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=1x"));
  EXPECT_THAT(ranks_error({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(ranks_error({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}),
              HasSubstr("WORLD_SIZE=99999999999"));
  EXPECT_THAT(ranks_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}),
              HasSubstr("LOCAL_RANK=1"));
  EXPECT_THAT(ranks_error({{"RANK", "1"},
                           {"WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_RANK", "0"},
                           {"OMPI_COMM_WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("RANK=1, WORLD_SIZE=2"), HasSubstr("OMPI_COMM_WORLD_RANK=0")));
}

TEST(Ranks, LocalRankByItself) {
  EXPECT_EQ(read_local_rank(of({})), std::nullopt);
  EXPECT_EQ(read_local_rank(of({{"LOCAL_RANK", "3"}})), 3);
  for (const char* wrong : {"x", "1x", "-1"})
    EXPECT_THAT(error_of([&] {
                  read_local_rank(of({{"LOCAL_RANK", wrong}}));
                }),
                HasSubstr("LOCAL_RANK=" + std::string(wrong)));
}

TEST(StoreAddress, OfTorchrun) {
  const Values values{{"RANK", "0"},
                      {"WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "node1"},
                      {"MASTER_PORT", "29501"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  const StoreAddress address = read_store_address(of(values), read_ranks(of(values)));
  EXPECT_EQ(address.host, "node1");
  EXPECT_EQ(address.port, 29501);
  EXPECT_TRUE(address.served_by_agent);
}

TEST(StoreAddress, OfSrun) {
  const Values values{{"SLURM_PROCID", "1"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_STEP_NODELIST", "gpu[07,09]"},
                      {"SLURM_JOB_ID", "1234567"}};
  const StoreAddress address = read_store_address(of(values), read_ranks(of(values)));
  EXPECT_EQ(address.host, "gpu07");
  EXPECT_EQ(address.port, 24567);
  EXPECT_FALSE(address.served_by_agent);
}

TEST(StoreAddress, WrongVariablesAreNamed) {
  const Values ranks{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  const auto with = [&](Values more) {
    more.insert(ranks.begin(), ranks.end());
    return more;
  };
  EXPECT_THAT(address_error(ranks),
              AllOf(HasSubstr("MASTER_ADDR is not set"), HasSubstr("RANK=0")));
  EXPECT_THAT(address_error(with({{"MASTER_ADDR", "a"}})), HasSubstr("MASTER_PORT is not set"));
  for (const char* port : {"0", "65536", "http", "-1", ""})
    EXPECT_THAT(address_error(with({{"MASTER_ADDR", "a"}, {"MASTER_PORT", port}})),
                HasSubstr(std::string("MASTER_PORT=") + port));
}

TEST(InitMethod, Parsed) {
  EXPECT_EQ(parse_init_method("env://").kind, InitMethod::Kind::kEnvironment);
  const InitMethod tcp = parse_init_method("tcp://node1:29500?rank=1&world_size=4");
  EXPECT_EQ(tcp.kind, InitMethod::Kind::kTcp);
  EXPECT_EQ(tcp.host, "node1");
  EXPECT_EQ(tcp.port, 29500);
  EXPECT_EQ(tcp.rank, 1);
  EXPECT_EQ(tcp.world_size, 4);
  EXPECT_EQ(parse_init_method("tcp://[::1]:80").host, "::1");
  const InitMethod file = parse_init_method("file:///tmp/store");
  EXPECT_EQ(file.kind, InitMethod::Kind::kFile);
  EXPECT_EQ(file.path, "/tmp/store");
  for (const char* wrong :
       {"", "tcp://", "tcp://node1", "tcp://node1:0", "tcp://:80", "tcp://a:70000", "file://",
        "file://relative", "http://a:1", "env", "tcp://a:1?rank=x", "tcp://a:1?size=2", "node1:80"})
    EXPECT_THAT(error_of([&] { parse_init_method(wrong); }),
                HasSubstr(std::string("init_method=") + wrong));
}

// The forms of "scontrol show hostnames".
TEST(FirstHost, OfSlurmsLists) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[01-04,07]"), "node01");
  EXPECT_EQ(first_host("node[3,5-6]-ib,other[1-2]"), "node3-ib");
  EXPECT_EQ(first_host("login,node[1-2]"), "login");
}

}  // namespace
}  // namespace demi::distributed
