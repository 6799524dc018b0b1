#include "demi/train/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <thread>

namespace demi::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ShowProgress, CountsWhatWasRightInThisEpochAndThenInTheTest) {
  std::ostringstream out;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU);
  const auto shown = [&] {
    const std::string text = out.str();
    out.str("");
    return text;
  };
  const auto step = [&](int64_t number, double accuracy, int64_t examples) {
    std::this_thread::sleep_for(std::chrono::milliseconds(110));  // as often as it redraws
    show.on_step({.step = number, .loss = 1, .accuracy = accuracy}, examples);
    return shown();
  };
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    show.on_epoch_begin(epoch, 2, 2);
    EXPECT_THAT(step(2 * epoch - 1, 0.5, 4), HasSubstr("accuracy 50.00 %  (2/4)"));
    EXPECT_THAT(step(2 * epoch, 1, 10), HasSubstr("accuracy 80.00 %  (8/10)"));
    EpochRecord record{.epoch = epoch, .examples = 10, .accuracy = 0.8};
    if (epoch == 2) record.validation = Evaluation{.accuracy = 0.25, .examples = 1200};
    show.on_epoch_end(record);
    EXPECT_THAT(shown(), HasSubstr(epoch == 2 ? "25.00 %  (300/1,200)" : "80.00 %  (8/10)"));
  }
}

TEST(ShowProgress, ALossWithoutAccuracyHasNoCounts) {
  std::ostringstream out;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU);
  show.on_epoch_begin(1, 1, 1);
  show.on_step({.step = 1, .loss = 1}, 4);
  show.on_epoch_end({.epoch = 1, .examples = 4});
  EXPECT_THAT(out.str(), Not(HasSubstr("accuracy")));
  EXPECT_THAT(out.str(), Not(HasSubstr("(")));
}

}  // namespace
}  // namespace demi::train
