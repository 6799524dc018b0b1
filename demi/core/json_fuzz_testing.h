#pragma once

#include <cstddef>
#include <stdexcept>
#include <string_view>

#include "demi/core/fuzz_target_testing.h"
#include "demi/core/json.h"

namespace demi {

/// A text that is read is JSON for nlohmann's own parser, too, and reads the same when it is
/// written again.
template <class Json, Json (*read)(std::string_view, std::size_t)>
void fuzz_json(std::string_view bytes) {
  try {
    const Json document = read(bytes, kLongestJson);
    if (!Json::accept(bytes)) throw std::logic_error("no JSON was read");
    if (read(document.dump(), kLongestJson) != document)
      throw std::logic_error("the document reads otherwise when it is written");
  } catch (const JsonError&) {
  }
}

inline constexpr FuzzTarget kFuzzTargets[] = {
    {"json", [](std::string_view bytes) {
       fuzz_json<nlohmann::json, read_json>(bytes);
       fuzz_json<nlohmann::ordered_json, read_ordered_json>(bytes);
     }}};

}  // namespace demi
