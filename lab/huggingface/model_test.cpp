// Truth: models that transformers made, saved and computed (tests/fixtures/huggingface/make.py).
#include "lab/huggingface/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/huggingface/folder.h"
#include "lab/huggingface/write.h"

namespace demi::huggingface {
namespace {

namespace fs = std::filesystem;
using checkpoint::NamedTensors;
using models::GPTForm;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kModels = source_dir() / "tests/fixtures/huggingface";

class TemporaryFolder {
 public:
  TemporaryFolder() { path_ = mkdtemp(name_.data()); }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  std::string name_ = testing::TempDir() + "huggingface-XXXXXX";
  fs::path path_;
};

models::GPT made(const Model& model) {
  models::GPT gpt(model.options);
  const torch::NoGradGuard no_grad;
  const auto parameters = gpt->named_parameters();
  EXPECT_EQ(parameters.size(), model.weights.size());
  for (const auto& item : parameters) item.value().copy_(model.weights.at(item.key()));
  return gpt;
}

class HuggingFace : public testing::TestWithParam<const char*> {
 protected:
  fs::path model() const { return kModels / GetParam(); }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Models, HuggingFace,
                         testing::Values("gpt2", "gpt2_openai", "gpt2_untied", "llama",
                                         "llama_tied"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HuggingFace, HasTransformersLogits) {
  const torch::NoGradGuard no_grad;
  const NamedTensors answers =
      checkpoint::load_safetensors(model() / "answers.safetensors").tensors;
  const auto logits = made(read_model(model()))->forward(answers.at("tokens"));
  EXPECT_LE((logits - answers.at("logits")).abs().max().item<double>(), 1e-5);
}

NamedTensors tensors_in(const fs::path& folder) {
  NamedTensors all;
  for (const fs::path& file : weight_files(folder))
    for (auto& [name, tensor] : checkpoint::load_safetensors(file).tensors)
      if (!name.ends_with(".attn.bias") && !name.ends_with("masked_bias"))
        all[name.starts_with("h.") || name.starts_with("w") || name.starts_with("ln_")
                ? "transformer." + name
                : name] = tensor;
  return all;
}

// Read, and written: the tensors that transformers wrote, whole and in shards.
TEST_P(HuggingFace, WritesWhatTransformersWrote) {
  const NamedTensors want = tensors_in(model());
  for (const int64_t bytes : {int64_t{5'000'000'000}, int64_t{4'000}}) {
    const fs::path folder = folder_.path() / std::to_string(bytes);
    write_model(folder, read_model(model()), {.shard_bytes = bytes});
    EXPECT_EQ(weight_files(folder).size() > 1, bytes == 4'000);
    EXPECT_EQ(fs::exists(folder / "model.safetensors.index.json"), bytes == 4'000);
    const NamedTensors got = tensors_in(folder);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, tensor] : want) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_EQ(got.at(name).scalar_type(), tensor.scalar_type()) << name;
      EXPECT_TRUE(got.at(name).equal(tensor)) << name;
    }
    const Model again = read_model(folder), first = read_model(model());
    EXPECT_EQ(again.options.eps, first.options.eps);
    EXPECT_EQ(again.options.rope_theta, first.options.rope_theta);
    for (const auto& [name, tensor] : first.weights)
      EXPECT_TRUE(again.weights.at(name).equal(tensor)) << name;
  }
}

// A value that no form has where config.json does not say it.
TEST_P(HuggingFace, WritesTheEpsOfItsNorms) {
  Model changed = read_model(model());
  changed.options.eps = 3e-4;
  write_model(folder_.path() / "out", changed, {});
  EXPECT_EQ(read_model(folder_.path() / "out").options.eps, 3e-4);
}

TEST(HuggingFaceFolder, IsToldFromOthers) {
  const TemporaryFolder folder;
  EXPECT_EQ(folder_of(kModels / "gpt2"), kModels / "gpt2");
  for (const char* file : {"model-00001-of-00002.safetensors", "model.safetensors.index.json"})
    EXPECT_EQ(folder_of(kModels / "llama" / file), kModels / "llama") << file;
  EXPECT_FALSE(folder_of(kModels / "llama/answers.safetensors"));
  EXPECT_FALSE(folder_of(kModels));
  EXPECT_FALSE(folder_of(kModels / "absent"));
  // A checkpoint without its manifest is none.
  fs::copy_file(kModels / "gpt2/model.safetensors", folder.path() / "model.safetensors");
  EXPECT_TRUE(folder_of(folder.path()));
  EXPECT_FALSE(folder_of(folder.path() / "model.safetensors"));
  std::ofstream(folder.path() / "state.safetensors") << "";
  EXPECT_FALSE(folder_of(folder.path()));
  fs::remove(folder.path() / "state.safetensors");
  // A run's folder: its config.json has settings; its model's file says whose it is.
  std::ofstream(folder.path() / "config.json") << R"({"model": "gpt", "depth": 2})";
  EXPECT_FALSE(folder_of(folder.path()));
  std::ofstream(folder.path() / "config.json") << R"({"model_type": "gpt2"})";
  EXPECT_TRUE(folder_of(folder.path()));
  std::ofstream(folder.path() / "manifest.json") << R"({"name": "app"})";  // of another program
  EXPECT_TRUE(folder_of(folder.path()));
  checkpoint::save_safetensors(folder.path() / "model.safetensors", {{"a", torch::ones(1)}},
                               {{"demi.config", "{}"}});
  EXPECT_FALSE(folder_of(folder.path() / "model.safetensors"));
}

// tests/huggingface_test.py has a cache that huggingface_hub wrote.
TEST(HuggingFaceFolder, MeansTheSnapshotOfMainInAHubsCache) {
  const TemporaryFolder cache;
  const fs::path model = cache.path() / "models--someone--small", blobs = model / "blobs";
  fs::create_directories(blobs);
  for (const char* revision : {"0f1e", "a9b8"}) {
    fs::create_directories(model / "snapshots" / revision);
    for (const char* file : {"config.json", "model.safetensors"}) {
      const std::string blob = std::string(revision) + file;
      fs::copy_file(kModels / "gpt2" / file, blobs / blob);
      fs::create_symlink(fs::path("../../blobs") / blob, model / "snapshots" / revision / file);
    }
  }
  EXPECT_FALSE(folder_of(model)) << "none of two";
  fs::create_directories(model / "refs");
  std::ofstream(model / "refs/main") << "a9b8";
  EXPECT_EQ(folder_of(model), model / "snapshots/a9b8");
  EXPECT_EQ(read_model(*folder_of(model)).options.heads,
            read_model(kModels / "gpt2").options.heads);
  EXPECT_EQ(folder_of(model / "snapshots/0f1e"), model / "snapshots/0f1e");
  EXPECT_EQ(folder_of(model / "snapshots/0f1e/model.safetensors"), model / "snapshots/0f1e");
  fs::copy(kModels / "gpt2", cache.path() / "other");
  std::ofstream(model / "refs/main") << "../../other";
  EXPECT_FALSE(folder_of(model)) << "a name that leads out of the folder";
}

TEST(HuggingFaceFolder, GivesTheTokenizerBesideIt) {
  const Description without = read_description(kModels / "llama");
  EXPECT_EQ(without.tokenizer.name, "");
  EXPECT_THAT(without.no_tokenizer, HasSubstr("no tokenizer.json"));
  const TemporaryFolder folder;
  const auto copied = [&](const char* name) {
    fs::copy_file(source_dir() / "tests/fixtures/byte_pairs" / name, folder.path() / name,
                  fs::copy_options::overwrite_existing);
  };
  const auto config = [&](int64_t vocabulary) {
    std::ofstream(folder.path() / "config.json")
        << json{{"model_type", "gpt2"}, {"vocab_size", vocabulary}};
  };
  copied("vocab.json");
  copied("merges.txt");
  config(50304);
  const Description pairs = read_description(folder.path());
  EXPECT_EQ(pairs.tokenizer.name, "bpe") << pairs.no_tokenizer;
  copied("tokenizer.json");
  EXPECT_EQ(read_description(folder.path()).tokenizer.name, "bpe");
  config(100);
  EXPECT_THAT(read_description(folder.path()).no_tokenizer,
              HasSubstr("more tokens than the model"));
  std::ofstream(folder.path() / "tokenizer.json") << R"({"model": {"type": "Unigram"}})";
  EXPECT_THAT(read_description(folder.path()).no_tokenizer, HasSubstr("type is not that of GPT-2"));
}

/// A copy of a model, changed.
class Damaged : public testing::Test {
 protected:
  fs::path folder() const { return folder_.path() / "m"; }

