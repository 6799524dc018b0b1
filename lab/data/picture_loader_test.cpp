#include "lab/data/picture_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "demi/core/error.h"
#include "demi/data/prefetch_loader.h"
#include "lab/data/picture_testing.h"
#include "lab/data/scaled_window.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using files::contents;
using ::testing::HasSubstr;

// Red rises along the width, green along the height, blue is the picture's number.
at::Tensor ramp(int64_t height, int64_t width, int64_t number) {
  const at::Tensor x = at::arange(width).mul(255).div(width - 1, "floor");
  const at::Tensor y = at::arange(height).mul(255).div(height - 1, "floor");
  return at::stack({x.view({1, width}).expand({height, width}),
                    y.view({height, 1}).expand({height, width}),
                    at::full({height, width}, number, at::kLong)},
                   2)
      .to(at::kByte);
}

// Six PNGs, which keep every pixel, of other sizes, in two classes.
class PictureLoaderTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_write_png()) GTEST_SKIP() << "built without libpng";
    for (int64_t i = 0; i < 6; ++i)
      folder_.write((i < 2 ? "a/" : "b/") + std::to_string(i) + ".png",
                    png_of(ramp(60 + 8 * i, 100 - 6 * i, 10 * i)));
  }

  static PictureLoaderOptions plain(int64_t size) {
    return {.order = {.batch_size = 4}, .size = size, .mean = {}, .std = {}};
  }
  static PictureLoaderOptions augmented(uint64_t seed) {
    PictureLoaderOptions options = plain(16);
    options.order.shuffle = true;
    options.order.seed = seed;
    options.least_area = 0.08;
    options.horizontal_flip = true;
    return options;
  }
  PictureLoader loader(const PictureLoaderOptions& options) const {
    return {read_picture_folder(folder_.path()), options};
  }

  TestFolder folder_;
};

TEST_F(PictureLoaderTest, TestsOnTheMiddleOfThePicture) {
  const Batch batch = loader(plain(28)).batch(0, 0);
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{4, 3, 28, 28}));
  EXPECT_EQ(batch.input.scalar_type(), at::kFloat);
  EXPECT_TRUE(batch.input.is_contiguous(c10::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({0, 0, 1, 1}, at::kLong)));
  // 60 x 100 becomes 32 x 53, of which rows 2 to 30 and columns 12 to 40 are kept: pixel i is for
  // the place (i + 1/2) of the scaled picture, and the ramp is a straight line over its places.
  const at::Tensor row = (at::arange(28) + 2 + 0.5) / 32 * 60 - 0.5;
  const at::Tensor column = (at::arange(28) + 12 + 0.5) / 53 * 100 - 0.5;
  const auto expect_ramp = [&](const at::Tensor& seen, const at::Tensor& expected) {
    EXPECT_LT((seen - expected).abs().max().item<double>(), 1.5 / 255);
  };
  expect_ramp(batch.input[0][1], (row / 59).view({28, 1}).expand({28, 28}));
  expect_ramp(batch.input[0][0], (column / 99).view({1, 28}).expand({28, 28}));
  for (int64_t i = 0; i < 4; ++i)
    expect_ramp(batch.input[i][2], at::full({28, 28}, static_cast<double>(i) * 10 / 255));
}

TEST_F(PictureLoaderTest, NormalisesAsImageNet) {
  PictureLoaderOptions options;
  options.order.batch_size = 1;
  options.size = 8;
  const Batch seen = loader(options).batch(0, 3);
  const Batch plain_pixels = loader([&] {
                               options.mean = options.std = {};
                               return options;
                             }())
                                 .batch(0, 3);
  const double blue = (plain_pixels.input[0][2][0][0].item<double>() - 0.406) / 0.225;
  EXPECT_NEAR(seen.input[0][2][0][0].item<double>(), blue, 1e-5);
  EXPECT_NEAR(blue, (30.0 / 255 - 0.406) / 0.225, 0.02);
}

