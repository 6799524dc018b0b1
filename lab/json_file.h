#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/git_lfs.h"
#include "demi/core/json.h"

namespace demi::lab {

/// Throws DataErrors about one file or folder, in the name of `where`.
struct WrongFile {
  std::filesystem::path path;
  std::string_view where;

  [[noreturn]] void operator()(std::string_view what, std::string_view seen,
                               std::string_view accepted, std::string_view advice = "") const {
    refuse<DataError>({.where = where,
                       .what = fmt::format("{}: {}", path.string(), what),
                       .seen = seen,
                       .accepted = accepted,
                       .advice = advice});
  }
};

/// The whole of the file. Throws as `wrong`: no such file, a failed read, git-lfs's pointer in its
/// place. `accepted` describes the file that is expected.
inline std::string text_of(const WrongFile& wrong, std::string_view accepted) {
  std::optional<std::string> text = json_text(wrong.path);
  if (!text)
    wrong("the file cannot be read", errno == ENOENT ? "no such file" : std::strerror(errno),
          accepted);
  if (text->size() > kLongestJson)
    wrong("the file is too long", fmt::format("more than {} bytes", kLongestJson), accepted);
  if (is_git_lfs_pointer(*text))
    wrong("the file is not there, only its name", kGitLfsPointer, accepted, kGitLfsAdvice);
  return *std::move(text);
}

/// The JSON object of the file. Throws as text_of, and for something else.
inline nlohmann::json object_of(const WrongFile& wrong, std::string_view accepted) {
  try {
    nlohmann::json object = read_json(text_of(wrong, accepted));
    if (!object.is_object()) wrong("no JSON object", object.type_name(), accepted);
    return object;
  } catch (const JsonError& error) {
    wrong("the file is not JSON", error.what(), accepted);
  }
}

}  // namespace demi::lab
