// Without a GPU: why nothing can be recorded, and the order of calls, on libraries that stand in
// for the plugin (cuda/stand_in_testing.cpp).
#include "demi/graph/device_graph.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "demi/core/error.h"
#include "demi/graph/graph_library.h"

namespace demi::graph {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const c10::Device kGpu(c10::kCUDA, 0);

std::string path_of(const std::string& way) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path() / ("libdemi_graph_that_" + way + ".so");
}

GraphLibrary library_that(const std::string& way) {
  return open_graph_library(path_of(way), "2.15.0");
}

std::unique_ptr<GraphSource> graphs_that(const std::string& way) {
  return graphs_of([library = library_that(way)] { return library; });
}

template <class Kind, class Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const Kind& error) {
    return error.what();
  }
  return "none";
}

TEST(MachineGraphs, WorkOfTheCpuIsNotRecorded) {
  EXPECT_EQ(machine_graphs().obstacle(c10::kCPU), "work of the CPU is not recorded");
  EXPECT_EQ(machine_graphs().obstacle(c10::kMeta), "work of meta is not recorded");
  const auto make = [] { machine_graphs().make(c10::kCPU, nullptr); };
  const std::string error = error_of<UsageError>(make);
  EXPECT_THAT(error, StartsWith("[graph.make] the work of this device cannot be recorded"));
  EXPECT_THAT(error, AllOf(HasSubstr("seen: cpu: work of the CPU is not recorded"),
                           HasSubstr("accepted: a CUDA device"), HasSubstr("-DDEMI_GRAPH=ON")));
}

