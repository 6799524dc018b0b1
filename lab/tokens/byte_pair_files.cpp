#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "demi/core/json_value.h"
#include "lab/tokens/byte_pair.h"
#include "lab/tokens/special_tokens.h"
#include "lab/tokens/tokenizer_file.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Wrong = WrongTokenizer;

/// The texts of a JSON object from text to number, by number. `taken`: numbers of other texts.
std::vector<std::string> by_number(const json& vocabulary, const Wrong& wrong) {
  if (!vocabulary.is_object()) wrong("the vocabulary is none", vocabulary.type_name(), "an object");
  std::vector<std::string> texts(vocabulary.size());
  std::vector<bool> taken(vocabulary.size());
  for (const auto& [text, number] : vocabulary.items()) {
    const auto most = static_cast<int64_t>(texts.size()) - 1;
    if (!number.is_number_integer() || number.get<int64_t>() < 0 || number.get<int64_t>() > most ||
        taken[number.get<std::size_t>()])
      wrong("the number of the token " + text + " is not its own", number.dump(),
            fmt::format("each of 0 to {} once", most));
    taken[number.get<std::size_t>()] = true;
    texts[number.get<std::size_t>()] = text;
  }
  return texts;
}

std::pair<std::string, std::string> merge_of(std::string_view line, const Wrong& wrong) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
    wrong("a merge is not two symbols", std::string(line.substr(0, 60)),
          "two, with a blank between");
  return {std::string(line.substr(0, blank)), std::string(line.substr(blank + 1))};
}

/// merges.txt: a merge a line, and a first line that may name the version.
std::vector<std::pair<std::string, std::string>> read_merges(const fs::path& file) {
  std::istringstream lines(lab::text_of(Wrong{file}, kTokenizerFiles));
  std::vector<std::pair<std::string, std::string>> merges;
  bool first = true;
  for (std::string line; std::getline(lines, line); first = false) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (first && line.starts_with("#version"))) continue;
    merges.push_back(merge_of(line, Wrong{file}));
  }
  return merges;
}

const json& member_of(const json& object, const char* member, const Wrong& wrong) {
  const auto found = object.find(member);
  if (found == object.end()) wrong(fmt::format("{} is missing", member), "nothing", "a tokenizer");
  return *found;
}

/// Whether it leaves a text's tokens as they are: it moves offsets, or its template is the text
/// alone.
bool adds_nothing(const json& processor) {
  if (processor.is_null()) return true;
  const json type = processor.value("type", json());
  if (type == "ByteLevel") return true;
  if (type == "Sequence") return std::ranges::all_of(processor.at("processors"), adds_nothing);
  if (type != "TemplateProcessing") return false;
  const json& single = processor.at("single");
  return single.size() == 1 && single[0].contains("Sequence") &&
         single[0]["Sequence"].value("id", "") == "A";
}

