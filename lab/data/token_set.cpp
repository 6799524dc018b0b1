#include "lab/data/token_set.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/git_lfs.h"
#include "lab/data/registry.h"
#include "lab/files/gzip_reader.h"
#include "lab/open_text.h"
#include "lab/tokens/byte_pair.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;
using SharedTokens = std::shared_ptr<const tokens::TokenSource>;

std::string text_of(const fs::path& path) {
  std::string text = files::read_gzip("data.read_token_texts", path);
  if (const auto wide = lab::wide_encoding_of(text); !wide.empty())
    throw DataError({.where = "data.read_token_texts",
                     .what = path.string() + " is not UTF-8",
                     .seen = wide,
                     .accepted = "UTF-8",
                     .advice = lab::kToUtf8});
  if (is_git_lfs_pointer(text))
    throw DataError({.where = "data.read_token_texts",
                     .what = path.string() + " is not there",
                     .seen = kGitLfsPointer,
                     .accepted = "a text",
                     .advice = kGitLfsAdvice});
  return text;
}

TokenSpan whole(SharedTokens source) {
  const int64_t size = source->size();
  return {.source = std::move(source), .first = 0, .size = size};
}

void require_tokens(const TokenSpan& part, std::string_view path, std::string_view what) {
  if (part.size >= 2) return;
  throw DataError({.where = path,
                   .what = fmt::format("too few tokens to {} on", what),
                   .seen = fmt::to_string(part.size),
                   .accepted = "two or more: each is predicted from those before it"});
}

// nanoGPT's shares: nine tenths to train on, the rest to test on (data/shakespeare_char).
void split(TokenSet& set) {
  const TokenSpan all = set.train;
  set.train.size = all.size / 10 * 9 + all.size % 10 * 9 / 10;
  set.test = {.source = all.source, .first = set.train.size, .size = all.size - set.train.size};
}

void finish(TokenSet& set, std::string_view train, std::string_view test) {
  if (!set.test.source) split(set);
  require_tokens(set.train, train, "train");
  require_tokens(set.test, test.empty() ? train : test, "test");
}

// Encodes a file's text; errors name the file.
SharedTokens encoded(const tokens::Tokenizer& tokenizer, const std::string& text,
                     const fs::path& path) {
  try {
    return tokens::in_memory(tokenizer.encode(text));
  } catch (const DataError& error) {
    throw DataError({.where = path.string(), .what = error.what()});
  }
}

}  // namespace

std::shared_ptr<const tokens::Tokenizer> token_numbering(std::string_view word,
                                                         std::string_view text) {
  if (word == "characters") return tokens::characters_of(text);
  if (word == "bytes") return tokens::bytes();
  return tokens::byte_pair_tokenizer(tokens::read_byte_pairs(word));
}

TokenSet read_token_texts(const fs::path& train, const fs::path& test, std::string_view tokenizer) {
  const std::string text = text_of(train);
  TokenSet set;
  try {
    set.tokenizer = token_numbering(tokenizer, text);
  } catch (const DataError& error) {
    if (tokenizer != "characters") throw;
    throw DataError({.where = train.string(), .what = error.what()});
  }
  set.vocabulary = set.tokenizer->size();
  set.train = whole(encoded(*set.tokenizer, text, train));
  if (!test.empty()) set.test = whole(encoded(*set.tokenizer, text_of(test), test));
  finish(set, train.string(), test.string());
  return set;
}

TokenSpan read_test_tokens(const fs::path& path, const tokens::Tokenizer& tokenizer) {
  TokenSpan test = whole(encoded(tokenizer, text_of(path), path));
  require_tokens(test, path.string(), "test");
  return test;
}

TokenSet load_token_text(std::string_view name, const fs::path& data_dir,
                         std::string_view tokenizer) {
  const DataSet& set = published_set(name);
  const fs::path folder = find_data_set(name, data_dir);
  std::error_code unreadable;
  for (const std::string& mark : set.marks)
    if (fs::exists(folder / mark, unreadable))
      return read_token_texts(folder / mark, {}, tokenizer);
  return read_token_texts(folder / set.marks.front(), {}, tokenizer);
}

TokenSet open_token_sets(const std::string& train, const std::string& test, int64_t vocabulary) {
  TokenSet set{.vocabulary = vocabulary};
  set.train = whole(tokens::open_token_files(train, vocabulary));
  if (!test.empty()) set.test = whole(tokens::open_token_files(test, vocabulary));
  finish(set, train, test);
  return set;
}

}  // namespace demi::data
