#include "cli/inspect_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "demi/core/json.h"
#include "lab/report/format.h"
#include "lab/report/terminal.h"

namespace demi::cli {

namespace {

/// Line ends, and the blanks that indent the next line, as one blank.
std::string without_line_ends(const std::string& text) {
  std::string joined;
  for (const char c : text) {
    const bool is_end = c == '\n' || c == '\r' || c == '\t';
    const bool after_end = !joined.empty() && joined.back() == ' ';
    if (!is_end && (c != ' ' || !after_end))
      joined += c;
    else if (!after_end)
      joined += ' ';
  }
  return joined;
}

}  // namespace

std::string shape_text(const checkpoint::StoredTensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.shape, ", "));
}

std::string number_text(double value) { return fmt::format("{}", value); }

nlohmann::ordered_json number_json(double value) {
  using Json = nlohmann::ordered_json;
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

std::string one_line(const std::string& text) {
  constexpr std::size_t kColumns = 60;
  const std::string shown = report::printable(without_line_ends(text), /*utf8=*/true);
  const std::string cut = report::cut_to_width(shown, kColumns);
  return cut.size() < shown.size() ? fmt::format("{}… ({} bytes)", cut, text.size()) : cut;
}

namespace {

constexpr std::string_view kVocabulary = "demi.vocabulary", kMerges = "demi.merges";

// "100,682 words: <unk> the a …", with `more` after the number.
std::string vocabulary_text(std::string_view text, std::string_view more) {
  constexpr std::size_t kShown = 8;
  std::size_t end = 0;
  for (std::size_t i = 0; i < kShown && end != std::string::npos; ++i)
    end = text.find(' ', i == 0 ? 0 : end + 1);
  const auto words = std::ranges::count(text, ' ') + 1;
  return fmt::format("{} words{}: {}{}", report::format_count(words), more, text.substr(0, end),
                     end == std::string::npos ? "" : " …");
}

// Words of labelled texts begin with <unk>; else the characters that are tokens.
bool is_words(const std::string& name, std::string_view text) {
  return name == kVocabulary && text.starts_with("<unk>");
}

// "65 characters: "\n !…"", as JSON has them: a line's end is one.
std::string characters_text(const std::string& text) {
  const auto count = std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
  return fmt::format("{} characters: {}", report::format_count(count), nlohmann::json(text).dump());
}

// The text "50,257 symbols: ! " # …" for byte pairs; nullopt for other texts.
std::string byte_pairs_text(const std::string& name, const std::string& text) {
  constexpr std::size_t kShown = 8;
  const nlohmann::json all = json_or_null(text);
  const bool is_merges = name == kMerges && all.is_object() && all.contains("merges");
  const nlohmann::json list = is_merges ? all["merges"] : all;
  if (!list.is_array() || (list.empty() && !is_merges)) return "";
  std::vector<std::string> first;
  for (std::size_t i = 0; i < std::min(kShown, list.size()); ++i)
    first.push_back(list[i].is_string() ? list[i].get<std::string>() : list[i].dump());
  return fmt::format("{} {}: {}{}", report::format_count(std::ssize(list)),
                     is_merges ? "merges" : "symbols", fmt::join(first, is_merges ? ", " : " "),
                     list.size() > kShown ? " …" : "");
}

// The word that begins there; "" at the end of the text.
std::string_view word_from(std::string_view text, std::size_t start) {
  if (start > text.size()) return "";
  return text.substr(start, text.find(' ', start) - start);
}

}  // namespace

std::string shown_text(const std::string& name, const std::string& text) {
  if (is_words(name, text)) return vocabulary_text(text, "");
  if (name != kVocabulary && name != kMerges) return text;
  if (std::string pairs = byte_pairs_text(name, text); !pairs.empty()) return pairs;
  return name == kVocabulary ? characters_text(text) : text;
}

std::pair<std::string, std::string> shown_texts(const std::string& name, const std::string& first,
                                                const std::string& second) {
  if (!is_words(name, first) || !is_words(name, second))
    return {shown_text(name, first), shown_text(name, second)};
  std::size_t start = 0;
  std::int64_t number = 0;
  while (start <= std::min(first.size(), second.size()) &&
         word_from(first, start) == word_from(second, start)) {
    start += word_from(first, start).size() + 1;
    ++number;
  }
  const auto shown = [&](std::string_view text) {
    const std::string_view word = word_from(text, start);
    return vocabulary_text(
        text, word.empty() ? fmt::format(", no number {}", report::format_count(number))
                           : fmt::format(", number {} is {}", report::format_count(number), word));
  };
  return {shown(first), shown(second)};
}

}  // namespace demi::cli
