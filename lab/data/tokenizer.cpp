#include "lab/data/tokenizer.h"

#include <locale.h>
#include <wctype.h>

#include <string>

#include "demi/core/error.h"
#include "lab/data/utf8.h"

namespace demi::data {
namespace {

constexpr std::string_view kBreak = "<br />";

}  // namespace

BasicEnglish::BasicEnglish() : locale_(newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {
  if (locale_ == nullptr)
    throw DeviceError(
        {.where = "data.BasicEnglish",
         .what = "the C library has no locale C.UTF-8, which tells lower from upper case",
         .advice = "install the package libc-bin, or a glibc of 2.35 or newer"});
}

BasicEnglish::~BasicEnglish() { freelocale(static_cast<locale_t>(locale_)); }

std::size_t BasicEnglish::operator()(std::string_view text,
                                     const std::function<void(std::string_view)>& token) const {
  const auto locale = static_cast<locale_t>(locale_);
  // First lower case without double quotes: they go before "<br />" is looked for.
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Character c = next_character(text.substr(at));
    if (c.bytes == 0) return at;
    at += c.bytes;
    if (c.code == '"') continue;
    if (is_space(c.code)) {
      lower.push_back(c.code == ' ' ? ' ' : '\n');  // only a plain space completes "<br />"
    } else {
      append_character(lower,
                       static_cast<uint32_t>(towlower_l(static_cast<wint_t>(c.code), locale)));
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
