#include "demi/distributed/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/distributed/c10d.h"
#include "demi/distributed/collectives.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/distributed/reducer.h"

namespace demi::distributed {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// The library beside this program (nccl/stand_in_testing.cpp).
Nccl library_that(const std::string& way) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return open_nccl(program.parent_path() / ("libdemi_nccl_that_" + way + ".so"));
}

std::unique_ptr<Collectives> of_one_rank(const Nccl& library) {
  return nccl(thread_store(), "test/", 0, 1, std::chrono::seconds(30), torch::Device("cuda:0"),
              library);
}

std::string error_of_start(const Nccl& library) {
  try {
    of_one_rank(library);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "none";
}

TEST(Nccl, SaysWhyItIsNotThere) {
  if (load_nccl().make) GTEST_SKIP() << "it is there";
  EXPECT_THAT(load_nccl().why, Not(IsEmpty()));
  EXPECT_THAT(error_of_start(load_nccl()), HasSubstr(load_nccl().why));
}

TEST(Nccl, NamesTheVariableThatKeepsCudaOut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // LibTorch's part for CUDA is loaded once
  const auto start = [] {
    ::setenv("DEMI_CUDA_LIBRARY", "off", 1);
    std::fputs(error_of_start(load_nccl()).c_str(), stderr);
    std::exit(4);
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(4),
              AnyOf(HasSubstr("DEMI_CUDA_LIBRARY is off"), HasSubstr("demi was built without it")));
}

TEST(Nccl, ALibraryThatIsNotThere) {
  const Nccl nccl = library_that("is_not_there");
  EXPECT_FALSE(nccl.make);
  EXPECT_THAT(nccl.why, StartsWith("libdemi_nccl.so cannot be opened: "));
  EXPECT_THAT(error_of_start(nccl), HasSubstr("libdemi_nccl_that_is_not_there.so"));
}

TEST(Nccl, ALibraryOfAnotherBuild) {
  const Nccl nccl = library_that("is_empty");
  EXPECT_FALSE(nccl.make);
  EXPECT_EQ(nccl.why, "libdemi_nccl.so is of another build");
}

TEST(Nccl, ALibraryWithTheHeaderOfAnotherNccl) {
  const Nccl nccl = library_that("differs");
  EXPECT_FALSE(nccl.make);
  EXPECT_EQ(nccl.why,
            "libdemi_nccl.so was compiled with the header of NCCL 2.28.9, and LibTorch with that "
            "of 2.30.7");
  EXPECT_THAT(error_of_start(nccl), HasSubstr("2.28.9"));
}

TEST(Nccl, WhatItThrowsIsSaid) {
  const Nccl nccl = library_that("throws");
  ASSERT_TRUE(nccl.make) << nccl.why;
  EXPECT_EQ(nccl.why, "");
  const std::string error = error_of_start(nccl);
  EXPECT_THAT(error, HasSubstr("NCCL does not start"));
  EXPECT_THAT(error, HasSubstr("no GPUs found"));
  EXPECT_THAT(error, Not(HasSubstr("second line")));
}

class GpuNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!load_nccl().make) GTEST_SKIP() << load_nccl().why;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
  }
};

// One rank: its own tensor is sum, maximum and broadcast.
TEST_F(GpuNccl, CollectivesOfOneRank) {
  const auto all = of_one_rank(load_nccl());
  for (const auto dtype :
       {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kFloat64, torch::kInt}) {
    const auto tensor = torch::arange(7., torch::kCUDA).to(dtype), expected = tensor.clone();
    const auto wait = [&](const std::unique_ptr<Collective>& collective) {
      collective->on_end([](const std::exception_ptr& error) { EXPECT_FALSE(error); });
      collective->synchronize();
      EXPECT_TRUE(tensor.equal(expected)) << dtype;
    };
    wait(all->all_reduce(tensor, Reduction::kSum));
    wait(all->all_reduce(tensor, Reduction::kMax));
    wait(all->broadcast(tensor, 0));
    wait(all->all_gather(tensor, tensor));
  }
}

// Tensors of the CPU and of the GPU in turn, each through its own backend.
TEST_F(GpuNccl, AProcessGroupServesBothDevices) {
  const auto errors = demi::testing::on_ranks(1, [](ProcessGroup& group) {
    for (const auto device : {torch::kCPU, torch::kCUDA, torch::kCPU, torch::kCUDA}) {
      const auto tensor = torch::arange(9., device), expected = tensor.clone();
      group.all_reduce(tensor);
      group.broadcast(tensor);
      const auto gathered = torch::zeros_like(tensor);
      group.all_gather(gathered, tensor);
      EXPECT_TRUE(tensor.equal(expected)) << device;
      EXPECT_TRUE(gathered.equal(expected)) << device;
    }
    group.barrier();
  });
  EXPECT_THAT(errors, ElementsAre(""));
}

// The average over one rank is that rank's gradient, bit for bit, in each dtype that travels.
TEST_F(GpuNccl, GradientsOfOneRankStayWhatTheyAre) {
  for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    const auto gradients = [&](torch::nn::Sequential& model) {
      const auto inputs = torch::sin(torch::arange(24., torch::kCUDA)).view({4, 6}).to(dtype);
      model->forward(inputs).to(torch::kFloat).pow(2).mean().backward();
      std::vector<torch::Tensor> all;
      for (const auto& parameter : model->parameters()) all.push_back(parameter.grad().clone());
      return all;
    };
    torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Tanh(),
                                torch::nn::Linear(8, 3));
    model->to(torch::kCUDA, dtype);
    const auto expected = gradients(model);
    const auto errors = demi::testing::on_ranks(1, [&](ProcessGroup& group) {
      const auto parameters = model->parameters();
      Reducer reducer(parameters, model->buffers(), group, {});
      for (int round = 0; round < 3; ++round) {  // the first one plans
        for (std::size_t i = 0; i < parameters.size(); ++i)
          parameters[i].mutable_grad() = expected[i].clone();
        std::shared_ptr<void> held;  // as DistributedDataParallel's hooks do in backward
        for (std::size_t i = parameters.size(); i-- > 0;)
          if (auto first = reducer.on_gradient(i)) held = first;
        reducer.finish();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_EQ(parameters[i].grad().scalar_type(), dtype);
          EXPECT_TRUE(parameters[i].grad().equal(expected[i])) << dtype << " parameter " << i;
        }
        EXPECT_EQ(reducer.reduced().planned, round == 0);
      }
    });
    EXPECT_THAT(errors, ElementsAre(""));
  }
}

}  // namespace
}  // namespace demi::distributed
