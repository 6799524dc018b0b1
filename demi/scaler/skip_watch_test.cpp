#include "demi/scaler/skip_watch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace demi {
namespace {

TEST(SkipWatch, CountsAlikeOnHostAndDevice) {
  SkipWatch host, device;
  int64_t expected = 0, all = 0;
  for (const float skipped : {1.F, 1.F, 0.F, 1.F, 1.F, 1.F}) {
    expected = skipped != 0 ? expected + 1 : 0;
    host.count(skipped != 0, 2);
    device.count(at::scalar_tensor(skipped), at::scalar_tensor(2.F));
    EXPECT_EQ(host.latest().skips_in_a_row, expected);
    EXPECT_EQ(device.latest().skips_in_a_row, expected);
    EXPECT_EQ(device.latest().scale, 2);
    all += skipped != 0;
    EXPECT_EQ(host.latest().skips, all);
    EXPECT_EQ(device.latest().skips, all);
  }
}

}  // namespace
}  // namespace demi
