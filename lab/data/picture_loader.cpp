#include "lab/data/picture_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <string>

#include "demi/core/error.h"
#include "demi/data/random_bits.h"
#include "lab/data/normalise.h"
#include "lab/data/picture.h"
#include "lab/data/scaled_window.h"
#include "lab/files/damage.h"

namespace demi::data {
namespace {

PictureLoaderOptions checked(PictureLoaderOptions options) {
  constexpr const char* kWhere = "data.PictureLoader";
  check_normalisation(kWhere, options.mean, options.std, 3);
  const auto require = [](bool right, std::string_view what, const std::string& seen,
                          std::string_view accepted) {
    if (!right) refuse({.where = kWhere, .what = what, .seen = seen, .accepted = accepted});
  };
  require(options.size >= 1, "size is too small", fmt::to_string(options.size), ">= 1");
  require(options.least_area > 0 && options.least_area <= 1, "least_area is out of range",
          fmt::to_string(options.least_area), "above 0, up to 1");
  return options;
}

}  // namespace

PictureLoader::PictureLoader(PictureFolder folder, PictureLoaderOptions options)
    : folder_(std::move(folder)),
      options_(checked(std::move(options))),
      order_(static_cast<int64_t>(folder_.files.size()), options_.order),
      normalise_(std::make_shared<Normalise>(options_.mean, options_.std, 3, options_.device)) {
  folder_.labels = folder_.labels.to(options_.device);
}

// (1, 3, size, size) uint8
at::Tensor PictureLoader::picture(int64_t file, int64_t epoch, int64_t item) const {
  // If one is damaged others may be: each would end another run.
  const at::Tensor whole =
      read_picture(folder_.files[static_cast<std::size_t>(file)], [](files::Damage damage) {
        const std::string advice =
            std::string(damage.advice) + "; demi data check FOLDER lists all that are damaged";
        damage.advice = advice;
        files::report_damage(damage);
      });
  const uint64_t seed = options_.order.seed;
  at::Tensor result;
  if (options_.least_area < 1) {
    const Window w =
        random_window(whole.size(0), whole.size(1), options_.least_area, seed, epoch, item);
    result = resized(whole.narrow(0, w.top, w.height).narrow(1, w.left, w.width), options_.size,
                     options_.size);
  } else {
    result = middle_picture(whole, options_.size);
  }
  const bool flip =
      options_.horizontal_flip && (random_bits(seed, epoch, item, Purpose::augment)[2] & 1) != 0;
  return flip ? result.flip(3) : result;
}

Batch PictureLoader::batch(int64_t epoch, int64_t position) const {
  const at::NoGradGuard no_grad;
  const at::Tensor chosen = order_.indices(epoch, position);
  const int64_t* file = chosen.const_data_ptr<int64_t>();
  const int64_t first = order_.place(position), count = chosen.numel();
  at::Tensor images = at::empty({count, 3, options_.size, options_.size}, at::kByte,
                                c10::MemoryFormat::ChannelsLast);
  const bool infers = c10::InferenceMode::is_enabled();  // which a thread does not inherit
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode mode(infers);
    const at::NoGradGuard no_grad_here;
    for (int64_t i = begin; i < end; ++i) {
      images.narrow(0, i, 1).copy_(picture(file[i], epoch, first + i));
    }
  });
  return {.input = (*normalise_)(images.to(options_.device), c10::MemoryFormat::ChannelsLast),
          .target = folder_.labels.index_select(0, chosen.to(options_.device)),
          .lengths = {}};
}

}  // namespace demi::data
