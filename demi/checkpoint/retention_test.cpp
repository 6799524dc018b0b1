#include "demi/checkpoint/retention.h"

#include <gmock/gmock.h>

#include <limits>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/folder.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> names_of(const std::map<std::string, Marks>& marks) {
  std::vector<std::string> names;
  for (const auto& [name, of] : marks) names.push_back(name);
  std::ranges::sort(names, {},
                    [](const std::string& name) { return *parse_checkpoint_name(name); });
  return names;
}

std::map<std::string, Marks> with_losses(const std::vector<double>& losses) {
  std::map<std::string, Marks> marks;
  for (std::size_t i = 0; i < losses.size(); ++i)
    marks[checkpoint_name(static_cast<int64_t>(i), 1)] = {"r", false, {{"loss", losses[i]}}};
  return marks;
}

std::vector<std::string> best_by_loss(const std::map<std::string, Marks>& marks, int64_t count) {
  return kept_by_marks(names_of(marks), marks, {.count = count, .by = "loss", .lowest_best = true});
}

TEST(KeptByMarks, AreTheLowestLosses) {
  const auto marks = with_losses({3, 1, 2, 4});
  EXPECT_THAT(best_by_loss(marks, 0), IsEmpty());
  EXPECT_THAT(best_by_loss(marks, 2), ElementsAre("step-00000001", "step-00000002"));
  EXPECT_THAT(best_by_loss(marks, 9), testing::SizeIs(4));
}

TEST(KeptByMarks, OfEqualOnesTheEarlierIsBetterAndNaNIsNone) {
  EXPECT_THAT(best_by_loss(with_losses({kNaN, 2, 1, 1, 2}), 3),
              ElementsAre("step-00000002", "step-00000003", "step-00000001"));
  EXPECT_THAT(best_by_loss(with_losses({kNaN, kNaN}), 2), IsEmpty());
}

TEST(KeptByMarks, AreTheHighestOfAnotherScore) {
  std::map<std::string, Marks> marks = with_losses({1, 2, 3});
  marks["step-00000001"].scores["accuracy"] = 0.5;
  marks["step-00000002"].scores["accuracy"] = 0.7;
  EXPECT_THAT(kept_by_marks(names_of(marks), marks, {.count = 1, .by = "accuracy"}),
              ElementsAre("step-00000002"));
  EXPECT_THAT(kept_by_marks(names_of(marks), marks, {.count = 3, .by = "accuracy"}),
              ElementsAre("step-00000002", "step-00000001"))
      << "one without the score is none";
}

TEST(KeptByMarks, AreThoseToBeKeptOfEachStepTheNewestCopy) {
  const std::map<std::string, Marks> marks{{"step-00000001", {"r", true}},
                                           {"step-00000002", {"r", true}},
                                           {"step-00000002-2", {"r", true}},
                                           {"step-00000002-3", {"r", false}},
                                           {"step-00000003", {"r", false}}};
  EXPECT_THAT(kept_by_marks(names_of(marks), marks, {}),
              ElementsAre("step-00000001", "step-00000002-2"));
}

/// A folder in which this process saves.
class KeptInAFolder : public CheckpointFolder {
 protected:
  void save_step(int64_t step, const SaveOptions& options = {}) {
    save(folder_, step, ten_tensors(static_cast<double>(step)), options);
  }
  std::vector<std::string> steps() const {
    std::vector<std::string> steps = names();
    std::erase_if(steps, [](const std::string& name) { return !parse_checkpoint_name(name); });
    return steps;
  }
  static SaveOptions with_loss(double loss) {
    return {.scores = {{"loss", loss}}, .keep_best = {2, "loss", true}};
  }
};

TEST_F(KeptInAFolder, EitherRuleKeeps) {
  save_step(1, {.keep = true});
  const double losses[] = {5, 3, 4, 2, 6};
  for (int64_t step = 2; step <= 6; ++step) save_step(step, with_loss(losses[step - 2]));
  EXPECT_THAT(steps(),
              ElementsAre("step-00000001", "step-00000003", "step-00000005", "step-00000006"));
  const Manifest manifest = read_manifest(folder_ / "step-00000003");
  EXPECT_EQ(manifest.scores.at("loss"), 3);
  EXPECT_FALSE(manifest.keep);
  EXPECT_TRUE(read_manifest(folder_ / "step-00000001").keep);
}

// Earlier checkpoints are known by their manifests.
TEST_F(KeptInAFolder, AProcessThatResumesKeepsWhatTheOneBeforeKept) {
  in_another_process([&] {
    save_step(1, {.keep = true});
    save_step(2, with_loss(1));
    save_step(3, with_loss(2));
    save_step(4, {.keep_best = {2, "loss", true}});
  });
  Checkpoint next = load(folder_);
  EXPECT_EQ(read_manifest(folder_ / "step-00000004").step, 4);
  next.run = read_manifest(folder_ / "step-00000001").run;
  save(folder_, 5, next, {.keep_best = {1, "loss", true}});
  EXPECT_THAT(steps(), ElementsAre("step-00000001", "step-00000002", "step-00000005"));
}

TEST_F(KeptInAFolder, ThoseOfAnotherRunNeitherCountNorGo) {
  in_another_process([&] {
    save_step(90, with_loss(0.1));
    save_step(91, with_loss(0.2));
    SaveOptions last = with_loss(0.3);
    last.keep = true;
    save_step(92, last);
  });
  for (int64_t step = 1; step <= 4; ++step) save_step(step, with_loss(static_cast<double>(step)));
  EXPECT_THAT(steps(), ElementsAre("step-00000001", "step-00000002", "step-00000004",
                                   "step-00000090", "step-00000091", "step-00000092"));
}

TEST_F(KeptInAFolder, AKeptOneIsSavedAgainUnderAnotherNameAndTheNewestStays) {
  save_step(1, {.keep = true});
  save_step(1, {.keep = true});
  save_step(2);
  EXPECT_THAT(steps(), ElementsAre("step-00000001-2", "step-00000002"));
}

TEST_F(KeptInAFolder, ARuleThatSaysNothingIsRefused) {
  EXPECT_THROW(save_step(1, {.keep_best = {.count = -1, .by = "loss"}}), UsageError);
  EXPECT_THROW(save_step(1, {.keep_best = {.count = 1}}), UsageError);
  EXPECT_THAT(names(), IsEmpty());
}

TEST(ManifestMarks, AreThereOnlyIfThereAreAny) {
  EXPECT_EQ(to_text({}).find("\"keep\""), std::string::npos);
  EXPECT_EQ(to_text({}).find("\"scores\""), std::string::npos);
  const Manifest manifest{.keep = true, .scores = {{"a", 0.1}, {"b", kNaN}}};
  const Manifest read = parse_manifest("manifest.json", to_text(manifest));
  EXPECT_TRUE(read.keep);
  EXPECT_EQ(read.scores.at("a"), 0.1);
  EXPECT_TRUE(std::isnan(read.scores.at("b")));
}

}  // namespace
}  // namespace demi::checkpoint
