#include "lab/tokens/utf8_stream.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lab/utf8.h"

namespace demi::tokens {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes that a first byte asks for, and the least and greatest second one: The Unicode Standard,
/// table 3-7. 0: no character begins with it.
struct Start {
  std::size_t size = 0;
  unsigned char least = 0x80, most = 0xBF;
};

Start start_of(unsigned char first) {
  if (first < 0x80) return {1};
  if (first < 0xC2) return {};
  if (first < 0xE0) return {2};
  if (first == 0xE0) return {3, 0xA0};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3};
  if (first == 0xF0) return {4, 0x90};
  if (first < 0xF4) return {4};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

/// The number of bytes from `at` on that begin a character, which may have more bytes.
std::size_t begun(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const Start start = start_of(byte(0));
  const std::size_t most = std::min(start.size, text.size() - at);
  std::size_t length = most > 0 ? 1 : 0;
  while (length > 0 && length < most && byte(length) >= (length == 1 ? start.least : 0x80) &&
         byte(length) <= (length == 1 ? start.most : 0xBF))
    ++length;
  return length;
}

}  // namespace

std::string Utf8Stream::add(std::string_view bytes) {
  pending_ += bytes;
  std::string whole;
  std::size_t at = 0;
  while (at < pending_.size()) {
    int32_t code = 0;
    if (const std::size_t taken = lab::next_code(pending_, at, code)) {
      whole.append(pending_, at, taken);
      at += taken;
      continue;
    }
    const std::size_t length = begun(pending_, at);
    if (length > 0 && at + length == pending_.size()) break;
    whole += kReplacement;
    at += std::max<std::size_t>(length, 1);
  }
  pending_.erase(0, at);
  return whole;
}

std::string Utf8Stream::finish() {
  const bool is_whole = pending_.empty();
  pending_.clear();
  return std::string(is_whole ? "" : kReplacement);
}

}  // namespace demi::tokens
