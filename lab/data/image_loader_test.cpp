#include "lab/data/image_loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "demi/core/error.h"

namespace demi::data {
namespace {

/// Every pixel differs, 0 is left to the padding.
ImageSet numbered(int64_t count, int64_t channels, int64_t height, int64_t width) {
  const int64_t pixels = count * channels * height * width;
  return {.images = at::arange(pixels).remainder(255).add(1).to(at::kByte).view(
              {count, channels, height, width}),
          .labels = at::arange(count),
          .classes = {},
          .name = "numbered"};
}

TEST(ImageLoader, Normalises) {
  const ImageSet set = numbered(3, 2, 4, 5);
  const ImageLoader loader(set,
                           {.order = {.batch_size = 2}, .mean = {0.25, 0.5}, .std = {0.5, 0.125}});
  const Batch batch = loader.batch(0, 1);
  ASSERT_EQ(batch.input.sizes(), (std::vector<int64_t>{1, 2, 4, 5}));
  EXPECT_EQ(batch.input.scalar_type(), at::kFloat);
  EXPECT_EQ(batch.target.item<int64_t>(), 2);
  EXPECT_FALSE(batch.lengths.defined());
  const at::Tensor x = set.images.slice(0, 2).to(at::kDouble) / 255;
  const at::Tensor expected =
      at::cat({(x.slice(1, 0, 1) - 0.25) / 0.5, (x.slice(1, 1) - 0.5) / 0.125}, 1);
  EXPECT_LT((batch.input - expected).abs().max().item<double>(), 1e-6);
}

TEST(ImageLoader, GivesTheMemoryFormatAskedFor) {
  const ImageSet set = numbered(4, 3, 6, 6);
  const ImageLoader last(set, {.crop_padding = 1});
  EXPECT_TRUE(last.batch(0, 0).input.is_contiguous(c10::MemoryFormat::ChannelsLast));
  const ImageLoader first(set, {.crop_padding = 1, .memory_format = c10::MemoryFormat::Contiguous});
  EXPECT_TRUE(first.batch(0, 0).input.is_contiguous());
  EXPECT_TRUE(at::equal(first.batch(0, 0).input, last.batch(0, 0).input));
}

/// The window of the padded picture at (top, left), mirrored or not: what an augmented picture has
/// to be one of.
at::Tensor window(const at::Tensor& image, int64_t pad, int64_t top, int64_t left, bool flip) {
  const at::Tensor padded = at::constant_pad_nd(image, {pad, pad, pad, pad});
  const at::Tensor cut = padded.narrow(1, top, image.size(1)).narrow(2, left, image.size(2));
  return flip ? cut.flip(2) : cut;
}

TEST(ImageLoader, CropsAndFlipsEachPictureByItself) {
  constexpr int64_t kCount = 64, kPad = 1;
  const ImageSet set = numbered(kCount, 3, 4, 5);
  const ImageLoader loader(
      set,
      {.order = {.batch_size = kCount, .seed = 2}, .crop_padding = kPad, .horizontal_flip = true});
  const at::Tensor bytes = loader.batch(3, 0).input.mul(255).round().to(at::kByte);
  std::set<std::tuple<int64_t, int64_t, bool>> met;
  for (int64_t i = 0; i < kCount; ++i) {
    int found = 0;
    for (int64_t top = 0; top <= 2 * kPad; ++top)
      for (int64_t left = 0; left <= 2 * kPad; ++left)
        for (bool flip : {false, true})
          if (at::equal(window(set.images[i], kPad, top, left, flip), bytes[i])) {
            met.emplace(top, left, flip);
            ++found;
          }
    EXPECT_EQ(found, 1) << "picture " << i;
  }
  EXPECT_GE(met.size(),
            15U);  // of 18 equally likely ones; fewer in 64 draws has a probability below 1e-5
}

TEST(ImageLoader, IsAFunctionOfSeedEpochAndPosition) {
  const ImageLoaderOptions options{.order = {.batch_size = 8, .shuffle = true, .seed = 9},
                                   .crop_padding = 2,
                                   .horizontal_flip = true};
  const ImageLoader one(numbered(30, 3, 8, 8), options), other(numbered(30, 3, 8, 8), options);
  one.batch(0, 0);
  const Batch seen = one.batch(4, 3), again = other.batch(4, 3);
  EXPECT_TRUE(at::equal(seen.input, again.input));
  EXPECT_TRUE(at::equal(seen.target, again.target));
  EXPECT_FALSE(at::equal(one.batch(5, 3).input, seen.input));
}

TEST(ImageLoader, SharesTheSetsMemory) {
  const ImageSet set = numbered(4, 1, 2, 2);
  const ImageLoader loader(set, {});
  EXPECT_EQ(loader.set().images.const_data_ptr(), set.images.const_data_ptr());
}

TEST(ImageLoader, RefusesWhatDoesNotFit) {
  const ImageSet set = numbered(4, 3, 2, 2);
  ImageSet fp32 = set, short_of_labels = set;
  fp32.images = set.images.to(at::kFloat);
  short_of_labels.labels = at::arange(3);
  EXPECT_THROW(ImageLoader(fp32, {}), UsageError);
  EXPECT_THROW(ImageLoader(short_of_labels, {}), UsageError);
  EXPECT_THROW(ImageLoader(set, {.mean = {0.5}}), UsageError);
  EXPECT_THROW(ImageLoader(set, {.std = {1, 1, 0}}), UsageError);
  EXPECT_THROW(ImageLoader(set, {.mean = {0, NAN, 0}}), UsageError);
  EXPECT_THROW(ImageLoader(set, {.std = {1, INFINITY, 1}}), UsageError);
  EXPECT_THROW(ImageLoader(set, {.std = {1, NAN, 1}}), UsageError);
  EXPECT_THROW(ImageLoader(set, {.crop_padding = -1}), UsageError);
  ImageSet of_three = set, negative = set;
  of_three.classes = {"a", "b", "c"};  // labels are 0 to 3
  negative.labels = at::tensor({0, 1, -1, 2}, at::kLong);
  EXPECT_THROW(ImageLoader(of_three, {}), UsageError);
  EXPECT_THROW(ImageLoader(negative, {}), UsageError);
}

}  // namespace
}  // namespace demi::data
