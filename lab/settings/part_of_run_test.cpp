#include "lab/settings/part_of_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lab/settings/config.h"

namespace demi::settings {
namespace {

constexpr Part kParts[] = {Part::kPrecision, Part::kLossScale,   Part::kStep,  Part::kLength,
                           Part::kTest,      Part::kCheckpoints, Part::kStart, Part::kRanks};

TEST(PartOfRun, ItsSettingsAreThereAndOfNoOtherPart) {
  for (const Part part : kParts) {
    EXPECT_FALSE(settings_of(part).empty());
    for (const std::string_view name : settings_of(part)) {
      EXPECT_EQ(part_of_run(name), part) << name;
      EXPECT_EQ(std::ranges::count(all_settings(), name, &Setting::name), 1) << name;
    }
  }
  EXPECT_TRUE(settings_of(Part::kModel).empty());
  EXPECT_EQ(part_of_run("context"), Part::kModel);
}

TEST(PartOfRun, StepsLeaveOutWhatIsAroundThem) {
  const std::set<std::string> beyond = beyond_steps();
  EXPECT_EQ(beyond.size(), 23U);
  for (const char* name : {"precision", "epochs", "top-k", "resume", "ranks", "keep-best"})
    EXPECT_TRUE(beyond.contains(name)) << name;
  for (const char* name : {"lr", "model", "device", "seed", "monitor", "op-policy"})
    EXPECT_FALSE(beyond.contains(name)) << name;
}

}  // namespace
}  // namespace demi::settings