/// Refuses rules that this tokenizer lacks: text would silently become other tokens. With all bytes
/// among the symbols (byte_pair_tokenizer) nothing is unknown, so that unk_token, fuse_unk and
/// byte_fallback are not used.
void want_rules_of_gpt2(const json& file, const json& model, const Wrong& wrong) {
  want_no_others(file, "the file",
                 {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"},
                 wrong);
  want_no_others(model, "model",
                 {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
                 wrong);
  want(model, "type", {"BPE"}, wrong);
  want(model, "dropout", {0.0}, wrong);
  want(model, "continuing_subword_prefix", {""}, wrong);
  want(model, "end_of_word_suffix", {""}, wrong);
  want(model, "ignore_merges", {false}, wrong);
  want(file, "normalizer", json::array(), wrong);
  const json& words = member_of(file, "pre_tokenizer", wrong);
  if (!words.is_object()) wrong("pre_tokenizer is missing", words.dump(), "ByteLevel");
  want(words, "type", {"ByteLevel"}, wrong);
  want(words, "use_regex", {true}, wrong);
  want_no_others(words, "pre_tokenizer", {"type", "add_prefix_space", "trim_offsets", "use_regex"},
                 wrong);
  const json decoder = file.value("decoder", json());
  if (decoder.is_object()) want(decoder, "type", {"ByteLevel"}, wrong);
  const json processor = file.value("post_processor", json());
  if (!adds_nothing(processor))
    wrong("post_processor adds tokens to each text", processor.dump().substr(0, 100),
          "ByteLevel, or a template of the text alone",
          "in Python: tokenizer.backend_tokenizer.post_processor = "
          "tokenizers.processors.ByteLevel(), and save it again");
}

std::vector<AddedToken> added_of(const json& file, const Wrong& wrong) {
  std::vector<AddedToken> added;
  for (const json& each : file.value("added_tokens", json::array())) {
    want_no_others(each, "an added token",
                   {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"},
                   wrong);
    want(each, "lstrip", {false}, wrong);
    want(each, "rstrip", {false}, wrong);
    want(each, "single_word", {false}, wrong);
    const JsonValue token(each, "added_tokens");
    added.push_back({.text = token.at("content").get<std::string>(),
                     .token = token.at("id").get<int32_t>(),
                     .special = token.value("special", false),
                     .normalized = token.value("normalized", false)});
    if (added.back().text.empty()) wrong("an added token has no text", each.dump(), "a text");
  }
  return added;
}

/// Adds the tokens and settings of the files beside a vocabulary.
void add_special_tokens(BytePairs& pairs, const fs::path& folder, bool is_whole) {
  const SpecialTokens more = read_special_tokens(folder, is_whole);
  const Wrong wrong{folder / "tokenizer_config.json"};
  if (is_whole && more.prefix_blank.value_or(pairs.prefix_blank) != pairs.prefix_blank)
    wrong("add_prefix_space is not that of tokenizer.json", fmt::to_string(*more.prefix_blank),
          fmt::to_string(pairs.prefix_blank), "which of the two is meant? make them agree");
  pairs.prefix_blank = more.prefix_blank.value_or(pairs.prefix_blank);
  const auto is_known = [&](const std::string& text) {
    return std::ranges::find(pairs.added, text, &AddedToken::text) != pairs.added.end();
  };
  for (const AddedToken& one : more.numbered)
    if (!is_known(one.text)) pairs.added.push_back(one);
  const auto add_named = [&](const std::string& text) {
    if (is_known(text)) return true;
    const auto symbol = std::ranges::find(pairs.symbols, text);
    if (symbol == pairs.symbols.end()) return false;
    pairs.added.push_back(
        {.text = text, .token = static_cast<int32_t>(symbol - pairs.symbols.begin())});
    return true;
  };
  for (const std::string& text : more.named)
    if (!add_named(text))
      wrong("a special token has no number", text, "a token of the vocabulary",
            "take its entry out, or save the tokenizer again");
  if (more.end_is_one) add_named("<|endoftext|>");
}

BytePairs of_tokenizer_json(const fs::path& file) {
  constexpr auto kAccepted = "one that the package tokenizers writes";
  const Wrong wrong{file};
  const json all = object_in(file);
  const json& model = member_of(all, "model", wrong);
  try {
    want_rules_of_gpt2(all, model, wrong);
    BytePairs pairs{.symbols = by_number(member_of(model, "vocab", wrong), wrong),
                    .added = added_of(all, wrong),
                    .prefix_blank = all.at("pre_tokenizer").value("add_prefix_space", true)};
    add_special_tokens(pairs, file.parent_path(), true);
    for (const json& merge : member_of(model, "merges", wrong))
      pairs.merges.push_back(merge.is_string() ? merge_of(merge.get<std::string>(), wrong)
                                               : merge.get<std::pair<std::string, std::string>>());
    return pairs;
  } catch (const json::exception& error) {
    wrong("the file is no tokenizer.json", error.what(), kAccepted);
  } catch (const JsonError& error) {
    wrong("the file is no tokenizer.json", error.what(), kAccepted);
  }
}

}  // namespace

BytePairs read_byte_pairs(const std::filesystem::path& path) {
  std::error_code unreadable;  // which reading it says
  const bool is_folder = fs::is_directory(path, unreadable);
  const fs::path folder = is_folder ? path : path.parent_path();
  const fs::path file = is_folder ? folder / "tokenizer.json" : path;
  const bool is_one = is_folder
                          ? fs::exists(file, unreadable)
                          : path.filename() != "vocab.json" && path.filename() != "merges.txt";
  if (is_one) return of_tokenizer_json(file);
  BytePairs pairs{
      .symbols = by_number(object_in(folder / "vocab.json"), Wrong{folder / "vocab.json"}),
      .merges = read_merges(folder / "merges.txt")};
  try {
    add_special_tokens(pairs, folder, false);
  } catch (const json::exception& error) {
    Wrong{folder}("a file beside vocab.json is damaged", error.what(),
                  "tokenizer_config.json as transformers writes it");
  }
  return pairs;
}

}  // namespace demi::tokens
