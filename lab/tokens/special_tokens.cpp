#include "lab/tokens/special_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "lab/tokens/tokenizer_file.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr auto kSaveAgain =
    "save it as tokenizer.json: transformers.AutoTokenizer.from_pretrained(FOLDER)"
    ".save_pretrained(OTHER)";

json object_if_there(const fs::path& file) {
  std::error_code unreadable;  // which reading it says
  return fs::exists(file, unreadable) || unreadable ? object_in(file) : json::object();
}

/// The token of a text, or of an object with one as `content`.
AddedToken token_of(const json& token, const WrongTokenizer& wrong) {
  const json text = token.is_object() ? token.value("content", json()) : token;
  if (!text.is_string())
    wrong("a special token has no text", token.dump().substr(0, 100), "a text");
  AddedToken one{.text = text.get<std::string>()};
  if (!token.is_object()) return one;
  for (const char* blanks : {"lstrip", "rstrip", "single_word"})
    want(token, blanks, {false}, wrong);
  one.special = token.value("special", true);
  one.normalized = token.value("normalized", false);
  return one;
}

int32_t number_of(std::string_view text, const WrongTokenizer& wrong) {
  int32_t number = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size() || number < 0)
    wrong("the number of an added token is none", std::string(text),
          fmt::format("0 to {}", std::numeric_limits<int32_t>::max()));
  return number;
}

/// A class of transformers' whose vocab.json and merges.txt are those of GPT-2's: others cut words
/// elsewhere or add tokens.
void want_class_of_gpt2(const json& config, const fs::path& folder) {
  const auto named = config.find("tokenizer_class");
  if (named != config.end() && !named->is_null()) {
    for (const char* known :
         {"GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"})
      if (*named == known) return;  // the last two say nothing about words
    WrongTokenizer{folder / "tokenizer_config.json"}(
        "tokenizer_class is not that of GPT-2's tokenizer", named->dump().substr(0, 100),
        "GPT2Tokenizer", kSaveAgain);
  }
  const fs::path file = folder / "config.json";
  const json model = object_if_there(file).value("model_type", json());
  if (!model.is_string()) return;
  for (const char* known : {"gpt2", "gpt_neo", "gptj", "gpt_bigcode", "llama"})
    if (model == known) return;
  WrongTokenizer{file}("models of this model_type have a tokenizer of their own", model.dump(),
                       "gpt2", kSaveAgain);
}

/// Collects the tokens of one folder, each text once: what is read first counts.
class Collector {
 public:
  explicit Collector(SpecialTokens& found) : found_(found) {}

  void add(AddedToken token, int32_t number) {
    if (is_known(token.text)) return;
    token.token = number;
    found_.numbered.push_back(std::move(token));
  }

  void name(const json& token, const WrongTokenizer& wrong) {
    if (token.is_null()) return;
    std::string text = token_of(token, wrong).text;
    if (!text.empty() && !is_known(text)) found_.named.push_back(std::move(text));
  }

  /// A list, or an object of tokens by their roles.
  void name_each(const json& tokens, const WrongTokenizer& wrong) {
    if (!tokens.is_array() && !tokens.is_object()) return;
    for (const json& token : tokens) name(token, wrong);
  }

 private:
  bool is_known(const std::string& text) const {
    return std::ranges::find(found_.numbered, text, &AddedToken::text) != found_.numbered.end() ||
           std::ranges::find(found_.named, text) != found_.named.end();
  }

  SpecialTokens& found_;
};

/// The first of the files that has the entry.
struct Entry {
  json value;  // null: no file has it, or it is null there
  WrongTokenizer wrong;
  bool is_there = false;
};

}  // namespace

SpecialTokens read_special_tokens(const fs::path& folder, bool is_whole) {
  const WrongTokenizer in_config{folder / "tokenizer_config.json"},
      in_map{folder / "special_tokens_map.json"}, in_added{folder / "added_tokens.json"};
  const json config = object_if_there(in_config.path), map = object_if_there(in_map.path);
  if (!is_whole) want_class_of_gpt2(config, folder);
  for (const char* adds : {"add_bos_token", "add_eos_token", "split_special_tokens"})
    want(config, adds, {false}, in_config);
  SpecialTokens found;
  if (const json prefix = config.value("add_prefix_space", json()); prefix.is_boolean())
    found.prefix_blank = prefix.get<bool>();
  Collector collector(found);
  if (const json decoder = config.value("added_tokens_decoder", json()); decoder.is_object())
    for (const auto& [number, token] : decoder.items())
      collector.add(token_of(token, in_config), number_of(number, in_config));
  const json added = object_if_there(in_added.path);
  for (const auto& [text, number] : added.items())
    collector.add({.text = text}, number_of(number.dump(), in_added));
  const auto entry = [&](const char* name) -> Entry {
    if (config.contains(name)) return {config[name], in_config, true};
    if (map.contains(name)) return {map[name], in_map, true};
    return {json(), in_config};
  };
  for (const char* role : {"unk_token", "bos_token", "eos_token"}) {
    const Entry named = entry(role);
    collector.name(named.value, named.wrong);
    found.end_is_one |= !is_whole && !named.is_there;
  }
  for (const char* role : {"pad_token", "sep_token", "cls_token", "mask_token"})
    collector.name(entry(role).value, in_config);
  for (const char* list : {"additional_special_tokens", "extra_special_tokens"})
    collector.name_each(entry(list).value, in_config);
  return found;
}

}  // namespace demi::tokens