// From the ramps the window can be read off: where it begins, how far it goes, whether mirrored.
TEST_F(PictureLoaderTest, TrainsOnRandomWindows) {
  const PictureLoader training = loader(augmented(3));
  int mirrored = 0, total = 0;
  double narrowest = 1, widest = 0;
  for (int64_t epoch = 0; epoch < 30; ++epoch)
    for (int64_t position = 0; position < training.batches(); ++position) {
      const at::Tensor input = training.batch(epoch, position).input;
      for (int64_t i = 0; i < input.size(0); ++i, ++total) {
        const at::Tensor across = input[i][0].mean(0), down = input[i][1].mean(1);
        const double span = (across[15] - across[0]).item<double>();
        mirrored += span < 0;
        EXPECT_GT((down[15] - down[0]).item<double>(), 0) << "never upside down";
        narrowest = std::min(narrowest, std::fabs(span));
        widest = std::max(widest, std::fabs(span));
      }
    }
  EXPECT_EQ(total, 180);
  EXPECT_NEAR(mirrored, 90, 34) << "five standard deviations of a fair coin";
  EXPECT_LT(narrowest, 0.4);
  EXPECT_GT(widest, 0.8);
}

TEST_F(PictureLoaderTest, IsAFunctionOfSeedEpochAndPosition) {
  const PictureLoader one = loader(augmented(3)), other = loader(augmented(4));
  const auto same =
      std::make_shared<PictureLoader>(read_picture_folder(folder_.path()), augmented(3));
  const PrefetchLoader workers(same, {.workers = 2, .depth = 3});
  for (int64_t epoch = 0; epoch < 2; ++epoch)
    for (int64_t position = 0; position < 2; ++position) {
      const Batch expected = one.batch(epoch, position), seen = workers.batch(epoch, position);
      EXPECT_TRUE(at::equal(seen.input, expected.input));
      EXPECT_TRUE(at::equal(seen.target, expected.target));
    }
  EXPECT_FALSE(at::equal(one.batch(0, 0).input, other.batch(0, 0).input)) << "seed";
  EXPECT_FALSE(at::equal(one.batch(0, 0).input, one.batch(1, 0).input)) << "epoch";
}

TEST_F(PictureLoaderTest, WindowsFollowTheSeedAndThePlaceInTheEpoch) {
  const TestFolder twins;
  for (const char* name : {"a/0.png", "a/1.png"}) twins.write(name, png_of(ramp(80, 90, 0)));
  PictureLoaderOptions options = augmented(3);
  options.order = {.batch_size = 1, .seed = 3};
  options.horizontal_flip = false;
  const auto input = [&](int64_t position) {
    return PictureLoader(read_picture_folder(twins.path()), options).batch(0, position).input;
  };
  const at::Tensor first = input(0);
  EXPECT_FALSE(at::equal(first, input(1))) << "the same picture in the next batch";
  options.order.seed = 4;
  EXPECT_FALSE(at::equal(first, input(0))) << "the same order with another seed";
  for (options.order.seed = 0; options.order.seed < 20; ++options.order.seed) {
    const at::Tensor red = input(0)[0][0].mean(0);
    EXPECT_GT((red[15] - red[0]).item<double>(), 0) << "not mirrored unless asked";
  }
}

TEST_F(PictureLoaderTest, ADamagedFileIsNamedFromAnyThread) {
  folder_.write("b/9.png", png_of(ramp(40, 40, 0)).substr(0, 80));
  const auto all = std::make_shared<PictureLoader>(read_picture_folder(folder_.path()), plain(16));
  for (const bool workers : {false, true}) {
    std::string said;
    try {
      if (workers)
        PrefetchLoader(all, {.workers = 1, .depth = 1}).batch(0, 1);
      else
        all->batch(0, 1);
    } catch (const DataError& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr((folder_ / "b/9.png").string()));
    EXPECT_THAT(said, HasSubstr("demi data check FOLDER lists all"));
  }
}

TEST_F(PictureLoaderTest, OptionsOutOfRangeAreRefused) {
  PictureLoaderOptions options = plain(0);
  EXPECT_THROW(loader(options), UsageError);
  options = plain(8);
  options.least_area = 0;
  EXPECT_THROW(loader(options), UsageError);
  options = plain(8);
  options.mean = {0.5};
  EXPECT_THROW(loader(options), UsageError);
}