TEST(MachineGraphs, SayWhyThereAreNone) {
  const std::string why = machine_graphs().obstacle(kGpu);
  if (why.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(why, Not(HasSubstr("\n")));
  const std::string error =
      error_of<UsageError>([] { machine_graphs().make(c10::kCUDA, nullptr); });
  EXPECT_THAT(error, HasSubstr("seen: cuda: " + why));
}

TEST(MachineGraphs, NameTheVariableThatKeepsCudaOut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // LibTorch's part for CUDA is loaded once
  const auto start = [] {
    ::setenv("DEMI_CUDA_LIBRARY", "off", 1);
    std::fputs(machine_graphs().obstacle(kGpu).c_str(), stderr);
    std::exit(4);
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(4),
              AnyOf(HasSubstr("DEMI_CUDA_LIBRARY is off"),
                    HasSubstr("demi was built without libdemi_graph.so")));
}

TEST(GraphLibrary, IsDeclinedWithAReason) {
  const GraphLibrary missing = library_that("is_not_there");
  EXPECT_FALSE(missing.plugin);
  EXPECT_THAT(missing.why, StartsWith("libdemi_graph.so cannot be opened: "));
  EXPECT_THAT(missing.why, HasSubstr("libdemi_graph_that_is_not_there.so"));
  for (const char* way : {"is_empty", "is_older"})
    EXPECT_EQ(library_that(way).why, "libdemi_graph.so is of another build") << way;
  EXPECT_EQ(library_that("has_another_libtorch").why,
            "libdemi_graph.so was compiled with LibTorch 2.14.1, and 2.15.0 is loaded");
  EXPECT_EQ(library_that("has_another_cuda").why,
            "libdemi_graph.so was compiled with the headers of CUDA 12, and LibTorch with those of "
            "13");
  const auto source = graphs_that("has_another_cuda");
  EXPECT_EQ(source->obstacle(kGpu), library_that("has_another_cuda").why);
}

// 2.15.1 is loaded as well as 2.15.0, and CUDA 13.0's headers serve a LibTorch with 13.2.
TEST(GraphLibrary, TakesAnotherPatchVersion) {
  EXPECT_TRUE(library_that("counts").plugin) << library_that("counts").why;
  EXPECT_THAT(open_graph_library(path_of("counts"), "2.1.5").why, HasSubstr("2.1.5 is loaded"));
}

TEST(GraphSource, NamesADeviceThatIsNotThere) {
  EXPECT_EQ(graphs_that("has_no_device")->obstacle(kGpu), "LibTorch finds no CUDA device");
  const auto source = graphs_that("counts");
  for (const c10::Device device : {c10::Device(c10::kCUDA), kGpu, c10::Device(c10::kCUDA, 1)})
    EXPECT_THAT(source->obstacle(device), IsEmpty()) << device;
  EXPECT_EQ(source->obstacle({c10::kCUDA, 2}), "there is no cuda:2: LibTorch finds 2 CUDA devices");
  EXPECT_EQ(source->obstacle(c10::kCPU), "work of the CPU is not recorded");
}

/// Of graphs whose library counts its calls: digits are made, begun, ended, abandoned, replayed,
/// destroyed and made with shared memory, from the last on.
class Calls : public ::testing::Test {
 protected:
  void SetUp() override { calls(); }
  static int calls(const std::string& way = "counts") {
    void* library = ::dlopen(path_of(way).c_str(), RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<int (*)()>(::dlsym(library, "demi_graph_calls"))();
  }
  std::unique_ptr<GraphSource> source_ = graphs_that("counts");
};

TEST_F(Calls, OfARecordingAndItsReplays) {
  auto graph = source_->make(kGpu, nullptr);
  graph->begin();
  graph->end();
  EXPECT_EQ(calls(), 111);
  graph->replay();
  graph->replay();
  EXPECT_EQ(calls(), 20'000);
  graph = nullptr;
  EXPECT_EQ(calls(), 100'000);
}

TEST_F(Calls, OfOneThatIsAbandoned) {
  const auto graph = source_->make(kGpu, nullptr);
  graph->abandon();
  EXPECT_EQ(calls(), 1) << "none has begun";
  graph->begin();
  graph->abandon();
  graph->abandon();
  EXPECT_EQ(calls(), 1'010);
  EXPECT_THROW(graph->replay(), UsageError);
  EXPECT_THROW(graph->begin(), UsageError);
  EXPECT_EQ(calls(), 0);
}

TEST_F(Calls, InAnOrderThatIsWrong) {
  const auto graph = source_->make(kGpu, nullptr);
  EXPECT_EQ(error_of<UsageError>([&] { graph->replay(); }),
            "[graph.replay] there is nothing to replay; seen: one that has not begun; accepted: a "
            "graph whose recording has ended");
  EXPECT_THROW(graph->end(), UsageError);
  graph->begin();
  EXPECT_THAT(error_of<UsageError>([&] { graph->begin(); }), HasSubstr("one that is recording"));
  EXPECT_THROW(graph->replay(), UsageError);
  graph->end();
  EXPECT_THROW(graph->begin(), UsageError);
  EXPECT_THROW(graph->end(), UsageError);
  EXPECT_EQ(calls(), 111);
}

TEST_F(Calls, OfGraphsThatShareMemory) {
  const auto first = source_->make(kGpu, nullptr);
  const auto second = source_->make(kGpu, first.get());
  EXPECT_EQ(calls(), 1'000'002);
  EXPECT_THAT(error_of<UsageError>([&] { graphs_that("throws")->make(kGpu, first.get()); }),
              HasSubstr("graphs of two sources cannot share memory"));
}

TEST_F(Calls, WhatTheDeviceSaysIsRepeated) {
  const auto source = graphs_that("throws");
  calls("throws");
  const auto graph = source->make(kGpu, nullptr);
  const std::string error = error_of<DeviceError>([&] { graph->begin(); });
  EXPECT_THAT(error, StartsWith("[graph.begin] the recording does not begin; seen: CUDA error: "
                                "operation not permitted; accepted: "));
  EXPECT_THAT(error, Not(HasSubstr("second line")));
  EXPECT_EQ(calls("throws"), 1'011) << "given up";
  graph->abandon();
  EXPECT_EQ(calls("throws"), 0);
}

TEST_F(Calls, AnEndThatFailsGivesTheRecordingUp) {
  const auto graph = graphs_that("fails_at_its_end")->make(kGpu, nullptr);
  calls("fails_at_its_end");
  graph->begin();
  EXPECT_THAT(error_of<DeviceError>([&] { graph->end(); }),
              AllOf(StartsWith("[graph.end] what was recorded cannot be replayed"),
                    HasSubstr("a previous error during capture"), HasSubstr("item()")));
  EXPECT_THROW(graph->replay(), UsageError);
  EXPECT_EQ(calls("fails_at_its_end"), 1'110);
}

}  // namespace
}  // namespace demi::graph
