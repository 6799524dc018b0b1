#include "lab/data/tokenizer.h"

#include <array>
#include <cstdint>
#include <string>

#include "lab/utf8.h"

namespace demi::data {
namespace {

constexpr std::string_view kBreak = "<br />";

// Whether Python's str.split() splits at the character: Unicode's White_Space and the four ASCII
// separators.
constexpr bool is_space(int32_t code) {
  return lab::is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

/// Unicode's Case_Ignorable: marks and punctuation behind which a word continues.
bool is_case_ignorable(int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default: {  // those whose Word_Break is MidLetter, MidNumLet or Single_Quote
      constexpr std::u32string_view kWithinWords =
          U"':."
          U"\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a";
      return kWithinWords.find(static_cast<char32_t>(code)) != std::u32string_view::npos;
    }
  }
}

/// Unicode's Cased, of a code point that is not Case_Ignorable.
bool is_cased(int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:  // ordinals, Roman numerals, letters in circles and squares
      return code == 0xAA || code == 0xBA || (code >= 0x2160 && code <= 0x217F) ||
             (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
  }
}

/// Whether the capital sigma at `at` ends a word (The Unicode Standard, table 3-17, Final_Sigma): a
/// cased letter comes before it and none behind it, with anything Case_Ignorable in between. The
/// text before it is UTF-8.
bool is_final_sigma(std::string_view text, std::size_t at) {
  int32_t code = 0;
  bool cased_before = false;
  for (std::size_t start = at; start > 0;) {
    do {
      --start;
    } while ((static_cast<unsigned char>(text[start]) & 0xC0) == 0x80);
    lab::next_code(text, start, code);
    if (is_case_ignorable(code)) continue;
    cased_before = is_cased(code);
    break;
  }
  if (!cased_before) return false;
  at += std::string_view("\u03a3").size();
  while (const std::size_t taken = lab::next_code(text, at, code)) {
    if (!is_case_ignorable(code)) return !is_cased(code);
    at += taken;
  }
  return true;
}

/// Adds the code point at `at` as Python's str.lower does: the simple mapping, but for the two
/// whose lower case depends on what is around or is two code points.
void append_lower(std::string& lower, int32_t code, std::string_view text, std::size_t at) {
  if (code < 0x80) {  // most of a text, for which no table is needed
    lower.push_back(static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code));
  } else if (code == 0x130) {
    lower += "i\u0307";
  } else if (code == 0x3A3) {
    lower += is_final_sigma(text, at) ? "\u03c2" : "\u03c3";
  } else {
    std::array<utf8proc_uint8_t, 4> bytes;
    const auto count = utf8proc_encode_char(utf8proc_tolower(code), bytes.data());
    lower.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(count));
  }
}

}  // namespace

std::size_t BasicEnglish::operator()(std::string_view text,
                                     const std::function<void(std::string_view)>& token) const {
  // First lower case without double quotes: they go before "<br />" is looked for.
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0, taken = 1; at < text.size(); at += taken) {
    int32_t code = static_cast<unsigned char>(text[at]);
    taken = code < 0x80 ? 1 : lab::next_code(text, at, code);
    if (taken == 0) return at;
    if (code == '"') continue;
    if (is_space(code)) {
      lower.push_back(code == ' ' ? ' ' : '\n');  // only a plain space completes "<br />"
    } else {
      append_lower(lower, code, text, at);
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
