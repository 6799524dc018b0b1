#include "lab/data/scaled_window.h"

#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace demi::data {
namespace {

at::Tensor random_picture(int64_t height, int64_t width) {
  torch::manual_seed(height * 10007 + width);
  return torch::randint(256, {height, width, 3}, torch::kByte);
}

// Truth: all of it scaled by LibTorch's operator, then cut. The last five are cut first.
TEST(ScaledWindow, HasThePixelsOfTheWholePictures) {
  const std::pair<int64_t, int64_t> pictures[] = {
      {1, 1}, {480, 640}, {640, 17}, {28, 28}, {2, 901}, {7, 5000}, {5000, 9}, {1, 400}, {900, 2}};
  constexpr int64_t kSize = 224;
  for (const auto& [height, width] : pictures) {
    const at::Tensor picture = random_picture(height, width);
    const int64_t least = std::min(height, width);
    const int64_t rows = kSize * height / least, columns = kSize * width / least;
    const at::Tensor all = resized(picture, rows, columns);
    for (const Window& w : {Window{(rows - kSize) / 2, (columns - kSize) / 2, kSize, kSize},
                            Window{0, 0, 50, 60}, Window{rows - 9, columns - 200, 9, 200}}) {
      const at::Tensor whole = all.narrow(2, w.top, w.height).narrow(3, w.left, w.width);
      const at::Tensor got = scaled_window(picture, rows, columns, w);
      ASSERT_EQ(got.sizes(), whole.sizes());
      EXPECT_LE((got.to(torch::kInt) - whole.to(torch::kInt)).abs().max().item<int>(), 1)
          << height << " x " << width;
      if (at::get_cpu_capability() != "DEFAULT") {
        EXPECT_TRUE(got.equal(whole)) << height << " x " << width;
      }
    }
  }
}

// All of it would be 12 GB.
TEST(ScaledWindow, OfALongNarrowPictureTakesLittle) {
  for (const bool is_wide : {true, false}) {
    const at::Tensor long_one = random_picture(1, 60000);
    const at::Tensor picture = is_wide ? long_one : long_one.transpose(0, 1).contiguous();
    const int64_t scaled = int64_t{224} * 60000;
    const Window window{is_wide ? 0 : (scaled - 224) / 2, is_wide ? (scaled - 224) / 2 : 0, 224,
                        224};
    const at::Tensor got = is_wide ? scaled_window(picture, 224, scaled, window)
                                   : scaled_window(picture, scaled, 224, window);
    EXPECT_EQ(got.sizes(), at::IntArrayRef({1, 3, 224, 224}));
    // 224 pixels of the scaled one are a single one of the picture, and what lies around it.
    const at::Tensor near = long_one.narrow(1, 29990, 20);
    EXPECT_GE(got.min().item<int>(), near.min().item<int>());
    EXPECT_LE(got.max().item<int>(), near.max().item<int>());
  }
}

}  // namespace
}  // namespace demi::data
