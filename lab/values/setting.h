#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/core/export.h"

// The values of a struct by name, as options, files and variables give them: in texts.
namespace demi::values {

/// A value of an options struct.
template <class Options>
struct Setting {
  /// The name: batch-size as an option, batch_size in a file, DEMI_BATCH_SIZE in the environment.
  std::string name;
  std::string help;      // one sentence with unit and range
  std::string type;      // of the value, for --help: INT, FLOAT, TEXT; "" of a flag
  bool is_flag = false;  // a bool: --name and --no-name
  /// The value as text.
  std::function<std::string(const Options&)> get;
  /// Sets it from text; `source` is where it was given. Throws UsageError.
  std::function<void(Options&, std::string_view text, std::string_view source)> set;
  std::vector<std::string> accepted = {};  // if it is a word of a list; set() refuses any other
  std::string group = {};                  // heading in --help
};

/// Values by their settings' names, each as its setting writes it.
using Texts = std::map<std::string, std::string, std::less<>>;

/// A bound of real numbers that have none. Ceilings of whole numbers keep sums and products of
/// settings within 63 bits.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // of any
inline constexpr int64_t kMostFeatures = int64_t{1} << 24;             // of a layer

/// Throws UsageError: what is wrong with the text, what is accepted, what was meant.
[[noreturn]] DEMI_API void wrong(std::string_view source, std::string_view what,
                                 std::string_view text, const std::string& accepted,
                                 const std::string& meant = "");

/// The number of that text. Throws UsageError: not a whole number, or out of [least, most]
/// ("1 to 9, or auto").
DEMI_API int64_t parse_whole(std::string_view text, std::string_view source, int64_t least,
                             int64_t most, std::string_view or_else = "");

/// The finite number of that text in [low, high]. Throws UsageError.
DEMI_API double parse_real(std::string_view text, std::string_view source, double low, double high);

/// The number in the fewest digits that give it again.
DEMI_API std::string to_text(double value);

/// true, 1, yes, on; false, 0, no, off. Throws UsageError.
DEMI_API bool parse_flag(std::string_view text, std::string_view source);

/// Throws UsageError for a text that is not UTF-8, and for one that the list, unless it is empty,
/// does not have.
DEMI_API void require_text(std::string_view text, std::string_view source,
                           const std::vector<std::string>& accepted);

/// "a, b or c"
DEMI_API std::string either(std::span<const std::string> words, std::string_view last = " or ");

/// Whole numbers in [least, most].
template <class Options>
Setting<Options> whole(std::string name, int64_t Options::*field, int64_t least, std::string help,
                       int64_t most = kMost) {
  return {
      .name = std::move(name),
      .help = std::move(help),
      .type = "INT",
      .get = [field](const Options& o) { return std::to_string(o.*field); },
      .set = [=](Options& o, std::string_view text,
                 std::string_view source) { o.*field = parse_whole(text, source, least, most); }};
}

/// Finite numbers in [low, high].
template <class Options>
Setting<Options> real(std::string name, double Options::*field, double low, double high,
                      std::string help) {
  return {.name = std::move(name),
          .help = std::move(help),
          .type = "FLOAT",
          .get = [field](const Options& o) { return to_text(o.*field); },
          .set = [=](Options& o, std::string_view text,
                     std::string_view source) { o.*field = parse_real(text, source, low, high); }};
}

/// A text in UTF-8, or one word of a list.
template <class Options>
Setting<Options> words(std::string name, std::string Options::*field, std::string help,
                       std::vector<std::string> accepted = {}) {
  return {.name = std::move(name),
          .help = std::move(help),
          .type = "TEXT",
          .get = [field](const Options& o) { return o.*field; },
          .set =
              [=](Options& o, std::string_view text, std::string_view source) {
                require_text(text, source, accepted);
                o.*field = text;
              },
          .accepted = accepted};
}

/// A setting with a few values, each by its word.
template <class Options, class Value>
Setting<Options> one_of(std::string name, Value Options::*field,
                        std::vector<std::pair<std::string, Value>> known, std::string help) {
  std::vector<std::string> accepted;
  for (const auto& [word, value] : known) accepted.push_back(word);
  return {.name = std::move(name),
          .help = std::move(help),
          .type = "TEXT",
          .get =
              [=](const Options& o) {
                return std::ranges::find(known, o.*field, &std::pair<std::string, Value>::second)
                    ->first;
              },
          .set =
              [=](Options& o, std::string_view text, std::string_view source) {
                require_text(text, source, accepted);
                o.*field =
                    std::ranges::find(known, text, &std::pair<std::string, Value>::first)->second;
              },
          .accepted = accepted};
}

/// A switch.
template <class Options>
Setting<Options> flag(std::string name, bool Options::*field, std::string help) {
  return {.name = std::move(name),
          .help = std::move(help),
          .is_flag = true,
          .get = [field](const Options& o) { return std::string(o.*field ? "true" : "false"); },
          .set = [field](Options& o, std::string_view text,
                         std::string_view source) { o.*field = parse_flag(text, source); }};
}

/// The setting over texts: `get` gives the one that is kept, or that of `defaults`; `set` keeps
/// what the setting takes, in its own spelling.
template <class Options>
Setting<Texts> over_texts(const Setting<Options>& setting, const Options& defaults) {
  return {.name = setting.name,
          .help = setting.help,
          .type = setting.type,
          .is_flag = setting.is_flag,
          .get =
              [name = setting.name, initial = setting.get(defaults)](const Texts& texts) {
                const auto kept = texts.find(name);
                return kept == texts.end() ? initial : kept->second;
              },
          .set =
              [setting, defaults](Texts& texts, std::string_view text, std::string_view source) {
                Options tried = defaults;
                setting.set(tried, text, source);
                texts.insert_or_assign(setting.name, setting.get(tried));
              },
          .accepted = setting.accepted};
}

/// The setting of a struct that is a member of another one.
template <class Outer, class Inner>
Setting<Outer> of_member(Inner Outer::*member, const Setting<Inner>& setting) {
  return {.name = setting.name,
          .help = setting.help,
          .type = setting.type,
          .is_flag = setting.is_flag,
          .get = [member, get = setting.get](const Outer& outer) { return get(outer.*member); },
          .set = [member, set = setting.set](
                     Outer& outer, std::string_view text,
                     std::string_view source) { set(outer.*member, text, source); },
          .accepted = setting.accepted};
}

}  // namespace demi::values