TEST_F(PictureLoaderTest, MakesTheSameBatchInInferenceMode) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const PictureLoader pictures = loader(plain(28));
  const Batch expected = pictures.batch(0, 0);
  {
    const c10::InferenceMode mode;
    const Batch batch = pictures.batch(0, 0);
    EXPECT_TRUE(batch.input.is_inference());
    EXPECT_TRUE(at::equal(batch.input, expected.input));
  }
  at::set_num_threads(threads);
}

// torchvision's transforms were run on pictures of these sizes (tests/fixtures/pictures/make.py).
TEST(MiddleOfAPicture, IsTheWindowOfTorchvision) {
  std::ifstream table(fixture_folder() / "windows.txt");
  int cases = 0;
  for (int64_t size, height, width, rows, columns, top, left;
       table >> size >> height >> width >> rows >> columns >> top >> left; ++cases) {
    const Middle seen = middle_of(height, width, size);
    EXPECT_TRUE(seen.height == rows && seen.width == columns && seen.window.top == top &&
                seen.window.left == left && seen.window.height == size && seen.window.width == size)
        << height << " x " << width << " for " << size << ": " << seen.height << " x " << seen.width
        << " from " << seen.window.top << ", " << seen.window.left;
  }
  EXPECT_EQ(cases, 352);
}

// Pillow and LibTorch round the weights of bilinear scaling to 8 bits in their own ways.
TEST(MiddleOfAPicture, HasThePixelsOfTorchvision) {
  if (!can_write_png()) GTEST_SKIP() << "built without libpng";
  const auto middles = fixture_pictures("middles.txt");
  ASSERT_EQ(middles.size(), 4U);
  for (const auto& [name, expected] : middles) {
    const TestFolder folder;
    folder.write("class/" + name, contents(fixture_folder() / name));
    const PictureLoader loader(read_picture_folder(folder.path()),
                               {.size = 28, .mean = {}, .std = {}});
    const at::Tensor seen = loader.batch(0, 0).input[0].permute({1, 2, 0}).mul(255).round();
    EXPECT_LE((seen - expected).abs().max().item<double>(), 1) << name;
  }
}

TEST(RandomWindow, KeepsItsAreaAndItsRatio) {
  double least = 1, most = 0;
  for (int64_t item = 0; item < 500; ++item) {
    const Window w = random_window(300, 400, 0.25, 1, 0, item);
    EXPECT_GE(w.top, 0);
    EXPECT_GE(w.left, 0);
    EXPECT_LE(w.top + w.height, 300);
    EXPECT_LE(w.left + w.width, 400);
    const double share = static_cast<double>(w.height * w.width) / (300 * 400);
    const double ratio = static_cast<double>(w.width) / static_cast<double>(w.height);
    EXPECT_GT(ratio, 0.74);
    EXPECT_LT(ratio, 1.35);
    least = std::min(least, share);
    most = std::max(most, share);
  }
  EXPECT_NEAR(least, 0.25, 0.02);
  EXPECT_GT(most, 0.9);
}

// About 4 of 10 tries do not fit a square picture; ten of them in a row hardly ever.
TEST(RandomWindow, TriesAnotherOneWhereOneDoesNotFit) {
  int whole = 0;
  for (int64_t item = 0; item < 500; ++item)
    whole += random_window(300, 300, 0.5, 1, 0, item).height == 300;
  EXPECT_LT(whole, 20);
}

TEST(RandomWindow, OfAVeryLongPictureIsItsMiddle) {
  const Window wide = random_window(10, 1000, 0.9, 0, 0, 0);
  EXPECT_EQ(wide.height, 10);
  EXPECT_EQ(wide.width, 13);
  EXPECT_EQ(wide.left, 493);
  const Window high = random_window(1000, 9, 0.9, 0, 0, 0);
  EXPECT_EQ(high.width, 9);
  EXPECT_EQ(high.height, 12);
  EXPECT_EQ(high.top, 494);
}

}  // namespace
}  // namespace demi::data
