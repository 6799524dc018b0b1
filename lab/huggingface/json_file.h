#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "demi/core/error.h"
#include "demi/core/json.h"

namespace demi::huggingface {

/// Throws errors about one file or folder.
struct Wrong {
  std::filesystem::path path;

  [[noreturn]] void operator()(std::string_view what, const std::string& seen,
                               const std::string& accepted, std::string_view advice = "") const {
    refuse<DataError>({.where = "huggingface.read_model",
                       .what = path.string() + ": " + std::string(what),
                       .seen = seen,
                       .accepted = accepted,
                       .advice = advice});
  }
};

/// A JSON object. Throws DataError: no such file, or something else.
inline nlohmann::json read_object(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) Wrong{file}("the file cannot be read", "no such file", file.filename().string());
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  try {
    nlohmann::json object = read_json(text);
    if (!object.is_object()) Wrong{file}("no JSON object", object.type_name(), "an object");
    return object;
  } catch (const JsonError& error) {
    Wrong{file}("the file is not JSON", error.what(), "a JSON object");
  }
}

}  // namespace demi::huggingface
