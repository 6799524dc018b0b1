#include "lab/workload/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "demi/core/json.h"
#include "demi/train/names.h"
#include "lab/recipes/job.h"
#include "lab/recipes/run.h"
#include "lab/recipes/small_mlp_testing.h"
#include "lab/settings/config_source.h"
#include "lab/settings/resolved.h"
#include "lab/tokens/byte_pair.h"
#include "lab/workload/model_data.h"
#include "lab/workload/weights_file.h"

namespace demi::workload {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelFileTest : public ::testing::Test {
 protected:
  ModelFileTest()
      : folder_(fs::temp_directory_path() / ("demi-model-file-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~ModelFileTest() override { fs::remove_all(folder_); }

  /// The setting of a member of demi.model's network.
  static std::string setting_of(std::string key) {
    if (key == "name") return "model";
    if (key == "output") return "model-output";
    if (key == "layers") return "depth";
    std::ranges::replace(key, '_', '-');
    return key;
  }
  /// The settings of small_mlp(), with the network that demi.model describes.
  static settings::Config config_of(const checkpoint::Metadata& texts) {
    settings::Config config = recipes::small_mlp();
    const auto found = texts.find("demi.model");
    const auto model = found == texts.end() ? nlohmann::json() : json_or_null(found->second);
    if (!model.is_object() || !model.contains("network") || !model["network"].is_object())
      return config;
    for (const auto& [key, value] : model["network"].items()) {
      const std::string name = setting_of(key);
      if (name == "identity" || value == "lstn") continue;
      settings::set(config, name, value.is_string() ? value.get<std::string>() : value.dump(),
                    "the test");
    }
    return config;
  }
  /// A file of texts whose tensors do not matter.
  fs::path save(const checkpoint::Metadata& texts, const std::string& name = "m.safetensors") {
    checkpoint::Metadata all = texts;
    all["demi.precision"] = "fp32";
    if (!texts.contains("demi.config")) all["demi.config"] = settings::to_json(config_of(texts));
    all["demi.crc32c"];
    checkpoint::save_safetensors(folder_ / name, {{"weight", at::ones({4})}}, all);
    return folder_ / name;
  }
  static ModelDescription of_texts(int64_t words) {
    ModelDescription model;
    model.network.model = "lstm";
    model.network.model_settings = {{"pool", "mean"}, {"hidden", "32"}, {"bidirectional", "true"}};
    model.shape.vocabulary = words;
    model.classes = {"neg", "p\u00f6s \"x\"", "a b\nc"};
    model.input = {.kind = data::Kind::texts, .max_length = 17};
    model.loss = "cross-entropy";
    model.precision = "bf16";
    model.is_average = true;
    return model;
  }
  std::string complaint(const fs::path& file) {
    try {
      read_model_texts(file);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no DataError";
  }

  fs::path folder_;
};

// --vocabulary-size
TEST_F(ModelFileTest, HasTheWordsOfItsModelAlone) {
  const data::Vocabulary all({"<unk>", "the", "film", "rare"});
  const ModelTexts read = read_model_texts(save(model_texts(of_texts(3), &all)));
  EXPECT_TRUE(std::ranges::equal(read.vocabulary->words(), all.words().first(3)));
}

// 100,000 words and more, above the 64 KiB of short texts.
data::Vocabulary many_words(int64_t count) {
  std::vector<std::string> words{"<unk>"};
  for (int64_t i = 1; i < count; ++i) words.push_back("w" + std::to_string(i * 7919 % 1'000'003));
  words[5] = "\\back\\slash";
  words[6] = "na\u00efve";
  return data::Vocabulary(std::move(words));
}

TEST_F(ModelFileTest, GivesBackWhatWasDescribed) {
  const data::Vocabulary vocabulary = many_words(100'682);
  const ModelDescription model = of_texts(vocabulary.size());
  const ModelTexts read = read_model_texts(save(model_texts(model, &vocabulary)));
  ASSERT_TRUE(read.description);
  EXPECT_EQ(read.description->classes, model.classes);
  EXPECT_EQ(read.description->network.model, "lstm");
  const auto said = [&](std::string_view name) {
    return settings::find_setting(name)->get(read.description->network);
  };
  EXPECT_EQ(said("pool"), "mean");
  EXPECT_EQ(said("hidden"), "32");
  EXPECT_EQ(said("bidirectional"), "true");
  EXPECT_EQ(read.description->input.max_length, 17);
  EXPECT_EQ(read.description->input.kind, data::Kind::texts);
  EXPECT_EQ(read.description->loss, "cross-entropy");
  EXPECT_EQ(read.description->precision, "bf16");
  EXPECT_TRUE(read.description->is_average);
  EXPECT_EQ(read.description->shape.classes, 3);
  ASSERT_TRUE(read.vocabulary);
  EXPECT_TRUE(std::ranges::equal(read.vocabulary->words(), vocabulary.words()));
  EXPECT_EQ(read.config.batch_size, 8) << "demi.config is read as before";
}

TEST_F(ModelFileTest, PicturesKeepTheBitsOfTheirNormalisation) {
  ModelDescription model;
  model.network.model = "resnet18";
  model.shape = {.channels = 3, .size = 32};
  model.classes = {"cat", "dog"};
  model.input = {.kind = data::Kind::pictures,
                 .mean = {0.1, 1.0 / 3, 0.4822},
                 .std = {0.2023, 5e-324, 1},
                 .from_photographs = true};
  const ModelTexts read = read_model_texts(save(model_texts(model, nullptr)));
  EXPECT_EQ(read.description->input.mean, model.input.mean);
  EXPECT_EQ(read.description->input.std, model.input.std);
  EXPECT_TRUE(read.description->input.from_photographs);
  EXPECT_EQ(read.description->shape.size, 32);
  EXPECT_EQ(read.description->shape.channels, 3);
  EXPECT_FALSE(read.vocabulary);
}

// 1.1 x the bytes of the words, each with what separates it from the next.
TEST_F(ModelFileTest, GrowsByHardlyMoreThanItsWords) {
  const data::Vocabulary few = many_words(10), many = many_words(100'682);
  const auto bytes = [](const data::Vocabulary& vocabulary) {
    std::size_t sum = 0;
    for (const std::string& word : vocabulary.words()) sum += word.size() + 1;
    return static_cast<double>(sum);
  };
  const auto small = fs::file_size(save(model_texts(of_texts(10), &few), "small")),
             large = fs::file_size(save(model_texts(of_texts(100'682), &many), "large"));
  EXPECT_LT(static_cast<double>(large - small), 1.1 * (bytes(many) - bytes(few)));
}

TEST_F(ModelFileTest, OfANewerVersionIsRefusedWithBothNumbers) {
  const data::Vocabulary vocabulary = many_words(10);
  checkpoint::Metadata texts = model_texts(of_texts(10), &vocabulary);
  texts["demi.file"] = "7";
  texts["demi.model"] = "[another form]";
  EXPECT_THAT(complaint(save(texts)), AllOf(HasSubstr("version 7"), HasSubstr("at most 1")));
  for (const char* none : {"", "one", "-1", "1x", "99999999999999999999"}) {
    texts["demi.file"] = none;
    EXPECT_THAT(complaint(save(texts)), HasSubstr("demi.file")) << none;
  }
}

TEST_F(ModelFileTest, TextsThatContradictEachOtherAreRefused) {
  const data::Vocabulary vocabulary = many_words(10);
  const checkpoint::Metadata whole = model_texts(of_texts(10), &vocabulary);
  const auto with = [&](const char* name, const std::string& text) {
    checkpoint::Metadata texts = whole;
    texts[name] = text;
    return complaint(save(texts));
  };
  EXPECT_THAT(with("demi.vocabulary", "<unk> a b"), AllOf(HasSubstr("3 words"), HasSubstr("10")));
  EXPECT_THAT(with("demi.vocabulary", "<unk> a a b c d e f g h"), HasSubstr("occurs twice"));
  EXPECT_THAT(with("demi.vocabulary", "a b c d e f g h i j"), HasSubstr("<unk>"));
  for (const char* damaged : {"", "{", "[]", "{}", R"({"network":1})"})
    EXPECT_THAT(with("demi.model", damaged), HasSubstr("demi.model")) << damaged;
  const auto replaced = [&](const std::string& old, const std::string& now) {
    std::string text = whole.at("demi.model");
    return with("demi.model", text.replace(text.find(old), old.size(), now));
  };
  EXPECT_THAT(replaced("\"lstm\"", "\"lstn\""), HasSubstr("did you mean lstm"));
  EXPECT_THAT(replaced("basic_english", "wordpiece"),
              AllOf(HasSubstr("wordpiece"), HasSubstr("basic_english")));
  EXPECT_THAT(replaced("\"tokenizer_version\":1", "\"tokenizer_version\":2"),
              HasSubstr("basic_english 2"));
  for (const char* missing : {"demi.model", "demi.vocabulary"}) {
    checkpoint::Metadata texts = whole;
    texts.erase(missing);
    EXPECT_THAT(complaint(save(texts)), HasSubstr(missing));
  }
}

TEST_F(ModelFileTest, OfPicturesThatNoRunHasIsRefused) {
  const auto with = [&](int64_t channels, int64_t size, std::vector<double> mean) {
    ModelDescription model = of_texts(3);
    model.network.model = "simple-cnn";
    model.shape = {.channels = channels, .size = size};
    model.input = {.kind = data::Kind::pictures, .mean = std::move(mean), .std = {0.5, 0.5, 0.5}};
    return complaint(save(model_texts(model, nullptr)));
  };
  EXPECT_EQ(with(3, 32, {0, 0, 0}), "no DataError");
  EXPECT_THAT(with(3, int64_t{1} << 40, {0, 0, 0}), HasSubstr("3 channels of 1099511627776 x"));
  EXPECT_THAT(with(0, 32, {0, 0, 0}), HasSubstr("0 channels"));
  EXPECT_THAT(with(3, 32, {}), HasSubstr("seen: 0 and 3 values"));
}

// Each setting of the network that demi.model has, another one in demi.config.
TEST_F(ModelFileTest, WhoseTwoTextsDescribeOtherNetworksIsRefused) {
  const auto compare = [this](const ModelDescription& model, const data::Vocabulary* words) {
    checkpoint::Metadata texts = model_texts(model, words);
    const settings::Config same = config_of(texts);
    EXPECT_EQ(complaint(save(texts)), "no DataError");
    const nlohmann::json network = read_json(texts.at("demi.model")).at("network");
    for (const auto& [key, value] : network.items()) {
      const std::string name = setting_of(key);
      const std::string other = key == "name"        ? "vgg19"
                                : key == "pool"      ? "max"
                                : key == "block"     ? "llama"
                                : key == "tied_head" ? "off"
                                : value.is_boolean() ? (value.get<bool>() ? "false" : "true")
                                : key == "dropout"   ? "0.25"
                                : key == "norm_eps"  ? "0.5"
                                                     : "24";
      settings::Config config = same;
      settings::set(config, name, other, "the test");
      texts["demi.config"] = settings::to_json(config);
      EXPECT_THAT(complaint(save(texts)),
                  AllOf(HasSubstr("differ in the network's " + key),
                        HasSubstr(value.dump() + " and "), HasSubstr(other)));
    }
    return network.size();
  };
  const data::Vocabulary vocabulary = many_words(10);
  EXPECT_EQ(compare(of_texts(10), &vocabulary), 5U);
  ModelDescription tokens = of_texts(10);
  tokens.network.model = "gpt";
  tokens.input = {.kind = data::Kind::tokens};
  tokens.tokenizer.name = "bytes";
  EXPECT_EQ(compare(tokens, nullptr), 13U);
}

// nlohmann's own get() makes 2 of 2.5.
TEST_F(ModelFileTest, WithNumbersOfAnotherKindIsRefusedWithTheirPlace) {
  const data::Vocabulary vocabulary = many_words(10);
  checkpoint::Metadata texts = model_texts(of_texts(10), &vocabulary);
  const std::string whole = texts.at("demi.model");
  const auto with = [&](const std::string& old, const std::string& now) {
    std::string text = whole;
    texts["demi.model"] = text.replace(text.find(old), old.size(), now);
    return complaint(save(texts));
  };
  texts["demi.config"] = settings::to_json(config_of(texts));
  EXPECT_THAT(with("\"hidden\":32", "\"hidden\":32.5"), HasSubstr("network.hidden is 32.5"));
  EXPECT_THAT(with("\"hidden\":32", "\"hidden\":0"),
              AllOf(HasSubstr("damaged"), HasSubstr("[network.hidden] too small; seen: 0")));
  EXPECT_THAT(with("\"pool\":\"mean\"", "\"pool\":\"median\""),
              HasSubstr("[network.pool] not accepted; seen: median"));
  EXPECT_THAT(with("\"hidden\":32", "\"hidden\":32,\"hidden\":32"),
              HasSubstr("network.hidden: the name stands twice"));
  EXPECT_THAT(with("\"max_length\":17", "\"max_length\":9223372036854775808"),
              HasSubstr("input.max_length is 9223372036854775808"));
  EXPECT_THAT(with("\"max_length\":17", "\"max_length\":1e400"),
              AllOf(HasSubstr("input.max_length: "), HasSubstr("1e400")));
  EXPECT_THAT(with("\"average\":true", "\"average\":1"), HasSubstr("average is 1"));
}

TEST_F(ModelFileTest, WithoutTheseTextsIsAnOlderFile) {
  const ModelTexts read = read_model_texts(save({}));
  EXPECT_FALSE(read.description);
  EXPECT_FALSE(read.vocabulary);
  EXPECT_EQ(read.config.model, "mlp");
  checkpoint::save_safetensors(folder_ / "python", {{"weight", at::ones({4})}});
  EXPECT_THAT(complaint(folder_ / "python"), HasSubstr("does not say which run it is from"));
}

TEST_F(ModelFileTest, WithValuesThatChangedIsRefused) {
  const fs::path file = save({});
  EXPECT_EQ(read_model_file(file).weights.size(), 1U);
  std::fstream(file, std::ios::binary | std::ios::in | std::ios::out)
      .seekp(-1, std::ios::end)
      .put('\x01');
  EXPECT_NO_THROW(read_model_texts(file)) << "the tensors are not read";
  try {
    read_model_file(file);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("demi inspect --verify"));
  }
}

// The weights file that is shipped and the checkpoint of one run, and no path of the trainer's.
TEST_F(ModelFileTest, EachRunWritesIt) {
  settings::Config config = recipes::small_mlp();
  config.data_dir = "/srv/trainer/secret/data/";
  const Workload workload = load_workload(config, c10::kCPU);
  recipes::run(settings::resolve(config, settings::parse_run("bf16")), workload,
               {.folder = folder_, .checkpoints = folder_ / "checkpoints"});
  const ModelFile shipped = read_model_file(folder_ / "model.safetensors");
  ASSERT_TRUE(shipped.texts.description);
  EXPECT_EQ(shipped.texts.description->precision, "bf16");
  EXPECT_EQ(shipped.texts.description->input.kind, data::Kind::rows);
  EXPECT_EQ(shipped.texts.description->network.in, 8);
  EXPECT_TRUE(shipped.texts.description->classes.empty());
  EXPECT_EQ(shipped.texts.config.data_dir, "data");
  const std::string bytes{
      std::istreambuf_iterator<char>(
          std::ifstream(folder_ / "model.safetensors", std::ios::binary).rdbuf()),
      {}};
  EXPECT_EQ(bytes.find("/srv/trainer"), std::string::npos);
  const ModelFile saved = read_model_file(folder_);
  ASSERT_TRUE(saved.texts.description);
  EXPECT_EQ(saved.texts.config.data_dir, "/srv/trainer/secret/data/");
  // The checkpoint's file by itself.
  fs::copy_file(checkpoint::find(folder_) / "model.safetensors", folder_ / "alone");
  EXPECT_TRUE(read_model_file(folder_ / "alone").texts.description);
}

// Vocabulary and merges of byte pairs; a file of an older version has the name alone.
TEST_F(ModelFileTest, HasTheTokenizerOfARunningText) {
  tokens::BytePairs pairs{.merges = {{"a", "b"}}};
  for (int byte = 0; byte < 256; ++byte)
    pairs.symbols.push_back(tokens::byte_symbol(static_cast<unsigned char>(byte)));
  pairs.symbols.emplace_back("ab");
  ModelDescription model;
  model.network.model = "gpt";
  model.input.kind = data::Kind::tokens;
  const auto bpe = tokens::byte_pair_tokenizer(pairs),
             characters = tokens::characters_of("b\na\u00fc"), bytes = tokens::bytes();
  for (const auto* tokenizer : {bpe.get(), characters.get(), bytes.get()}) {
    model.tokenizer = tokenizer->texts();
    model.shape.vocabulary = tokenizer->size();
    const fs::path file = save(model_texts(model, nullptr));
    const ModelTexts read = read_model_texts(file);
    EXPECT_EQ(read.description->tokenizer, model.tokenizer);
    const auto made = tokenizer_of_model(*data_of_model(read, file));
    ASSERT_TRUE(made);
    EXPECT_EQ(made->decode(made->encode("ab")), "ab");
    EXPECT_EQ(made->size(), tokenizer->size());
  }
  model.tokenizer = bpe->texts();
  model.shape.vocabulary = 257;
  const checkpoint::Metadata whole = model_texts(model, nullptr);
  const auto complaint_about = [&](const std::string& name, const std::string& text) {
    checkpoint::Metadata texts = whole;
    if (text.empty())
      texts.erase(name);
    else
      texts[name] = text;
    const fs::path file = save(texts);
    try {
      const auto made = tokenizer_of_model(*data_of_model(read_model_texts(file), file));
      return std::string(made ? "made" : "none");
    } catch (const DataError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(complaint_about("demi.merges", ""), "none");
  EXPECT_THAT(complaint_about("demi.vocabulary", ""), HasSubstr("demi.vocabulary"));
  EXPECT_THAT(complaint_about("demi.merges", "{}"),
              AllOf(HasSubstr("m.safetensors"), HasSubstr("damaged")));
  model.shape.vocabulary = 258;
  const fs::path other = save(model_texts(model, nullptr));
  EXPECT_THROW(tokenizer_of_model(*data_of_model(read_model_texts(other), other)), DataError)
      << "another size";
}

}  // namespace
}  // namespace demi::workload
