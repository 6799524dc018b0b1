#include "lab/tokens/byte_pair.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/tokens/answer_lines_testing.h"
#include "lab/tokens/pre_tokens.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

fs::path fixtures() { return source_dir() / "tests" / "fixtures" / "byte_pairs"; }

/// Calls each(text, tokens) with what PyPI's tokenizers made (make.py beside the files).
int for_each_line(
    const std::function<void(const std::string&, const std::vector<int32_t>&)>& each) {
  return for_each_answer(fixtures() / "lines.txt", each);
}

TEST(BytePair, IsThatOfTokenizersOnOddLines) {
  const auto tokenizer = byte_pair_tokenizer(read_byte_pairs(fixtures()));
  EXPECT_EQ(tokenizer->size(), 600);
  EXPECT_EQ(for_each_line([&](const std::string& text, const std::vector<int32_t>& tokens) {
              EXPECT_EQ(tokenizer->encode(text), tokens) << text;
              EXPECT_EQ(tokenizer->decode(tokens), text);
            }),
            1000);
}

// vocab.json and merges.txt say the same but for <|end|>, which no file beside them names.
TEST(BytePair, TwoFilesSayTheSame) {
  const auto tokenizer = byte_pair_tokenizer(read_byte_pairs(fixtures() / "vocab.json"));
  EXPECT_EQ(for_each_line([&](const std::string& text, const std::vector<int32_t>& tokens) {
              if (text.find("<|end|>") == std::string::npos) {
                EXPECT_EQ(tokenizer->encode(text), tokens) << text;
              }
              EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
            }),
            1000);
  EXPECT_GT(tokenizer->encode("<|end|>").size(), 1u);
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 1u);
}

// By hand: a, b and the blank are bytes; the merges are ab, aab, " a".
BytePairs small() {
  BytePairs pairs;
  for (int byte = 0; byte < 256; ++byte)
    pairs.symbols.push_back(byte_symbol(static_cast<unsigned char>(byte)));
  pairs.symbols.insert(pairs.symbols.end(), {"ab", "aab", "Ġa"});
  pairs.merges = {{"a", "b"}, {"a", "ab"}, {"Ġ", "a"}};
  return pairs;
}

TEST(BytePair, MergesInTheOrderThatWasLearned) {
  const auto tokenizer = byte_pair_tokenizer(small());
  EXPECT_THAT(tokenizer->encode("aab"), ElementsAre(257));
  EXPECT_THAT(tokenizer->encode("aaab"), ElementsAre('a', 257));
  EXPECT_THAT(tokenizer->encode("abab"), ElementsAre(256, 256));
  EXPECT_THAT(tokenizer->encode("b ab"), ElementsAre('b', ' ', 256)) << "ab was learned first";
  EXPECT_THAT(tokenizer->encode("b a"), ElementsAre('b', 258));
}

TEST(BytePair, PutsABlankInFrontIfItsFileSaysSo) {
  BytePairs pairs = small();
  pairs.prefix_blank = true;
  const auto tokenizer = byte_pair_tokenizer(pairs);
  EXPECT_THAT(tokenizer->encode("a"), ElementsAre(258));
  EXPECT_THAT(tokenizer->encode(" a"), ElementsAre(258));
  EXPECT_THAT(tokenizer->encode("\na"), ElementsAre(' ', '\n', 'a'));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
}

TEST(BytePair, OfSeveralAddedTokensTheLongestCounts) {
  BytePairs pairs = small();
  pairs.added = {{"<e>", 259}, {"<e>b", 260}};
  const auto tokenizer = byte_pair_tokenizer(pairs);
  EXPECT_EQ(tokenizer->size(), 261);
  EXPECT_THAT(tokenizer->encode("a<e>b<e>"), ElementsAre('a', 260, 259));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{260, 'a'}), "<e>ba");
}

// One pass: a search for each of them from each place would take minutes.
TEST(BytePair, ManyAddedTokensThatATextLacksTakeNoTimeWithoutEnd) {
  BytePairs pairs = small();
  for (int32_t i = 0; i < 1000; ++i)
    pairs.added.push_back({"<|" + std::to_string(i) + "|>", 259 + i});
  const auto tokenizer = byte_pair_tokenizer(pairs);
  std::string text;
  for (int i = 0; i < 30000; ++i) text += "ab<|0|>";
  const auto tokens = tokenizer->encode(text);
  ASSERT_EQ(tokens.size(), 60000u);
  EXPECT_EQ(tokens[59998], 256);
  EXPECT_EQ(tokens[59999], 259);
}

TEST(BytePair, LooksForNormalizedTokensBetweenTheOthers) {
  BytePairs pairs = small();
  pairs.added = {{"a<e", 259, true, /*normalized=*/true}, {"<e>", 260}};
  EXPECT_THAT(byte_pair_tokenizer(pairs)->encode("a<e>a<e"), ElementsAre('a', 260, 259));
}

TEST(BytePair, ALongWordTakesNoTimeWithoutEnd) {
  const auto tokenizer = byte_pair_tokenizer(small());
  std::string word;
  for (int i = 0; i < 100000; ++i) word += "aab";
  EXPECT_EQ(tokenizer->encode(word), std::vector<int32_t>(100000, 257));
}

