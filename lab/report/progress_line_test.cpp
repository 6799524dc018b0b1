#include <gtest/gtest.h>

#include <cmath>

#include "lab/report/progress.h"
#include "lab/report/progress_testing.h"
#include "lab/report/terminal.h"

namespace demi::report {
namespace {

std::string line_of(std::size_t width, bool utf8 = true) {
  return progress_line(full(), std::chrono::duration<double>(41), width, utf8, false, true);
}

TEST(ProgressLine, HoldsEverythingWhereThereIsRoom) {
  EXPECT_EQ(progress_line(full(), std::chrono::duration<double>(41), 0, true, false, false),
            "bf16  epoch 2/3   60 %  loss 0.3120  accuracy 88.91 %  (32,541/36,600)  lr 2.80e-03  "
            "scale 65536  3,214 images/s  1.20 GB  0:41 left");
}

TEST(ProgressLine, ASmallLossKeepsItsDigits) {
  const auto shown = [](double loss) {
    ProgressState state = full();
    state.loss = loss;
    return progress_line(state, std::nullopt, 0, true, false, false);
  };
  EXPECT_NE(shown(6.0264e-9).find("loss 6.026e-09 "), std::string::npos);
  EXPECT_NE(shown(0.00100).find("loss 0.0010 "), std::string::npos);
  EXPECT_NE(shown(0).find("loss 0.0000 "), std::string::npos);
}

TEST(ProgressLine, NeverExceedsTheWidthAndGivesUpTheLeastFirst) {
  for (std::size_t width = 1; width <= 220; ++width)
    EXPECT_LE(display_width(line_of(width)), width);
  EXPECT_EQ(line_of(40).find("scale"), std::string::npos);
  EXPECT_EQ(line_of(40), "bf16  2/3   60 %  loss 0.3120  0:41 left");
  EXPECT_NE(line_of(200).find("━"), std::string::npos);
  for (const char c : line_of(200, false)) EXPECT_LT(static_cast<unsigned char>(c), 0x80);
}

TEST(ProgressLine, ALossThatIsNanIsSaid) {
  ProgressState state = full();
  state.loss = std::nan("");
  EXPECT_NE(progress_line(state, {}, 0, true, false, false).find("loss nan"), std::string::npos);
}

}  // namespace
}  // namespace demi::report
