#include "lab/settings/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "demi/core/error.h"
#include "lab/recipes/resume.h"
#include "lab/settings/recipe.h"

namespace demi::settings {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config with(const std::vector<Assignment>& given) {
  Config config = find_recipe("mlp").config;
  for (const Assignment& a : given) set(config, a.name, a.text, a.source);
  check(config);
  return config;
}

template <class Error = UsageError, class Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Devices, AreListedByComma) {
  EXPECT_THAT(device_list("cpu", "--devices"), ElementsAre("cpu"));
  EXPECT_THAT(device_list("cpu,cpu,cpu", "--devices"), ElementsAre("cpu", "cpu", "cpu"));
  EXPECT_THAT(device_list("cuda:1,cuda:12", "--devices"), ElementsAre("cuda:1", "cuda:12"));
}

TEST(Devices, ThatAreNone) {
  for (const char* text :
       {"", "cpu,", ",cpu", "gpu:0,gpu:1", "cuda", "cuda,cuda:1", "cuda:", "cuda:1x", "cuda:1234",
        "cpu, cpu", "auto", "cpu,cuda:0", "cuda:0,cpu", "cuda:0,cuda:1,cuda:0"})
    EXPECT_THAT(refusal([&] { device_list(text, "--devices"); }),
                AllOf(HasSubstr("[--devices]"), HasSubstr("cuda:0,cuda:1")))
        << text;
}

TEST(Devices, ImplyTheRanks) {
  const Config config = with({{"devices", "cuda:2,cuda:5", "--devices"}});
  EXPECT_EQ(config.ranks, 2);
  EXPECT_EQ(device_of_rank(config, 0), "cuda:2");
  EXPECT_EQ(device_of_rank(config, 1), "cuda:5");
  EXPECT_EQ(device_of_rank(with({{"device", "cpu", "--device"}}), 0), "cpu");
  EXPECT_EQ(with({{"devices", "cpu,cpu", "--devices"}, {"ranks", "2", "--ranks"}}).ranks, 2);
  EXPECT_EQ(with({{"devices", "", "--devices"}, {"ranks", "3", "--ranks"}}).ranks, 3);
}

TEST(Devices, ContradictoryValues) {
  EXPECT_THAT(refusal([] {
                with({{"devices", "cpu,cpu", "--devices"}, {"ranks", "3", "--ranks"}});
              }),
              HasSubstr("--ranks 3 with --devices cpu,cpu"));
  for (const char* device : {"cpu", "cuda:2"})
    EXPECT_THAT(refusal([&] {
                  with({{"devices", "cuda:0,cuda:1", "--devices"}, {"device", device, "--device"}});
                }),
                HasSubstr(std::string("--device ") + device + " with --devices cuda:0,cuda:1"));
  for (const char* device : {"auto", "cuda", "cuda:1"})
    with({{"devices", "cuda:0,cuda:1", "--devices"}, {"device", device, "--device"}});
}

TEST(Devices, AreOneGpuForEachRank) {
  const auto ranks = [](const std::string& count, const std::string& device) {
    return with({{"ranks", count, "--ranks"}, {"device", device, "--device"}});
  };
  const auto too_many = [&](const Config& config, int gpus) {
    return refusal<DeviceError>([&] { require_gpus(config, gpus); });
  };
  EXPECT_THAT(too_many(ranks("3", "cuda"), 2),
              AllOf(HasSubstr("--ranks 3, and 2 GPUs here"), HasSubstr("at most 2")));
  EXPECT_THAT(too_many(ranks("2", "auto"), 1), HasSubstr("and 1 GPU here"));
  EXPECT_THAT(too_many(ranks("2", "cuda:1"), 8), HasSubstr("--ranks 2 with --device cuda:1"));
  require_gpus(ranks("3", "cuda"), 3);
  require_gpus(ranks("1", "cuda:1"), 2);
  require_gpus(with({{"devices", "cuda:1,cuda:2,cuda:3", "--devices"}}), 2);
}

// The batch of all ranks together stays.
TEST(Devices, OfARunThatGoesOn) {
  Config begun = with({{"batch-size", "96", "--batch-size"}, {"ranks", "4", "--ranks"}});
  begun.device = "cpu";  // as the run found it
  const auto resumed = [](const Config& config, const std::vector<Assignment>& given) {
    return recipes::resumed_config(config, given, "runs/train-mlp-001");
  };
  const Config on_gpus = resumed(begun, {{"devices", "cuda:0,cuda:1", "--devices"}});
  EXPECT_EQ(on_gpus.ranks, 2);
  EXPECT_EQ(on_gpus.batch_size, 192);
  EXPECT_EQ(on_gpus.device, "auto");

  begun = on_gpus;
  begun.device = "cuda:0";
  EXPECT_EQ(resumed(begun, {}).devices, "cuda:0,cuda:1");
  EXPECT_EQ(resumed(begun, {{"ranks", "2", "--ranks"}}).devices, "cuda:0,cuda:1");
  const Config with_ranks = resumed(begun, {{"ranks", "4", "--ranks"}});
  EXPECT_EQ(with_ranks.devices, "");
  EXPECT_EQ(with_ranks.device, "cuda") << "a GPU for each, not one for all";
  EXPECT_EQ(with_ranks.batch_size, 96);
  EXPECT_EQ(resumed(begun, {{"devices", "cuda:2,cuda:3", "--devices"}}).ranks, 2);
  EXPECT_THAT(refusal([&] {
                resumed(begun, {{"devices", "cpu,cpu,cpu,cpu,cpu", "--devices"}});
              }),
              HasSubstr("a divisor of 384"));
}

}  // namespace
}  // namespace demi::settings
