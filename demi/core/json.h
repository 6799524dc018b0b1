#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace demi {

/// Text that is not JSON, or that is nested too deep: what() says which.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Lists and objects within one another that a document may have. A .pt2 file of 32 graphs within
/// one another, the most that are read, has less than 400.
inline constexpr int kDeepestJson = 512;

/// A JSON document that other people wrote. Throws JsonError. The depth is counted while the text
/// is read: nlohmann's parser does not recurse, but whoever copies, compares or prints a document
/// does, and would end the process at some 50,000.
inline nlohmann::json read_json(std::string_view text) {
  using nlohmann::json;
  const auto count = [](int depth, json::parse_event_t event, const json&) {
    const bool opens =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= kDeepestJson)
      throw JsonError(fmt::format("lists and objects more than {} deep", kDeepestJson));
    return true;
  };
  try {
    return json::parse(text, count);
  } catch (const json::exception& error) {
    throw JsonError(error.what());
  }
}

}  // namespace demi
