// Truth: tokenizers that transformers and tokenizers saved, and their tokens of some texts
// (tests/fixtures/tokenizers/make.py).
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/tokens/answer_lines_testing.h"
#include "lab/tokens/byte_pair.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A folder of one form, with the vocabulary that its fixture leaves out.
class Form {
 public:
  explicit Form(const std::string& name)
      : fixture_(source_dir() / "tests/fixtures/tokenizers" / name),
        folder_(fs::temp_directory_path() / ("demi-form-" + name + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    if (fs::exists(fixture_)) fs::copy(fixture_, folder_);
    if (fs::exists(folder_ / "tokenizer.json")) return;
    for (const char* file : {"vocab.json", "merges.txt"})
      fs::copy(source_dir() / "tests/fixtures/tokenizers/base" / file, folder_);
  }
  ~Form() { fs::remove_all(folder_); }
  Form(const Form&) = delete;
  Form& operator=(const Form&) = delete;

  const fs::path& folder() const { return folder_; }

  void write(const char* file, const std::string& content) const {
    std::ofstream(folder_ / file) << content;
  }

  std::vector<int32_t> encode(const std::string& text) const {
    return byte_pair_tokenizer(read_byte_pairs(folder_))->encode(text);
  }

  std::string complaint() const {
    try {
      byte_pair_tokenizer(read_byte_pairs(folder_));
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

 private:
  fs::path fixture_, folder_;
};

class BytePairForm : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Forms, BytePairForm,
                         ::testing::Values("published", "transformers_5", "transformers_4",
                                           "transformers_4_python", "transformers_4_prefix",
                                           "prefix", "truncated"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(BytePairForm, HasTheTokensOfItsWriter) {
  const Form form(GetParam());
  const auto made = byte_pair_tokenizer(read_byte_pairs(form.folder()));
  const auto again = tokenizer_of(made->texts());
  EXPECT_EQ(for_each_answer(form.folder() / "answers.txt",
                            [&](const std::string& text, const std::vector<int32_t>& tokens) {
                              EXPECT_EQ(made->encode(text), tokens) << text;
                              EXPECT_EQ(again->encode(text), tokens) << text;
                            }),
            11);
}

TEST(BytePairForms, KeepWhichTokensAreSpecial) {
  for (const char* name : {"transformers_5", "transformers_4_python"}) {
    const BytePairs pairs = read_byte_pairs(Form(name).folder());
    const auto of = [&](const std::string& text) {
      return std::ranges::find(pairs.added, text, &AddedToken::text)->special;
    };
    EXPECT_TRUE(of("<|endoftext|>")) << name;
    EXPECT_TRUE(of("<pad>")) << name;
    EXPECT_FALSE(of("<x>")) << name;
    EXPECT_EQ(byte_pairs_of(texts_of(pairs)).added, pairs.added) << name;
  }
}

// Each of these has other tokens of a text than the vocabulary alone.
TEST(BytePairForms, ThatAddTokensAreRefusedByWhatAddsThem) {
  EXPECT_THAT(Form("bos_5").complaint(),
              AllOf(HasSubstr("post_processor adds tokens"), HasSubstr("processors.ByteLevel()")));
  EXPECT_THAT(Form("bos_4_python").complaint(), HasSubstr("add_bos_token"));
  EXPECT_THAT(Form("roberta_4").complaint(), HasSubstr("post_processor adds tokens"));
  EXPECT_THAT(Form("roberta_4_python").complaint(),
              AllOf(HasSubstr("tokenizer_class"), HasSubstr("RobertaTokenizer"),
                    HasSubstr(".save_pretrained(OTHER)")));
  EXPECT_THAT(Form("qwen2_4_python").complaint(), HasSubstr("Qwen2Tokenizer"));
}

// By hand: files of GPT-2's class before transformers 4.34 name tokens in other files.
TEST(BytePairForms, OfOlderFilesNameTheirTokensBesideThem) {
  const Form form("older");
  EXPECT_THAT(form.encode("<|endoftext|>"), ElementsAre(275)) << "GPT-2's own, unsaid";
  form.write("special_tokens_map.json",
             R"({"bos_token": "he", "eos_token": {"content": "<pad>"}, "unk_token": "he",
                 "additional_special_tokens": ["the"]})");
  form.write("added_tokens.json", R"({"<pad>": 276})");
  EXPECT_THAT(form.encode("<pad>the"), ElementsAre(276, 257));
  EXPECT_GT(form.encode("<|endoftext|>").size(), 1u) << "all three are others";
  EXPECT_EQ(read_byte_pairs(form.folder()).added.size(), 3u);
  form.write("tokenizer_config.json", R"({"unk_token": "<|endoftext|>"})");
  EXPECT_THAT(form.encode("<|endoftext|>"), ElementsAre(275));
  form.write("tokenizer_config.json", R"({"mask_token": "<mask>"})");
  EXPECT_THAT(form.complaint(), HasSubstr("a special token has no number; seen: <mask>"));
  form.write("added_tokens.json", R"({"<pad>": 400})");
  EXPECT_THAT(form.complaint(), HasSubstr("seen: <mask>"));
  form.write("tokenizer_config.json", R"({"eos_token": {"content": "<pad>", "lstrip": true}})");
  EXPECT_THAT(form.complaint(), HasSubstr("lstrip"));
  form.write("tokenizer_config.json", "[]");
  EXPECT_THAT(form.complaint(), HasSubstr("no JSON object"));
  form.write("tokenizer_config.json", "{}");
  EXPECT_THAT(form.complaint(), HasSubstr("beyond the others; seen: 400"));
  form.write("config.json", R"({"model_type": "roberta"})");
  EXPECT_THAT(form.complaint(), HasSubstr("a tokenizer of their own; seen: \"roberta\""));
}

TEST(BytePairForms, SayWhatDoesNotAgree) {
  const Form form("transformers_5");
  form.write("tokenizer_config.json", R"({"add_prefix_space": true})");
  EXPECT_THAT(form.complaint(), HasSubstr("add_prefix_space is not that of tokenizer.json"));
  form.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_THAT(form.complaint(), HasSubstr("a special token has no number; seen: <end>"));
}

// A field of another type is damage, and nothing else.
TEST(BytePairForms, WithFieldsOfOtherTypesAreReadOrRefused) {
  using nlohmann::json;
  const json values[] = {nullptr,
                         true,
                         3,
                         -1e99,
                         "x",
                         json::array(),
                         json::object(),
                         {{"content", 3}},
                         {{"x", {{"content", "x"}}}},
                         json::array({json::object()}),
                         json::array({"x", nullptr})};
  for (const char* name : {"transformers_4_python", "transformers_5"}) {
    const Form form(name);
    for (const char* file : {"tokenizer_config.json", "special_tokens_map.json",
                             "added_tokens.json", "tokenizer.json"}) {
      if (!fs::exists(form.folder() / file)) continue;
      const json whole = json::parse(std::ifstream(form.folder() / file));
      for (const auto& [field, unused] : whole.items())
        for (const json& value : values) {
          json changed = whole;
          changed[field] = value;
          form.write(file, changed.dump());
          EXPECT_NO_THROW(form.complaint()) << file << ": " << field << " = " << value;
        }
      for (const json& value : values) {
        form.write(file, value.dump());
        EXPECT_NO_THROW(form.complaint()) << file << ": " << value;
      }
      form.write(file, whole.dump());
    }
  }
}

TEST(BytePairForms, NameAPointerOfGitLfs) {
  const Form form("pointer");
  form.write("vocab.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  EXPECT_THAT(form.complaint(), AllOf(HasSubstr("git-lfs's pointer"), HasSubstr("git lfs pull")));
}

}  // namespace
}  // namespace demi::tokens
