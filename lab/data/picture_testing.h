#pragma once

// Small pictures for tests, written by the libraries themselves, and those of the fixtures.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/source_dir_testing.h"

#ifdef DEMI_HAVE_JPEG
#include <jpeglib.h>
#endif
#ifdef DEMI_HAVE_PNG
#include <png.h>
#endif

namespace demi::data {

inline std::filesystem::path fixture_folder() { return source_dir() / "tests/fixtures/pictures"; }

/// Lines "name height width digits" of a file that its make.py wrote, as (H, W, 3) uint8.
inline std::vector<std::pair<std::string, at::Tensor>> fixture_pictures(const std::string& file) {
  std::ifstream in(fixture_folder() / file);
  std::vector<std::pair<std::string, at::Tensor>> pictures;
  std::string name, digits;
  for (int64_t height = 0, width = 0; in >> name >> height >> width >> digits;) {
    at::Tensor pixels = at::empty({height, width, 3}, at::kByte);
    for (int64_t i = 0; i < pixels.numel(); ++i)
      pixels.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(
          std::stoi(digits.substr(2 * static_cast<std::size_t>(i), 2), nullptr, 16));
    pictures.emplace_back(name, pixels);
  }
  return pictures;
}

#ifdef DEMI_HAVE_JPEG
constexpr bool can_write_jpeg() { return true; }

/// (H, W, C) uint8, of 1 (grey), 3 (RGB) or 4 (CMYK, stored as given) channels, in quality 95
/// without subsampling of colour.
inline std::string jpeg_of(const at::Tensor& picture) {
  const at::Tensor pixels = picture.contiguous();
  const auto channels = static_cast<int>(pixels.size(2));
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr failure{};
  jpeg.err = jpeg_std_error(&failure);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_height = static_cast<JDIMENSION>(pixels.size(0));
  jpeg.image_width = static_cast<JDIMENSION>(pixels.size(1));
  jpeg.input_components = channels;
  jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 95, TRUE);
  jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor = 1;
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<uint8_t*>(pixels.const_data_ptr<uint8_t>()) +
                int64_t{jpeg.next_scanline} * pixels.size(1) * channels;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string result(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);
  return result;
}
#else
constexpr bool can_write_jpeg() { return false; }
inline std::string jpeg_of(const at::Tensor&) { return {}; }
#endif

#ifdef DEMI_HAVE_PNG
constexpr bool can_write_png() { return true; }

/// (H, W, 3) RGB or (H, W, 4) RGBA, uint8.
inline std::string png_of(const at::Tensor& picture) {
  const at::Tensor pixels = picture.contiguous();
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(pixels.size(0));
  image.width = static_cast<png_uint_32>(pixels.size(1));
  image.format = pixels.size(2) == 4 ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string result(size, '\0');
  png_image_write_to_memory(&image, result.data(), &size, 0, pixels.const_data_ptr<uint8_t>(), 0,
                            nullptr);
  result.resize(size);
  return result;
}
#else
constexpr bool can_write_png() { return false; }
inline std::string png_of(const at::Tensor&) { return {}; }
#endif

}  // namespace demi::data
