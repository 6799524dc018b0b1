#include "lab/predict/picture_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "demi/core/error.h"
#include "lab/data/picture.h"
#include "lab/data/scaled_window.h"

namespace demi::predict {
namespace {

// (H, W, 3) to (1, 3, size, size).
at::Tensor fitted(const at::Tensor& picture, int64_t size) {
  const int64_t height = picture.size(0), width = picture.size(1);
  const int64_t least = std::min(height, width);
  const int64_t rows = size * height / least, columns = size * width / least;
  return data::scaled_window(
      picture, rows, columns,
      {.top = (rows - size) / 2, .left = (columns - size) / 2, .height = size, .width = size});
}

// A picture (1, 3, H, W) in grey, in 16.16 fixed point, rounded: a grey one keeps its bits. ITU-R
// BT.601.
at::Tensor grey_of(const at::Tensor& picture) {
  const at::Tensor p = picture.to(at::kInt);
  const at::Tensor sum =
      p.narrow(1, 0, 1) * 19595 + p.narrow(1, 1, 1) * 38470 + p.narrow(1, 2, 1) * 7471;
  return (sum + 0x8000).__rshift__(16).to(at::kByte);
}

bool is_coloured(const at::Tensor& picture) {
  return !picture.narrow(1, 0, 2).equal(picture.narrow(1, 1, 2));
}

}  // namespace

PictureInputs::PictureInputs(std::span<const Input> inputs, const workload::ModelData& model,
                             int64_t batch_size, c10::Device device)
    : inputs_(inputs),
      shape_(model.shape),
      from_photographs_(model.input.from_photographs),
      batch_size_(batch_size),
      device_(device),
      normalise_(model.input.mean, model.input.std, model.shape.channels, device),
      errors_(inputs.size()) {
  data::check_normalisation("predict.PictureInputs", model.input.mean, model.input.std,
                            shape_.channels);
}

at::Tensor PictureInputs::in_form(const at::Tensor& picture) const {
  const int64_t size = shape_.size;
  if (from_photographs_) return data::middle_picture(picture, size);
  if (picture.size(0) != size || picture.size(1) != size) ++scaled_;
  const at::Tensor result = fitted(picture, size);
  if (shape_.channels != 1) return result;
  if (is_coloured(result)) ++made_grey_;
  return grey_of(result);
}

// (1, C, size, size) uint8; undefined with an error.
at::Tensor PictureInputs::picture(std::size_t input) const {
  if (errors_[input] = inputs_[input].error; !errors_[input].empty()) return {};
  try {
    return in_form(data::read_picture(inputs_[input].name));
  } catch (const DataError& error) {
    errors_[input] = error.what();
  } catch (const c10::Error& error) {
    errors_[input] = inputs_[input].name + ": " + error.what_without_backtrace();
  }
  return {};
}

data::Batch PictureInputs::batch(int64_t epoch, int64_t position) const {
  if (epoch > 0) return {};
  const at::NoGradGuard no_grad;
  const int64_t first = position * batch_size_;
  const int64_t count = std::min(batch_size_, examples() - first);
  at::Tensor images = at::zeros({count, shape_.channels, shape_.size, shape_.size}, at::kByte)
                          .contiguous(c10::MemoryFormat::ChannelsLast);
  const bool infers = c10::InferenceMode::is_enabled();  // which a thread does not inherit
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode mode(infers);
    const at::NoGradGuard no_grad_here;
    for (int64_t i = begin; i < end; ++i) {
      const at::Tensor one = picture(static_cast<std::size_t>(first + i));
      if (one.defined()) images.narrow(0, i, 1).copy_(one);
    }
  });
  return {.input = normalise_(images.to(device_), c10::MemoryFormat::ChannelsLast),
          .target = at::arange(first, first + count, at::kLong)};
}

}  // namespace demi::predict
