#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "demi/core/error.h"
#include "demi/core/git_lfs.h"
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
  const auto text = json_text(file);
  if (!text)
    Wrong{file}("the file cannot be read", errno == ENOENT ? "no such file" : std::strerror(errno),
                file.filename().string());
  if (is_git_lfs_pointer(*text))
    Wrong{file}("the file is not there, only its name", kGitLfsPointer, file.filename().string(),
                kGitLfsAdvice);
  try {
    nlohmann::json object = read_json(*text);
    if (!object.is_object()) Wrong{file}("no JSON object", object.type_name(), "an object");
    return object;
  } catch (const JsonError& error) {
    Wrong{file}("the file is not JSON", error.what(), "a JSON object");
  }
}

}  // namespace demi::huggingface
