#include "demi/checkpoint/folder.h"

#include <gmock/gmock.h>

#include "demi/checkpoint/checkpoint_testing.h"

namespace demi::checkpoint {
namespace {

using testing::ElementsAre;

TEST(CheckpointName, HasOneSpelling) {
  EXPECT_EQ(checkpoint_name(400, 1), "step-00000400");
  EXPECT_EQ(checkpoint_name(123456789012, 3), "step-123456789012-3");
  for (const auto& [step, copy] : {std::pair<int64_t, int64_t>{0, 1}, {7, 2}, {INT64_MAX, 11}})
    EXPECT_EQ(parse_checkpoint_name(checkpoint_name(step, copy)), (StepName{step, copy}));
  for (const char* other : {"", "step-", "step-400", "step-00000400-1", "step-00000400-0",
                            "step-00000400-02", "step-00000400-", "step-00000400 ", "Step-00000400",
                            "step--0000400", "step-+0000400", "step-00000400-2-3",
                            "step-99999999999999999999", "step-00000400.1.tmp", "../step-00000400"})
    EXPECT_EQ(parse_checkpoint_name(other), std::nullopt) << other;
}

TEST(KeptNames, AreTheLastSaved) {
  const std::string a = "step-00000010", b = "step-00000020", c = "step-00000030";
  EXPECT_THAT(kept_names(c, {b, a}, {a, b}, 1), ElementsAre(c));
  EXPECT_THAT(kept_names(c, {b, a}, {a, b}, 2), ElementsAre(c, b));
  EXPECT_THAT(kept_names(c, {b, a}, {a, b}, 0), ElementsAre(c, b, a));
  EXPECT_THAT(kept_names(c, {b, a}, {a, b}, 9), ElementsAre(c, b, a));
  // The order of saving counts, not that of steps.
  EXPECT_THAT(kept_names(a, {c, b}, {b, c}, 2), ElementsAre(a, c));
  // Gone by hand.
  EXPECT_THAT(kept_names(c, {b, a}, {a}, 2), ElementsAre(c, a));
  // Higher steps count as newer without a list, and after all that are listed.
  EXPECT_THAT(kept_names(c, {}, {a, b}, 2), ElementsAre(c, b));
  EXPECT_THAT(kept_names(c, {a}, {a, b}, 2), ElementsAre(c, a));
}

TEST(KeptNames, HoldEachStepOnce) {
  const std::string a = "step-00000010", again = "step-00000010-2", b = "step-00000020";
  EXPECT_THAT(kept_names(again, {b, a}, {a, b}, 0), ElementsAre(again, b));
  EXPECT_THAT(kept_names(a, {again, b}, {again, b}, 3), ElementsAre(a, b));
}

using Names = CheckpointFolder;

TEST_F(Names, AreReadAsTheyWereWritten) {
  const std::vector<std::string> names = {"step-00000030", "step-00000010-2"};
  EXPECT_THAT(read_names(folder_ / "last"), ElementsAre());
  write_bytes(folder_ / "last", names_to_text(names));
  EXPECT_EQ(read_names(folder_ / "last"), names);
}

}  // namespace
}  // namespace demi::checkpoint
