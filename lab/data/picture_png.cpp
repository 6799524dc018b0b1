// PNG by libpng's simplified interface, if it was there at the build.
#include "lab/data/picture_decoder.h"

#ifdef DEMI_HAVE_PNG

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <png.h>

namespace demi::data {
namespace {

struct Image : png_image {
  Image() : png_image{} { version = PNG_IMAGE_VERSION; }
  ~Image() { png_image_free(this); }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;
};

}  // namespace

// Read with its transparency, which is then left out: what lies under it stays as it is.
Decoded decode_png(std::string_view bytes) {
  Image image;
  if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()))
    return {.picture = {}, .damage = image.message};
  const int64_t height = image.height, width = image.width;
  if (height * width > kMostPixels)
    return {.picture = {}, .damage = fmt::format("{} x {} pixels", width, height)};
  image.format = PNG_FORMAT_RGBA;
  const at::Tensor pixels = at::empty({height, width, 4}, at::kByte);
  if (!png_image_finish_read(&image, nullptr, pixels.mutable_data_ptr<uint8_t>(), 0, nullptr))
    return {.picture = {}, .damage = image.message};
  return {.picture = pixels.narrow(2, 0, 3).contiguous(), .damage = {}};
}

bool has_png() { return true; }

}  // namespace demi::data

#else

namespace demi::data {

Decoded decode_png(std::string_view) { no_decoder("PNG", "libpng-dev"); }
bool has_png() { return false; }

}  // namespace demi::data

#endif
