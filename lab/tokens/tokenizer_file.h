#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace demi::tokens {

/// Throws errors about one file.
struct WrongTokenizer {
  std::filesystem::path file;
  [[noreturn]] void operator()(const std::string& what, const std::string& seen,
                               const std::string& accepted, const std::string& advice = "") const;
};

/// The whole of a text file. Throws DataError: no such file, a failed read, git-lfs's pointer in
/// its place.
std::string content_of(const std::filesystem::path& file);

/// A JSON file. Throws DataError as content_of, and for other content.
nlohmann::json parsed(const std::filesystem::path& file);

/// Throws unless the member is absent, null, or one of the accepted values.
void want(const nlohmann::json& object, const char* member, const nlohmann::json& accepted,
          const WrongTokenizer& wrong);

/// Throws for a member of another name: what it does to a text is not known.
void want_no_others(const nlohmann::json& object, const char* what,
                    std::initializer_list<std::string_view> members, const WrongTokenizer& wrong);

}  // namespace demi::tokens
