#include "demi/kernels/recode.h"

#include <algorithm>

#include "demi/kernels/codecs/elements.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/codecs/weights.h"

namespace demi::kernels {
namespace {

constexpr std::uint32_t kHalf = 0x8000;  // up from the middle on

}  // namespace

void encode_array(const Coded& to, const float* from, std::int64_t length,
                  const std::optional<RoundingKey>& key) {
  const RandomStream stream = key ? stream_of(*key) : RandomStream{};
  for (std::int64_t begin = 0; begin < length; begin += kCodeGroup) {
    const std::int64_t end = std::min(begin + kCodeGroup, length);
    std::uint32_t greatest = 0;
    for (std::int64_t i = begin; i < end; ++i)
      greatest = std::max(greatest, magnitude_bits(to.codec, from[i]));
    if (has_scales(to.codec)) scale_at(to, begin) = scale_for(to.codec, greatest);
    for (std::int64_t i = begin; i < end; ++i)
      encode(to, i, from[i], key ? random_half(stream, i) : kHalf);
  }
}

void encode_array(const CodedWeight& to, const float* from, std::int64_t length,
                  const std::optional<RoundingKey>& key) {
  const RandomStream stream = key ? stream_of(*key) : RandomStream{};
  for (std::int64_t i = 0; i < length; ++i)
    encode(to, i, from[i], key ? random_half(stream, i) : kHalf);
}

void decode_array(float* to, const CodedWeight& from, std::int64_t length) {
  for (std::int64_t i = 0; i < length; ++i) to[i] = decoded(from, i);
}

void decode_array(float* to, const Coded& from, std::int64_t length) {
  for (std::int64_t i = 0; i < length; ++i) to[i] = decoded(from, i);
}

}  // namespace demi::kernels
