#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace demi::data {

/// What a decoder says of a file: the picture, or why there is none.
struct Decoded {
  at::Tensor picture;  // (H, W, 3) uint8
  std::string damage;  // empty where there is a picture
};

/// Pixels that a picture may have: 0.8 GB decoded. More is taken for damage.
constexpr int64_t kMostPixels = int64_t{1} << 28;

/// Each is in a file of its own; without its library a stub with the same name throws UsageError.
Decoded decode_jpeg(std::string_view bytes);
Decoded decode_png(std::string_view bytes);
bool has_jpeg();
bool has_png();

[[noreturn]] void no_decoder(std::string_view format, std::string_view package);

}  // namespace demi::data
