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
      epoch_(options_.device),
      normalise_(std::make_shared<Normalise>(options_.mean, options_.std, set_.images.size(1),
                                             options_.device)) {
  set_.images = set_.images.to(options_.device).contiguous();
  set_.labels = set_.labels.to(options_.device, at::kLong);
  rows_ = at::arange(set_.images.size(2), at::kLong).unsqueeze(1).to(options_.device);
  columns_ = at::arange(set_.images.size(3), at::kLong).unsqueeze(0).to(options_.device);
}

// The choice of a batch, on the CPU.
at::Tensor ImageLoader::drawn(const at::Tensor& pictures, int64_t epoch, int64_t position) const {
  if (!augments()) return pictures.unsqueeze(1);
  const int64_t windows = 2 * options_.crop_padding + 1;
  const int64_t first = order_.place(position);  // so that it depends on no number of ranks
  at::Tensor all = at::empty({pictures.numel(), 4}, at::kLong);
  const int64_t* picture = pictures.const_data_ptr<int64_t>();
  int64_t* out = all.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < pictures.numel(); ++i) {
    const auto bits = random_bits(options_.order.seed, epoch, first + i, Purpose::augment);
    *out++ = picture[i];
    *out++ = bounded(bits[0], windows);
    *out++ = bounded(bits[1], windows);
    *out++ = options_.horizontal_flip ? static_cast<int64_t>(bits[2] & 1) : 0;
  }
  return all;
}

at::Tensor ImageLoader::drawn_in(int64_t epoch) const {
  std::vector<at::Tensor> all;
  for (int64_t position = 0; position < batches(); ++position)
    all.push_back(drawn(order_.indices(epoch, position), epoch, position));
  return at::cat(all);
}

at::Tensor ImageLoader::augmented(const at::Tensor& images, const at::Tensor& choice) const {
  const int64_t pad = options_.crop_padding;
  const int64_t count = images.size(0), height = images.size(2), width = images.size(3);
  const auto column = [&](int64_t i) { return choice.select(1, i).unsqueeze(1).unsqueeze(2); };
  // The flat index, for each picture, of every pixel that it takes out of the padded one. Mirrored,
  // x becomes width - 1 - x.
  const at::Tensor y = (column(1) + rows_) * (width + 2 * pad);                        // (N, H, 1)
  const at::Tensor x = column(2) + columns_ + column(3) * (width - 1 - columns_ * 2);  // (N, 1, W)
  const at::Tensor pixel = (y + x).view({count, 1, height * width});
  const at::Tensor padded = pad > 0 ? at::constant_pad_nd(images, {pad, pad, pad, pad}) : images;
  return padded.flatten(2)
      .gather(2, pixel.expand({count, images.size(1), height * width}))
      .view_as(images);
}

Batch ImageLoader::batch_of(const at::Tensor& choice) const {
  const at::NoGradGuard no_grad;
  const at::Tensor pictures = choice.select(1, 0);
  at::Tensor images = set_.images.index_select(0, pictures);
  if (augments()) images = augmented(images, choice);
  return {.input = (*normalise_)(images, options_.memory_format),
          .target = set_.labels.index_select(0, pictures),
          .lengths = {}};
}

Batch ImageLoader::batch(int64_t epoch, int64_t position) const {
  return batch_of(drawn(order_.indices(epoch, position), epoch, position)
                      .to(options_.device, /*non_blocking=*/true));
}

at::Tensor ImageLoader::choice(int64_t epoch, int64_t position) const {
  if (options_.device.is_cpu()) return {};
  const int64_t count = order_.indices(epoch, position).numel();
  return epoch_.rows(epoch, order_.batch_start(position), count,
                     [this](int64_t of) { return drawn_in(of); });
}

Batch ImageLoader::chosen(const at::Tensor& choice) const {
  return options_.device.is_cpu() ? Loader::chosen(choice) : batch_of(choice);
}

}  // namespace demi::data
