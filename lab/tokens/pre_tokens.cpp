#include "lab/tokens/pre_tokens.h"

#include "lab/utf8.h"

namespace demi::tokens {
namespace {

enum class Class { letter, numeral, space, other };

struct Character {
  std::size_t bytes = 0;  // 0: the end
  Class kind = Class::other;
};

Character character_at(std::string_view text, std::size_t at) {
  int32_t code = 0;
  const std::size_t bytes = lab::next_code(text, at, code);
  // Unicode's general categories L and N.
  const utf8proc_category_t category = utf8proc_category(code);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO)
    return {bytes, Class::letter};
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO)
    return {bytes, Class::numeral};
  return {bytes, lab::is_white_space(code) ? Class::space : Class::other};
}

/// The end of the characters of that class that begin at `at`.
std::size_t end_of_run(std::string_view text, std::size_t at, Class kind) {
  for (Character c; at < text.size(); at += c.bytes) {
    c = character_at(text, at);
    if (c.kind != kind) break;
  }
  return at;
}

std::size_t contraction_at(std::string_view rest) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (rest.starts_with(ending)) return ending.size();
  return 0;
}

/// White space up to the next word, whose last character goes with that word if it is a blank, and
/// is a word by itself otherwise.
std::size_t end_of_space(std::string_view text, std::size_t at) {
  std::size_t last = at, end = at;
  while (end < text.size()) {
    const Character c = character_at(text, end);
    if (c.kind != Class::space) break;
    last = end;
    end += c.bytes;
  }
  return end < text.size() && last > at ? last : end;
}

std::size_t end_of_word(std::string_view text, std::size_t at) {
  if (const std::size_t bytes = contraction_at(text.substr(at))) return at + bytes;
  const bool is_blank = text[at] == ' ';
  const std::size_t first = at + (is_blank ? 1 : 0);
  if (first < text.size()) {
    const Character c = character_at(text, first);
    if (c.kind != Class::space) return end_of_run(text, first, c.kind);
  }
  return end_of_space(text, at);
}

}  // namespace

void for_each_pre_token(std::string_view text, const std::function<void(std::string_view)>& each) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_word(text, at);
    each(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace demi::tokens
