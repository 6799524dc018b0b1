#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/fuzz_target_testing.h"
#include "demi/core/source_dir_testing.h"

namespace demi {

/// The inputs that a fuzzer of the target starts from: a file each, in tests/fuzz/corpus.
inline std::vector<std::string> fuzz_corpus(const FuzzTarget& target) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(source_dir() / "tests/fuzz/corpus" / target.name))
    files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<std::string> corpus;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

/// An input with one to four changes: what text and binary formats break at.
inline std::string mutated(std::string input, std::mt19937_64& random) {
  using namespace std::string_view_literals;
  static constexpr std::string_view kPieces[] = {"-1"sv,
                                                 "0"sv,
                                                 "2.5"sv,
                                                 "1e400"sv,
                                                 "4294967296"sv,
                                                 "9223372036854775808"sv,
                                                 "18446744073709551616"sv,
                                                 "null"sv,
                                                 "true"sv,
                                                 "NaN"sv,
                                                 "["sv,
                                                 "]"sv,
                                                 "{"sv,
                                                 "}"sv,
                                                 "\""sv,
                                                 "\"\""sv,
                                                 ":"sv,
                                                 ","sv,
                                                 "\\"sv,
                                                 "\\ud800"sv,
                                                 " "sv,
                                                 "\n"sv,
                                                 "\r\n"sv,
                                                 "\t"sv,
                                                 "\xff"sv,
                                                 "\xc3"sv,
                                                 "\xed\xa0\x80"sv,
                                                 "\xef\xbb\xbf"sv,
                                                 "\xff\xfe"sv,
                                                 "\0"sv,
                                                 "\0\0\0\0"sv,
                                                 "\xff\xff\xff\xff"sv,
                                                 "\xff\xff\xff\x7f"sv,
                                                 "\0\0\0\x80"sv,
                                                 "\xff\xff\xff\xff\xff\xff\xff\x7f"sv};
  const auto below = [&random](std::size_t count) {
    return static_cast<std::size_t>(random() % std::max<std::size_t>(count, 1));
  };
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t at = below(input.size() + 1);
    const std::string piece(kPieces[below(std::size(kPieces))]);
    const std::size_t some = below(std::min<std::size_t>(input.size() - at, 16) + 1);
    switch (below(7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        input.insert(at, piece);
        break;
      case 2:
        input.replace(at, std::min(piece.size(), input.size() - at), piece);
        break;
      case 3:
        input.erase(at, some);
        break;
      case 4:
        input.insert(at, input.substr(at, some));
        break;
      case 5:
        input.insert(at, input.substr(below(input.size() + 1), 64));
        break;
      default:
        if (below(4) == 0) input.resize(at);
    }
  }
  return input;
}

/// Each input of the target's corpus, and so many that were made of them: the same each time.
/// A value or one of demi's errors is right. $DEMI_FUZZ_MUTATIONS: another number.
inline void fuzz(const FuzzTarget& target, int mutations) {
  const auto expect_right = [&target](const std::string& input) {
    try {
      target.read(input);
    } catch (const Error&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << target.name << " throws " << error.what() << " for "
                    << testing::PrintToString(input);
    }
  };
  const std::vector<std::string> corpus = fuzz_corpus(target);
  ASSERT_FALSE(corpus.empty()) << target.name;
  for (const std::string& input : corpus) expect_right(input);
  if (const char* given = std::getenv("DEMI_FUZZ_MUTATIONS")) mutations = std::stoi(given);
  std::mt19937_64 random(2026);
  for (int i = 0; i < mutations && !testing::Test::HasFailure(); ++i)
    expect_right(mutated(corpus[static_cast<std::size_t>(i) % corpus.size()], random));
}

}  // namespace demi