  void copy(const char* name) const {
    fs::remove_all(folder());
    fs::copy(kModels / name, folder(), fs::copy_options::recursive);
  }

  std::string refusal() const {
    try {
      read_model(folder());
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("[huggingface.read_model] " + folder_.path().string()));
      return error.what();
    }
    ADD_FAILURE() << "it was read";
    return "";
  }

  /// The error for a model with that entry in its config.json.
  std::string with_entry(const char* model, const char* name, const json& value) const {
    copy(model);
    json config = json::parse(std::ifstream(folder() / "config.json"));
    config[name] = value;
    std::ofstream(folder() / "config.json") << config;
    return refusal();
  }

  std::string with_tensors(const char* model,
                           const std::function<void(NamedTensors&)>& change) const {
    copy(model);
    NamedTensors all = checkpoint::load_safetensors(folder() / "model.safetensors").tensors;
    change(all);
    checkpoint::save_safetensors(folder() / "model.safetensors", all);
    return refusal();
  }

  TemporaryFolder folder_;
};

TEST_F(Damaged, AConfigThatDemiCannotFollowIsRefusedByName) {
  EXPECT_THAT(
      with_entry("llama", "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
      AllOf(HasSubstr("rope_scaling.rope_type"), HasSubstr("llama3"), HasSubstr("\"default\"")));
  EXPECT_THAT(with_entry("llama", "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
              HasSubstr("rope_scaling"));
  EXPECT_THAT(with_entry("llama_tied", "rope_parameters", {{"rope_type", "yarn"}}),
              HasSubstr("rope_parameters"));
  EXPECT_THAT(with_entry("llama", "attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(with_entry("llama", "mlp_bias", true), HasSubstr("mlp_bias"));
  EXPECT_THAT(with_entry("llama", "hidden_act", "gelu"), HasSubstr("accepted: \"silu\""));
  EXPECT_THAT(with_entry("llama", "head_dim", 8), HasSubstr("head_dim"));
  EXPECT_THAT(with_entry("llama", "num_key_value_heads", 3), HasSubstr("3 of 4"));
  EXPECT_THAT(with_entry("llama", "num_attention_heads", 16), HasSubstr("head_dim"));
  EXPECT_THAT(with_entry("llama", "quantization_config", {{"bits", 4}}),
              HasSubstr("quantization_config"));
  EXPECT_THAT(with_entry("llama", "rms_norm_eps", -1), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(with_entry("gpt2", "activation_function", "relu"), HasSubstr("gelu_new"));
  EXPECT_THAT(with_entry("gpt2", "scale_attn_weights", false), HasSubstr("scale_attn_weights"));
  EXPECT_THAT(with_entry("gpt2", "scale_attn_by_inverse_layer_idx", true), HasSubstr("inverse"));
  EXPECT_THAT(with_entry("gpt2", "n_head", 3), HasSubstr("3 heads, width 16"));
  EXPECT_THAT(with_entry("gpt2", "n_layer", 0), HasSubstr("n_layer"));
  EXPECT_THAT(with_entry("gpt2", "n_layer", "two"), HasSubstr("\"two\""));
  EXPECT_THAT(with_entry("gpt2", "model_type", "mistral"),
              AllOf(HasSubstr("seen: mistral"), HasSubstr("gpt2 or llama")));
  copy("gpt2");
  std::ofstream(folder() / "config.json") << "{";
  EXPECT_THAT(refusal(), HasSubstr("not JSON"));
  std::ofstream(folder() / "config.json")
      << R"({"model_type": "gpt2", "n_head": )" << std::string(100'000, '[')
      << std::string(100'000, ']') << "}";
  EXPECT_THAT(refusal(), HasSubstr("more than 512 deep"));
  fs::remove(folder() / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("no such file"));
}

TEST_F(Damaged, TensorsThatContradictTheConfigAreRefused) {
  EXPECT_THAT(with_entry("gpt2", "n_layer", 3),
              AllOf(HasSubstr("transformer.h.2.ln_1.weight is missing"), HasSubstr("9 more")));
  EXPECT_THAT(with_entry("gpt2", "n_layer", 1),
              HasSubstr("transformer.h.1.attn.c_attn.bias is of no part"));
  EXPECT_THAT(with_entry("gpt2", "n_inner", 32),
              HasSubstr("h.0.mlp.c_fc.weight (16, 64) for (16, 32)"));
  EXPECT_THAT(with_entry("gpt2", "vocab_size", 300),
              HasSubstr("wte.weight (257, 16) for (300, 16)"));
  EXPECT_THAT(with_entry("llama", "num_key_value_heads", 4),
              HasSubstr("self_attn.k_proj.weight (8, 16) for (16, 16)"));
  EXPECT_THAT(with_entry("gpt2", "tie_word_embeddings", false),
              HasSubstr("seen: lm_head.weight is missing"));
  EXPECT_THAT(with_tensors("gpt2", [](NamedTensors& all) { all.erase("transformer.ln_f.bias"); }),
              HasSubstr("transformer.ln_f.bias is missing"));
  EXPECT_THAT(
      with_tensors("gpt2", [](NamedTensors& all) { all["adapter.weight"] = torch::ones(2); }),
      HasSubstr("adapter.weight is of no part"));
  for (const auto dtype : {torch::kChar, torch::kFloat8_e4m3fn})
    EXPECT_THAT(
        with_tensors("gpt2",
                     [&](NamedTensors& all) {
                       auto& one = all["transformer.wpe.weight"];
                       one = one.to(dtype);
                     }),
        AllOf(HasSubstr("transformer.wpe.weight of "), HasSubstr("fp64, fp32, fp16 or bf16")));
  EXPECT_THAT(with_tensors("gpt2",
                           [](NamedTensors& all) {
                             all["lm_head.weight"] = all["transformer.wte.weight"] + 1;
                           }),
              HasSubstr("they differ"));
  EXPECT_THAT(with_tensors("gpt2",
                           [](NamedTensors& all) {
                             all = {{"layers.0.attention.wq.weight", torch::ones({2, 2})}};
                           }),
              HasSubstr("Meta's names"));
}

TEST_F(Damaged, NamesOfPytorchsWrappersAreRead) {
  copy("llama_tied");
  const NamedTensors whole = checkpoint::load_safetensors(folder() / "model.safetensors").tensors;
  for (const char* wrapper : {"_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."}) {
    NamedTensors all;
    for (const auto& [name, tensor] : whole) all[wrapper + name] = tensor;
    checkpoint::save_safetensors(folder() / "model.safetensors", all);
    EXPECT_EQ(read_model(folder()).weights.size(),
              read_model(kModels / "llama_tied").weights.size())
        << wrapper;
  }
  EXPECT_THAT(
      with_tensors("gpt2",
                   [](NamedTensors& all) {
                     NamedTensors others;
                     for (const auto& [name, tensor] : all) others["net." + name] = tensor;
                     all = others;
                   }),
      AllOf(HasSubstr("is missing"), HasSubstr("more, as net.transformer.wte.weight is of")));
}

// Older files of tied models hold the head, too.
TEST_F(Damaged, AHeadThatIsTheEmbeddingIsAccepted) {
  copy("llama_tied");
  NamedTensors all = checkpoint::load_safetensors(folder() / "model.safetensors").tensors;
  all["lm_head.weight"] = all["model.embed_tokens.weight"].clone();
  checkpoint::save_safetensors(folder() / "model.safetensors", all);
  EXPECT_FALSE(read_model(folder()).weights.contains("head.weight"));
}

TEST_F(Damaged, ShardsThatAreNotThoseOfTheIndexAreRefused) {
  copy("llama");
  fs::remove(folder() / "model-00002-of-00002.safetensors");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("a shard is missing"),
                               HasSubstr("model-00002-of-00002.safetensors")));
  const auto with_index = [&](const std::function<void(json&)>& change) {
    copy("llama");
    const fs::path file = folder() / "model.safetensors.index.json";
    json index = json::parse(std::ifstream(file));
    change(index);
    std::ofstream(file) << index;
    return refusal();
  };
  EXPECT_THAT(with_index([](json& index) { index.erase("weight_map"); }), HasSubstr("weight_map"));
  EXPECT_THAT(with_index([](json& index) {
                index["weight_map"] = {{"a", 1}};
              }),
              HasSubstr("the index is damaged"));
  EXPECT_THAT(with_index([](json& index) { index["weight_map"] = json::object(); }),
              HasSubstr("names no tensors"));
  EXPECT_THAT(with_index([](json& index) { index["weight_map"]["a"] = "../secret"; }),
              HasSubstr("../secret"));
  EXPECT_THAT(with_index([](json& index) {
                index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors";
              }),
              HasSubstr("lm_head.weight is not in model-00001"));
  copy("llama");
  fs::copy_file(folder() / "model-00001-of-00002.safetensors",
                folder() / "model-00002-of-00002.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), HasSubstr("in two files"));
  copy("gpt2");
  fs::remove(folder() / "config.json");
  EXPECT_TRUE(folder_of(folder()));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("no such file")));
  copy("gpt2");
  fs::copy_file(source_dir() / "tests/fixtures/git_lfs/pointer", folder() / "config.json",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("git lfs pull")));
  copy("gpt2");
  fs::copy_file(source_dir() / "tests/fixtures/git_lfs/pointer", folder() / "model.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT([&] { read_model(folder()); },
              testing::ThrowsMessage<DataError>(
                  AllOf(HasSubstr("model.safetensors"), HasSubstr("git lfs pull"))));
  copy("gpt2");
  fs::rename(folder() / "model.safetensors", folder() / "pytorch_model.bin");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save_pretrained")));
}

// Truth: what peft wrote (tests/fixtures/adapters/make.py, which follows the advice, too).
TEST(HuggingFaceFolder, OfAnAdapterIsRefusedWithTheWayToAWholeModel) {
  const fs::path adapter = source_dir() / "tests/fixtures/adapters/peft";
  for (const fs::path& named : {adapter, adapter / "adapter_model.safetensors"}) {
    ASSERT_TRUE(folder_of(named)) << named;
    EXPECT_THAT([&] { read_model(*folder_of(named)); },
                testing::ThrowsMessage<DataError>(
                    AllOf(HasSubstr("adapter_config.json"), HasSubstr("merge_and_unload"))));
  }
}

TEST(WriteModel, RefusesWhatTransformersHasNot) {
  const TemporaryFolder folder;
  const auto write = [&](const models::GPTOptions& o, const WriteOptions& options = {}) {
    models::GPT gpt(o);
    Model model{.options = o};
    for (const auto& item : gpt->named_parameters()) model.weights[item.key()] = item.value();
    return write_model(folder.path() / "m", model, options);
  };
  const models::GPTOptions small{
      .vocabulary = 7, .context = 8, .width = 8, .layers = 1, .heads = 2};
  auto nanochat = small, shared = small;
  nanochat.form = GPTForm::nanochat;
  shared.key_heads = 1;
  EXPECT_THROW(write(nanochat), UsageError);
  EXPECT_THROW(write(shared), UsageError);
  EXPECT_THROW(write(small, {.dtype = torch::kDouble}), UsageError);
  EXPECT_THROW(write(small, {.shard_bytes = 0}), UsageError);
  EXPECT_THROW(write_model(folder.path() / "m", {.options = small}), UsageError) << "no weights";
  EXPECT_FALSE(fs::exists(folder.path() / "m"));
  EXPECT_THAT(write(small), testing::ElementsAre("model.safetensors", "config.json"));
  EXPECT_THROW(write(small), UsageError) << "not empty";
}

// Biases of 0 are the same function as none.
TEST(WriteModel, GivesAModelWithoutBiasesZeros) {
  const TemporaryFolder folder;
  const torch::NoGradGuard no_grad;
  const models::GPTOptions options{
      .vocabulary = 7, .context = 8, .width = 8, .layers = 2, .heads = 2, .bias = false};
  models::GPT gpt(options);
  Model model{.options = options};
  for (const auto& item : gpt->named_parameters()) model.weights[item.key()] = item.value().mul_(9);
  write_model(folder.path() / "m", model);
  const auto tokens = torch::arange(7).unsqueeze(0);
  const auto got = made(read_model(folder.path() / "m"))->forward(tokens);
  EXPECT_LE((got - gpt->forward(tokens)).abs().max().item<double>(), 1e-5);
  write_model(folder.path() / "half", model, {.dtype = torch::kHalf});
  EXPECT_EQ(read_model(folder.path() / "half").weights.at("norm.bias").scalar_type(), torch::kHalf);
  const json config = json::parse(std::ifstream(folder.path() / "half/config.json"));
  EXPECT_EQ(config["torch_dtype"], "float16");
}

TEST(WriteModel, WritesFP64AndReadsIt) {
  const TemporaryFolder folder;
  Model model = read_model(kModels / "llama_tied");
  for (auto& [name, tensor] : model.weights) tensor = tensor.to(torch::kDouble) + 1e-12;
  write_model(folder.path() / "m", model);
  const json config = json::parse(std::ifstream(folder.path() / "m/config.json"));
  EXPECT_EQ(config["torch_dtype"], "float64");
  for (const auto& [name, tensor] : read_model(folder.path() / "m").weights)
    EXPECT_TRUE(tensor.equal(model.weights.at(name))) << name;
}

TEST(WriteModel, RefusesToMakeAnInfOfAWeight) {
  const TemporaryFolder folder;
  Model model = read_model(kModels / "gpt2");
  model.weights.at("norm.bias")[3] = 1e5;
  const auto write = [&](c10::ScalarType dtype) {
    write_model(folder.path() / c10::toString(dtype), model, {.dtype = dtype});
  };
  EXPECT_THAT([&] { write(torch::kHalf); },
              testing::ThrowsMessage<DataError>(AllOf(
                  HasSubstr("a value of norm.bias is beyond the range of fp16; seen: 100000"))));
  EXPECT_FALSE(fs::exists(folder.path() / "Half"));
  EXPECT_NO_THROW(write(torch::kBFloat16));
}

// What is written is what was read: the same tokens, by either kind of file.
TEST(WriteModel, WritesTheTokenizer) {
  const TemporaryFolder folder;
  const fs::path pairs = source_dir() / "tests/fixtures/byte_pairs";
  const fs::path source = folder.path() / "source", target = folder.path() / "target";
  fs::create_directories(source);
  fs::copy_file(pairs / "tokenizer.json", source / "tokenizer.json");
  std::ofstream(source / "config.json") << R"({"model_type": "gpt2"})";
  const tokens::TokenizerTexts tokenizer = read_description(source).tokenizer;
  ASSERT_FALSE(tokenizer.merges.empty());
  const models::GPTOptions options{
      .vocabulary = 50257, .context = 2, .width = 2, .layers = 1, .heads = 1};
  models::GPT gpt(options);
  Model model{.options = options};
  for (const auto& item : gpt->named_parameters()) model.weights[item.key()] = item.value();
  write_model(target, model, {.tokenizer = tokenizer});
  EXPECT_EQ(read_description(target).tokenizer, tokenizer) << read_description(target).no_tokenizer;
  fs::remove(target / "tokenizer.json");
  EXPECT_EQ(read_description(target).tokenizer, tokenizer) << read_description(target).no_tokenizer;
}

}  // namespace
}  // namespace demi::huggingface
