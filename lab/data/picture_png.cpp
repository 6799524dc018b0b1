// PNG by libpng, if it was there at the build.
#include "lab/data/picture.h"

#ifdef DEMI_HAVE_PNG

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

namespace demi::data {
namespace {

// libpng calls back on an error and must not be returned to: out by longjmp, over its C frames.
struct PngFailure {
  std::jmp_buf back;
  char text[256] = "";
};

[[noreturn]] void leave_png(png_structp png, png_const_charp message) {
  auto* failure = static_cast<PngFailure*>(png_get_error_ptr(png));
  std::snprintf(failure->text, sizeof failure->text, "%s", message);
  std::longjmp(failure->back, 1);
}

// libpng warns of what is odd in a picture that is whole.
void pass_over(png_structp, png_const_charp) {}

void give_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* bytes = static_cast<std::string_view*>(png_get_io_ptr(png));
  if (count > bytes->size()) png_error(png, "premature end of the file");
  std::memcpy(to, bytes->data(), count);
  bytes->remove_prefix(count);
}

// Asks for the samples as the file has them, as Pillow and torchvision read them: no gamma, the
// upper 8 of 16 bits, no background under transparent parts.
void ask_for_rgb(png_structp png) {
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

class PngReader {
 public:
  explicit PngReader(std::string_view bytes)
      : bytes_(bytes),
        png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, &failure_, leave_png, pass_over)) {
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  DecodedPicture operator()() {
    if (info_ == nullptr) return damaged("no memory");
    if (!read_header()) return damaged(failure_.text);
    const int64_t height = png_get_image_height(png_, info_),
                  width = png_get_image_width(png_, info_);
    if (height * width > kMostPixels)
      return {.picture = {}, .damage = {}, .size = fmt::format("{} x {} pixels", width, height)};
    at::Tensor picture = at::empty({height, width, 3}, at::kByte);
    if (!read_rows(picture.mutable_data_ptr<uint8_t>())) return damaged(failure_.text);
    return {.picture = std::move(picture), .damage = {}};
  }

 private:
  static DecodedPicture damaged(std::string what) {
    return {.picture = {}, .damage = std::move(what)};
  }

  // Between setjmp and the return of these two nothing has a destructor. False: failure_.text says
  // why.
  bool read_header() {
    if (setjmp(failure_.back) != 0) return false;
    png_set_read_fn(png_, &bytes_, give_bytes);
    png_read_info(png_, info_);
    ask_for_rgb(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_rows(uint8_t* pixels) {
    if (setjmp(failure_.back) != 0) return false;
    const std::size_t stride = png_get_rowbytes(png_, info_);
    const png_uint_32 height = png_get_image_height(png_, info_);
    for (int pass = 0; pass < passes_; ++pass)  // an interlaced picture is completed pass by pass
      for (png_uint_32 row = 0; row < height; ++row)
        png_read_row(png_, pixels + row * stride, nullptr);
    png_read_end(png_, nullptr);
    return true;
  }

  std::string_view bytes_;
  PngFailure failure_;
  png_structp png_;
  png_infop info_ = nullptr;
  int passes_ = 1;
};

}  // namespace

DecodedPicture decode_png(std::string_view bytes) { return PngReader(bytes)(); }

bool has_png() { return true; }

}  // namespace demi::data

#else

namespace demi::data {

DecodedPicture decode_png(std::string_view) { no_decoder("PNG", "libpng-dev"); }
bool has_png() { return false; }

}  // namespace demi::data

#endif
