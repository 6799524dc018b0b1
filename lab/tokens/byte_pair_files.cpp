#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "demi/core/error.h"
#include "lab/tokens/byte_pair.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Throws errors about one file.
struct Wrong {
  fs::path file;
  [[noreturn]] void operator()(const std::string& what, const std::string& seen,
                               const std::string& accepted) const {
    refuse<DataError>({.where = "tokens.read_byte_pairs",
                       .what = file.string() + ": " + what,
                       .seen = seen,
                       .accepted = accepted});
  }
};

std::string content_of(const fs::path& file) {
  std::ifstream stream(file);
  std::ostringstream content;
  if (!stream || (stream.peek() != EOF && !(content << stream.rdbuf())) || stream.bad())
    Wrong{file}("the file cannot be read",
                fs::exists(file) ? "an error of the system" : "no such file",
                "tokenizer.json, or vocab.json beside merges.txt");
  return std::move(content).str();
}

json parsed(const fs::path& file) {
  try {
    return json::parse(content_of(file));
  } catch (const json::parse_error& error) {
    Wrong{file}("the file is not JSON", error.what(), "a JSON object");
  }
}

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
  std::istringstream lines(content_of(file));
  std::vector<std::pair<std::string, std::string>> merges;
  bool first = true;
  for (std::string line; std::getline(lines, line); first = false) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (first && line.starts_with("#version"))) continue;
    merges.push_back(merge_of(line, Wrong{file}));
  }
  return merges;
}

/// Throws unless the member is absent, null, or one of the accepted values.
void want(const json& object, const char* member, const json& accepted, const Wrong& wrong) {
  const auto found = object.find(member);
  if (found == object.end() || found->is_null()) return;
  for (const json& value : accepted)
    if (*found == value) return;
  wrong(fmt::format("{} is not that of GPT-2's tokenizer", member), found->dump().substr(0, 100),
        accepted.empty() ? "null" : accepted.front().dump());
}

const json& member_of(const json& object, const char* member, const Wrong& wrong) {
  const auto found = object.find(member);
  if (found == object.end()) wrong(fmt::format("{} is missing", member), "nothing", "a tokenizer");
  return *found;
}

/// The rules that this tokenizer does not have: text would be other tokens in silence.
void want_rules_of_gpt2(const json& file, const json& model, const Wrong& wrong) {
  want(model, "type", {"BPE"}, wrong);
  want(model, "dropout", {0.0}, wrong);
  want(model, "unk_token", json::array(), wrong);
  want(model, "continuing_subword_prefix", {""}, wrong);
  want(model, "end_of_word_suffix", {""}, wrong);
  want(model, "byte_fallback", {false}, wrong);
  want(model, "ignore_merges", {false}, wrong);
  want(file, "normalizer", json::array(), wrong);
  want(file, "truncation", json::array(), wrong);
  want(file, "padding", json::array(), wrong);
  const json& words = member_of(file, "pre_tokenizer", wrong);
  if (!words.is_object()) wrong("pre_tokenizer is missing", words.dump(), "ByteLevel");
  want(words, "type", {"ByteLevel"}, wrong);
  want(words, "use_regex", {true}, wrong);
}

std::vector<std::pair<std::string, int32_t>> added_of(const json& file, const Wrong& wrong) {
  std::vector<std::pair<std::string, int32_t>> added;
  for (const json& each : file.value("added_tokens", json::array())) {
    want(each, "lstrip", {false}, wrong);
    want(each, "rstrip", {false}, wrong);
    want(each, "single_word", {false}, wrong);
    added.emplace_back(each.at("content").get<std::string>(), each.at("id").get<int32_t>());
    if (added.back().first.empty()) wrong("an added token has no text", each.dump(), "a text");
  }
  return added;
}

BytePairs of_tokenizer_json(const fs::path& file) {
  const Wrong wrong{file};
  const json all = parsed(file);
  if (!all.is_object()) wrong("the file holds no tokenizer", all.type_name(), "an object");
  const json& model = member_of(all, "model", wrong);
  try {
    want_rules_of_gpt2(all, model, wrong);
    BytePairs pairs{.symbols = by_number(member_of(model, "vocab", wrong), wrong),
                    .added = added_of(all, wrong),
                    .prefix_blank = all.at("pre_tokenizer").value("add_prefix_space", true)};
    for (const json& merge : member_of(model, "merges", wrong))
      pairs.merges.push_back(merge.is_string() ? merge_of(merge.get<std::string>(), wrong)
                                               : merge.get<std::pair<std::string, std::string>>());
    return pairs;
  } catch (const json::exception& error) {
    wrong("the file is no tokenizer.json", error.what(), "one that the package tokenizers writes");
  }
}

}  // namespace

BytePairs read_byte_pairs(const std::filesystem::path& path) {
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  const bool is_one = fs::is_directory(path)
                          ? fs::exists(folder / "tokenizer.json")
                          : path.filename() != "vocab.json" && path.filename() != "merges.txt";
  if (is_one) return of_tokenizer_json(fs::is_directory(path) ? folder / "tokenizer.json" : path);
  return {.symbols = by_number(parsed(folder / "vocab.json"), Wrong{folder / "vocab.json"}),
          .merges = read_merges(folder / "merges.txt")};
}

}  // namespace demi::tokens
