#include "lab/data/normalise.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "demi/core/error.h"

namespace demi::data {
namespace {

/// (1, C, 1, 1) fp32.
at::Tensor per_channel(const std::vector<double>& values, c10::Device device) {
  return at::tensor(values, at::kFloat).view({1, -1, 1, 1}).to(device);
}

}  // namespace

void check_normalisation(const char* where, const std::vector<double>& mean,
                         const std::vector<double>& std, int64_t channels) {
  const auto fail = [&](std::string_view what, const std::string& seen,
                        const std::string& accepted) {
    refuse({.where = where, .what = what, .seen = seen, .accepted = accepted});
  };
  for (const auto* values : {&mean, &std})
    if (!values->empty() && values->size() != static_cast<std::size_t>(channels))
      fail("mean and std need one value a channel", fmt::to_string(values->size()),
           fmt::to_string(channels));
  for (double value : mean)
    if (!std::isfinite(value)) fail("mean must be a number", fmt::to_string(value), "finite");
  for (double value : std)
    if (!(value > 0 && std::isfinite(value)))
      fail("std must be above 0", fmt::to_string(value), "> 0, finite");
}

Normalise::Normalise(const std::vector<double>& mean, const std::vector<double>& std,
                     int64_t channels, c10::Device device) {
  const auto count = static_cast<std::size_t>(channels);
  std::vector<double> scale(count), shift(count);
  for (std::size_t c = 0; c < count; ++c) {
    const double deviation = std.empty() ? 1.0 : std[c];
    scale[c] = 1.0 / (255.0 * deviation);
    shift[c] = mean.empty() ? 0.0 : -mean[c] / deviation;
  }
  scale_ = per_channel(scale, device);
  shift_ = per_channel(shift, device);
}

at::Tensor Normalise::operator()(const at::Tensor& images, c10::MemoryFormat format) const {
  at::Tensor input = at::empty(images.sizes(), images.options().dtype(at::kFloat), format);
  at::mul_out(input, images, scale_);
  return input.add_(shift_);
}

}  // namespace demi::data
