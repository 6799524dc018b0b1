#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "demi/core/export.h"

namespace demi {

/// Text that is not JSON, or that exceeds a limit: what() names the fault and its place.
class DEMI_API JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Lists and objects within one another that a document may have. A .pt2 file of 32 graphs within
/// one another, the most that are read, has less than 400.
inline constexpr int kDeepestJson = 512;

/// Bytes that a document may have: the largest tokenizer.json have 40 MB.
inline constexpr std::size_t kLongestJson = std::size_t{256} << 20;

/// Members that an object of an ordered document may have: it looks through all at each new one.
inline constexpr std::size_t kMostOrderedMembers = 4096;

/// The first `most` bytes of a text for a message, with "..." if it is longer. Bytes that are no
/// UTF-8 are replaced.
DEMI_API std::string json_excerpt(std::string_view text, std::size_t most);

/// A JSON document that other people wrote: one value of RFC 8259, in UTF-8, behind a byte order
/// mark or not. Throws JsonError, with the path of the value ("network.layers[3]"):
///   - what is no JSON: text behind the document, a NUL (as UTF-16 has them), bytes that are no
///     UTF-8, with their offset; NaN and Infinity, as Python writes them;
///   - a name that an object has twice: of JSON's readers some take the first, some the last;
///   - a number beyond double, as 1e400. A whole number beyond 64 bits becomes a double, as
///     transformers' model_max_length of 10^30: JsonValue refuses it where a whole one is due;
///   - a document that is longer than `most_bytes` or deeper than kDeepestJson.
DEMI_API nlohmann::json read_json(std::string_view text, std::size_t most_bytes = kLongestJson);

/// Reads a document as read_json() does, and keeps the members of objects in the document's order.
DEMI_API nlohmann::ordered_json read_ordered_json(std::string_view text,
                                                  std::size_t most_bytes = kLongestJson);

/// Reads a text that may be something else than JSON, as read_json() or read_ordered_json().
/// Returns null if it is.
template <class Json = nlohmann::json>
Json json_or_null(std::string_view text, std::size_t most_bytes = kLongestJson) {
  try {
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>)
      return read_ordered_json(text, most_bytes);
    else
      return read_json(text, most_bytes);
  } catch (const JsonError&) {
    return nullptr;
  }
}

/// A file's text for read_json: at most a byte more than that reads. nullopt if the file cannot be
/// read to its end: errno has the reason.
DEMI_API std::optional<std::string> json_text(const std::filesystem::path& file,
                                              std::size_t most_bytes = kLongestJson);

}  // namespace demi
