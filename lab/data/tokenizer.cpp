#include "lab/data/tokenizer.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <string>

namespace demi::data {
namespace {

constexpr std::string_view kBreak = "<br />";

// What Python's str.split() splits at: Unicode's White_Space and the four ASCII separators.
constexpr bool is_space(int32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

// Most of a text is ASCII, for which no table is needed.
void append_lower(std::string& text, int32_t code) {
  if (code < 0x80) {
    text.push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
    return;
  }
  std::array<utf8proc_uint8_t, 4> bytes;
  const utf8proc_ssize_t count = utf8proc_encode_char(utf8proc_tolower(code), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(count));
}

}  // namespace

std::size_t BasicEnglish::operator()(std::string_view text,
                                     const std::function<void(std::string_view)>& token) const {
  // First lower case without double quotes: they go before "<br />" is looked for.
  std::string lower;
  lower.reserve(text.size());
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    int32_t code = bytes[at];
    if (code < 0x80) {
      ++at;
    } else {
      const auto taken =
          utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
      if (taken <= 0) return at;
      at += static_cast<std::size_t>(taken);
    }
    if (code == '"') continue;
    if (is_space(code)) {
      lower.push_back(code == ' ' ? ' ' : '\n');  // only a plain space completes "<br />"
    } else {
      append_lower(lower, code);
    }
  }
  const std::string_view all = lower;
  std::size_t start = 0;
  const auto finish = [&](std::size_t end) {
    if (end > start) token(all.substr(start, end - start));
  };
  for (std::size_t at = 0; at < all.size();) {
    std::size_t skip = 0;  // bytes that end a token
    switch (all[at]) {
      case '\'':
      case '.':
      case ',':
      case '(':
      case ')':
      case '!':
      case '?':
        finish(at);
        token(all.substr(at, 1));
        start = ++at;
        continue;
      case ' ':
      case '\n':
      case ';':
      case ':':
        skip = 1;
        break;
      case '<':
        skip = all.substr(at).starts_with(kBreak) ? kBreak.size() : 0;
        break;
      default:
        break;
    }
    if (skip == 0) {
      ++at;
      continue;
    }
    finish(at);
    start = at += skip;
  }
  finish(all.size());
  return npos;
}

}  // namespace demi::data
