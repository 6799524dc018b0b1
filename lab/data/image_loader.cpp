#include "lab/data/image_loader.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <utility>

#include "demi/core/error.h"
#include "demi/data/random_bits.h"
#include "demi/data/require.h"
#include "lab/data/normalise.h"

namespace demi::data {
namespace {

/// A set that names no classes may have any number of them.
void check_labels(const ImageSet& set) {
  constexpr Require require_images{"data.ImageLoader"};
  if (set.labels.numel() == 0) return;
  const auto [least, most] = at::aminmax(set.labels);
  const auto classes = set.classes.empty() ? INT64_MAX : static_cast<int64_t>(set.classes.size());
  for (const int64_t label : {least.item<int64_t>(), most.item<int64_t>()})
    require_images(label >= 0 && label < classes, "a label is out of range", label,
                   fmt::format("0 to {}", classes - 1));
}

void check(const ImageSet& set, const ImageLoaderOptions& options) {
  const auto fail = [](std::string_view what, const std::string& seen,
                       const std::string& accepted) {
    refuse({.where = "data.ImageLoader", .what = what, .seen = seen, .accepted = accepted});
  };
  if (set.images.dim() != 4 || set.images.scalar_type() != at::kByte)
    fail("images have another form",
         fmt::format("{} dimensions of {}", set.images.dim(), toString(set.images.scalar_type())),
         "(N, C, H, W) uint8");
  if (set.labels.dim() != 1 || set.labels.size(0) != set.images.size(0))
    fail("labels and images differ in number", fmt::format("{} labels", set.labels.numel()),
         fmt::format("{}", set.images.size(0)));
  check_labels(set);
  check_normalisation("data.ImageLoader", options.mean, options.std, set.images.size(1));
  if (options.crop_padding < 0)
    fail("crop_padding is negative", fmt::to_string(options.crop_padding), ">= 0");
}

}  // namespace

ImageLoader::ImageLoader(ImageSet set, ImageLoaderOptions options)
    : set_((check(set, options), std::move(set))),
      options_(std::move(options)),
      order_(set_.images.size(0), options_.order),
      normalise_(std::make_shared<Normalise>(options_.mean, options_.std, set_.images.size(1),
                                             options_.device)) {
  set_.images = set_.images.to(options_.device).contiguous();
  set_.labels = set_.labels.to(options_.device, at::kLong);
}

at::Tensor ImageLoader::augmented(const at::Tensor& images, int64_t epoch, int64_t position) const {
  const int64_t pad = options_.crop_padding;
  const int64_t count = images.size(0), height = images.size(2), width = images.size(3);
  const int64_t padded_width = width + 2 * pad;
  const int64_t first = order_.place(position);  // so that it depends on no number of ranks
  // The flat index, for each picture, of every pixel that it takes out of the padded one.
  at::Tensor rows = at::empty({count, height, 1}, at::kLong);
  at::Tensor columns = at::empty({count, 1, width}, at::kLong);
  int64_t* row = rows.mutable_data_ptr<int64_t>();
  int64_t* column = columns.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = random_bits(options_.order.seed, epoch, first + i, Purpose::augment);
    const int64_t top = bounded(bits[0], 2 * pad + 1), left = bounded(bits[1], 2 * pad + 1);
    const bool flip = options_.horizontal_flip && (bits[2] & 1) != 0;
    for (int64_t y = 0; y < height; ++y) *row++ = (top + y) * padded_width;
    for (int64_t x = 0; x < width; ++x) *column++ = left + (flip ? width - 1 - x : x);
  }
  const auto to_device = [&](const at::Tensor& t) {
    return t.to(options_.device, /*non_blocking=*/true);
  };
  const at::Tensor pixel = (to_device(rows) + to_device(columns)).view({count, 1, height * width});
  const at::Tensor padded = pad > 0 ? at::constant_pad_nd(images, {pad, pad, pad, pad}) : images;
  return padded.flatten(2)
      .gather(2, pixel.expand({count, images.size(1), height * width}))
      .view_as(images);
}

Batch ImageLoader::batch(int64_t epoch, int64_t position) const {
  const at::NoGradGuard no_grad;
  const at::Tensor chosen =
      order_.indices(epoch, position).to(options_.device, /*non_blocking=*/true);
  at::Tensor images = set_.images.index_select(0, chosen);
  if (options_.crop_padding > 0 || options_.horizontal_flip)
    images = augmented(images, epoch, position);
  at::Tensor input = (*normalise_)(images, options_.memory_format);
  return {.input = input, .target = set_.labels.index_select(0, chosen), .lengths = {}};
}

}  // namespace demi::data
