// JPEG by libjpeg (libjpeg-turbo is its fast form), if it was there at the build.
#include "lab/data/picture.h"

#ifdef DEMI_HAVE_JPEG

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <csetjmp>
#include <cstdio>
// libjpeg's headers need <cstdio> before them, and this order.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

namespace demi::data {
namespace {

// libjpeg calls back on an error and must not be returned to: out by longjmp, over its C frames.
struct Failure : jpeg_error_mgr {
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void leave(j_common_ptr jpeg) {
  auto* failure = static_cast<Failure*>(jpeg->err);
  failure->format_message(jpeg, failure->text);
  std::longjmp(failure->back, 1);
}

// libjpeg fills missing data with grey; we report them. Its other warnings are about headers that
// are odd and pictures that are whole.
void judge(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
      leave(jpeg);
    default:
      break;
  }
}

bool is_cmyk(const jpeg_decompress_struct& jpeg) {
  return jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
}

// Between setjmp and the return of these two nothing has a destructor. False: failure.text says
// why.
bool read_header(jpeg_decompress_struct& jpeg, Failure& failure, std::string_view bytes) {
  if (setjmp(failure.back) != 0) return false;
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&jpeg, TRUE);
  jpeg.out_color_space = is_cmyk(jpeg) ? JCS_CMYK : JCS_RGB;
  jpeg_calc_output_dimensions(&jpeg);
  return true;
}

bool read_rows(jpeg_decompress_struct& jpeg, Failure& failure, uint8_t* pixels) {
  if (setjmp(failure.back) != 0) return false;
  jpeg_start_decompress(&jpeg);
  const std::size_t stride = static_cast<std::size_t>(jpeg.output_width) *
                             static_cast<std::size_t>(jpeg.output_components);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixels + jpeg.output_scanline * stride;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

// (H, W, 4) CMYK to (H, W, 3). The stored values are the light that the ink leaves, as Adobe writes
// them. They are read so with or without Adobe's marker, as by Pillow and torchvision.
at::Tensor rgb_of(const at::Tensor& cmyk) {
  at::Tensor rgb = at::empty({cmyk.size(0), cmyk.size(1), 3}, at::kByte);
  const auto* in = cmyk.const_data_ptr<uint8_t>();
  auto* out = rgb.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < cmyk.size(0) * cmyk.size(1); ++i, in += 4)
    for (int c = 0; c < 3; ++c) *out++ = static_cast<uint8_t>((in[c] * in[3] + 127) / 255);
  return rgb;
}

class Decompressor {
 public:
  Decompressor() {
    jpeg_.err = jpeg_std_error(&failure_);
    failure_.error_exit = leave;
    failure_.emit_message = judge;
  }
  ~Decompressor() { jpeg_destroy_decompress(&jpeg_); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  DecodedPicture operator()(std::string_view bytes) {
    if (!read_header(jpeg_, failure_, bytes)) return {.picture = {}, .damage = failure_.text};
    const int64_t height = jpeg_.output_height, width = jpeg_.output_width;
    if (height * width > kMostPixels)
      return {.picture = {}, .damage = {}, .size = fmt::format("{} x {} pixels", width, height)};
    at::Tensor picture = at::empty({height, width, jpeg_.output_components}, at::kByte);
    if (!read_rows(jpeg_, failure_, picture.mutable_data_ptr<uint8_t>()))
      return {.picture = {}, .damage = failure_.text};
    if (is_cmyk(jpeg_)) picture = rgb_of(picture);
    return {.picture = std::move(picture), .damage = {}};
  }

 private:
  jpeg_decompress_struct jpeg_{};
  Failure failure_{};
};

}  // namespace

DecodedPicture decode_jpeg(std::string_view bytes) { return Decompressor()(bytes); }
bool has_jpeg() { return true; }

}  // namespace demi::data

#else

namespace demi::data {

DecodedPicture decode_jpeg(std::string_view) { no_decoder("JPEG", "libjpeg-dev"); }
bool has_jpeg() { return false; }

}  // namespace demi::data

#endif
