#include "lab/tokens/tokenizer_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace demi::tokens {

using nlohmann::json;

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
