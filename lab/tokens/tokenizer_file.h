#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lab/json_file.h"

namespace demi::tokens {

/// Throws errors about one file.
struct WrongTokenizer : lab::WrongFile {
  explicit WrongTokenizer(std::filesystem::path path)
      : WrongFile{std::move(path), "tokens.read_byte_pairs"} {}
};

inline constexpr auto kTokenizerFiles = "tokenizer.json, or vocab.json beside merges.txt";

/// A JSON object. Throws DataError: no such file, or something else.
inline nlohmann::json object_in(const std::filesystem::path& file) {
  return lab::object_of(WrongTokenizer{file}, kTokenizerFiles);
}

/// Throws unless the member is absent, null, or one of the accepted values.
void want(const nlohmann::json& object, const char* member, const nlohmann::json& accepted,
          const WrongTokenizer& wrong);

/// Throws for a member of another name: what it does to a text is not known.
void want_no_others(const nlohmann::json& object, const char* what,
                    std::initializer_list<std::string_view> members, const WrongTokenizer& wrong);

}  // namespace demi::tokens