TEST(BytePair, SaysWhatIsWrongWithItsParts) {
  const auto with = [](const std::function<void(BytePairs&)>& change) {
    return [change] {
      BytePairs pairs = small();
      change(pairs);
      byte_pair_tokenizer(pairs);
    };
  };
  EXPECT_THAT(with([](BytePairs& p) { p.symbols[7] = "xy"; }),
              ThrowsMessage<DataError>(HasSubstr("byte 7 is no token")));
  EXPECT_THAT(with([](BytePairs& p) { p.symbols.push_back("ab"); }),
              ThrowsMessage<DataError>(HasSubstr("two tokens are the same; seen: ab")));
  EXPECT_THAT(with([](BytePairs& p) { p.merges.emplace_back("b", "zz"); }),
              ThrowsMessage<DataError>(HasSubstr("a merge's part is no token; seen: zz")));
  EXPECT_THAT(with([](BytePairs& p) { p.merges.emplace_back("b", "b"); }),
              ThrowsMessage<DataError>(HasSubstr("a merge's result is no token; seen: bb")));
  EXPECT_THAT(with([](BytePairs& p) {
                p.added = {{"<e>", 300}};
              }),
              ThrowsMessage<DataError>(HasSubstr("seen: 300; accepted: 0 to 259")));
  EXPECT_THAT(with([](BytePairs& p) {
                p.added = {{"<e>", 7}};
              }),
              ThrowsMessage<DataError>(HasSubstr("seen: <e>: 7; accepted: 259 or more")));
  EXPECT_THAT(with([](BytePairs& p) {
                p.added = {{"ab", 259}};
              }),
              ThrowsMessage<DataError>(HasSubstr("seen: ab: 259; accepted: 256")));
  EXPECT_THAT(with([](BytePairs& p) {
                p.added = {{"<e>", 259}, {"<f>", 259}};
              }),
              ThrowsMessage<DataError>(HasSubstr("share a text or a number; seen: <f>")));
  EXPECT_THAT([] { byte_pair_tokenizer(small())->encode("a\xff"); },
              ThrowsMessage<DataError>(HasSubstr("not UTF-8 at byte 1")));
}

class BytePairFile : public ::testing::Test {
 protected:
  BytePairFile() : folder_(fs::temp_directory_path() / ("demi-bpe-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    std::ifstream(fixtures() / "tokenizer.json") >> json_;
  }
  ~BytePairFile() override { fs::remove_all(folder_); }

  std::string complaint() {
    std::ofstream(folder_ / "tokenizer.json") << json_;
    try {
      read_byte_pairs(folder_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
  nlohmann::json json_;
};

// Each of these would give other tokens in silence.
TEST_F(BytePairFile, RefusesRulesThatAreNotGpt2s) {
  EXPECT_EQ(complaint(), "");
  const nlohmann::json whole = json_;
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    json_ = whole;
    json_[nlohmann::json::json_pointer(pointer)] = value;
    return complaint();
  };
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("type is not that of GPT-2's tokenizer"));
  EXPECT_THAT(with("/model/ignore_merges", true), HasSubstr("ignore_merges"));
  EXPECT_EQ(with("/model/byte_fallback", true), "") << "no byte is unknown";
  EXPECT_EQ(with("/model/unk_token", "<unk>"), "");
  EXPECT_THAT(with("/model/some_rule", 3), HasSubstr("demi does not know what some_rule of model"));
  EXPECT_THAT(with("/some_rule", 3), HasSubstr("some_rule of the file"));
  EXPECT_THAT(with("/pre_tokenizer/some_rule", 3), HasSubstr("some_rule of pre_tokenizer"));
  EXPECT_THAT(with("/decoder", {{"type", "Fuse"}}), HasSubstr("seen: \"Fuse\""));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("post_processor"));
  EXPECT_EQ(
      with("/post_processor", {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}}}}),
      "");
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("normalizer"));
  EXPECT_THAT(with("/pre_tokenizer/type", "Whitespace"), HasSubstr("seen: \"Whitespace\""));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(with("/pre_tokenizer/use_regex", false), HasSubstr("use_regex"));
  EXPECT_THAT(with("/added_tokens/0/lstrip", true), HasSubstr("lstrip"));
  EXPECT_THAT(with("/model/vocab/!", 7), HasSubstr("not its own"));
  EXPECT_THAT(with("/model/merges/0", "abc"), HasSubstr("a merge is not two symbols"));
  EXPECT_THAT(with("/model/merges/0", 3), HasSubstr("no tokenizer.json"));
  EXPECT_EQ(with("/model/merges/0", {"h", "e"}).find("merge"), std::string::npos)
      << "newer files have pairs";
}

TEST_F(BytePairFile, SaysWhatItCannotRead) {
  EXPECT_THAT([&] { read_byte_pairs(folder_ / "tokenizer.json"); },
              ThrowsMessage<DataError>(HasSubstr("no such file")));
  std::ofstream(folder_ / "tokenizer.json") << "[";
  EXPECT_THAT([&] { read_byte_pairs(folder_); }, ThrowsMessage<DataError>(HasSubstr("not JSON")));
  std::ofstream(folder_ / "tokenizer.json") << "[]";
  EXPECT_THAT([&] { read_byte_pairs(folder_); },
              ThrowsMessage<DataError>(HasSubstr("no JSON object; seen: array")));
  std::ofstream(folder_ / "vocab.json") << R"({"a": 0, "b": 2})";
  EXPECT_THAT([&] { read_byte_pairs(folder_ / "vocab.json"); },
              ThrowsMessage<DataError>(HasSubstr("accepted: each of 0 to 1 once")));
  std::ofstream(folder_ / "vocab.json") << R"({"a": 0})";
  std::ofstream(folder_ / "merges.txt") << "#version: 0.2\na b c\n";
  EXPECT_THAT([&] { read_byte_pairs(folder_ / "merges.txt"); },
              ThrowsMessage<DataError>(HasSubstr("a merge is not two symbols; seen: a b c")));
}

}  // namespace
}  // namespace demi::tokens
