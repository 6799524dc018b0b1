#include "lab/tokens/tokenizer_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/git_lfs.h"
#include "demi/core/json.h"

namespace demi::tokens {

using nlohmann::json;

void WrongTokenizer::operator()(const std::string& what, const std::string& seen,
                                const std::string& accepted, const std::string& advice) const {
  refuse<DataError>({.where = "tokens.read_byte_pairs",
                     .what = file.string() + ": " + what,
                     .seen = seen,
                     .accepted = accepted,
                     .advice = advice});
}

std::string content_of(const std::filesystem::path& file) {
  const WrongTokenizer wrong{file};
  constexpr auto kAccepted = "tokenizer.json, or vocab.json beside merges.txt";
  std::optional<std::string> text = json_text(file);
  if (!text)
    wrong("the file cannot be read",
          std::filesystem::exists(file) ? "an error of the system" : "no such file", kAccepted);
  if (text->size() > kLongestJson)
    wrong("the file is too long", fmt::format("more than {} bytes", kLongestJson), kAccepted);
  if (is_git_lfs_pointer(*text))
    wrong("the file is not there, only its name", kGitLfsPointer, kAccepted, kGitLfsAdvice);
  return *std::move(text);
}

json parsed(const std::filesystem::path& file) {
  try {
    return read_json(content_of(file));
  } catch (const JsonError& error) {
    WrongTokenizer{file}("the file is not JSON", error.what(), "a JSON object");
  }
}

void want(const json& object, const char* member, const json& accepted,
          const WrongTokenizer& wrong) {
  const auto found = object.find(member);
  if (found == object.end() || found->is_null()) return;
  for (const json& value : accepted)
    if (*found == value) return;
  wrong(fmt::format("{} is not that of GPT-2's tokenizer", member), found->dump().substr(0, 100),
        accepted.empty() ? "null" : accepted.front().dump());
}

void want_no_others(const json& object, const char* what,
                    std::initializer_list<std::string_view> members, const WrongTokenizer& wrong) {
  for (const auto& [name, value] : object.items())
    if (!value.is_null() && std::ranges::find(members, name) == members.end())
      wrong(fmt::format("demi does not know what {} of {} does to a text", name, what),
            value.dump().substr(0, 100), fmt::format("{}", fmt::join(members, ", ")));
}

}  // namespace demi::tokens
