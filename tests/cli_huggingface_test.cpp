// Folders of Hugging Face's where a model file stands: generate, eval, train --from, inspect, and
// export, which writes them. Truth: transformers' own tokens and losses
// (tests/fixtures/huggingface/make.py).
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <nlohmann/json.hpp>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/source_dir_testing.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;

const fs::path kModels = demi::source_dir() / "tests/fixtures/huggingface";

at::Tensor answer(const std::string& model, const std::string& name) {
  return demi::checkpoint::load_safetensors(kModels / model / "answers.safetensors")
      .tensors.at(name);
}

std::vector<int64_t> greedy(const std::string& model) {
  const at::Tensor tokens = answer(model, "greedy");
  return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel()};
}

class HuggingFaceProgram : public Cli {
 protected:
  std::vector<int64_t> likeliest(const std::string& model) {
    return json_of({"generate", model, "--prompt-tokens", "7,1,200", "--length", "9",
                    "--temperature", "0"})["samples"][0]["tokens"];
  }

  std::string refusal(const Words& words, int code) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  }
};

TEST_F(HuggingFaceProgram, GeneratesTransformersTokens) {
  for (const char* model : {"gpt2_untied", "llama_tied"})
    EXPECT_EQ(likeliest(kModels / model), greedy(model)) << model;
  EXPECT_EQ(likeliest(kModels / "llama/model-00001-of-00002.safetensors"), greedy("llama"));
}

TEST_F(HuggingFaceProgram, AnExportGivesTheSameTokens) {
  const json written = json_of({"export", kModels / "gpt2", folder_ / "gpt2"});
  EXPECT_EQ(written["files"].size(), 6U) << written;
  EXPECT_EQ(likeliest(folder_ / "gpt2"), greedy("gpt2"));
  const Outcome again = run({"export", kModels / "gpt2", folder_ / "gpt2"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("not empty"));
  const json shards = json_of(
      {"export", kModels / "llama", folder_ / "s", "--shard-size", "1e-5", "--dtype", "fp32"});
  EXPECT_GT(shards["files"].size(), 4U);
  EXPECT_EQ(likeliest(folder_ / "s"), greedy("llama"));
}

// A tokenizer that demi does not read, as most of Llama's: SentencePiece's pieces.
TEST_F(HuggingFaceProgram, AnExportKeepsTheTokenizerAndTheEndOfATextOfAFolder) {
  const fs::path source = folder_ / "source", out = folder_ / "exported";
  fs::copy(kModels / "llama", source);
  const std::map<std::string, std::string> files{
      {"tokenizer.json", R"({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0]]}})"},
      {"tokenizer.model", std::string("\x0a\x00\xff", 3)},
      {"special_tokens_map.json", R"({"eos_token": "</s>"})"},
      {"generation_config.json", R"({"eos_token_id": 2, "do_sample": true})"},
      {"chat_template.jinja", "{{ messages }}"}};
  for (const auto& [name, text] : files) small_recipes::write(source / name, text);
  json config = json::parse(slurp(source / "config.json"));
  for (const json& end : {json(2), json({2, 5})}) {
    config["eos_token_id"] = end;
    small_recipes::write(source / "config.json", config.dump());
    fs::remove_all(out);
    const Outcome outcome = run({"export", source, out, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const json exported = json::parse(outcome.out);
    for (const auto& [name, text] : files) {
      EXPECT_EQ(slurp(out / name), text) << name;
      EXPECT_THAT(exported["notes"].dump(), HasSubstr(name));
      EXPECT_THAT(exported["files"].dump(), HasSubstr(name));
    }
    EXPECT_THAT(outcome.err, HasSubstr("Unigram"));
    const json written = json::parse(slurp(out / "config.json"));
    EXPECT_EQ(written["bos_token_id"], 1);
    EXPECT_EQ(written["eos_token_id"], end);
    EXPECT_EQ(written["pad_token_id"], json());
  }
  // transformers' own defaults count where the source has no entry.
  config.erase("eos_token_id");
  small_recipes::write(source / "config.json", config.dump());
  fs::remove_all(out);
  run({"export", source, out});
  EXPECT_FALSE(json::parse(slurp(out / "config.json")).contains("eos_token_id"));
}

TEST_F(HuggingFaceProgram, TheTokenizerBesideItNumbersTexts) {
  const json one = json_of({"generate", kModels / "gpt2", "--prompt", "to a", "--length", "3"});
  EXPECT_EQ(one["prompt_tokens"], json({256, 32, 97}));
  const std::string without = refusal({"generate", kModels / "llama", "--prompt", "to"}, 2);
  EXPECT_THAT(without, AllOf(HasSubstr("no tokenizer.json"), HasSubstr("--prompt-tokens")));
  // A model with more tokens than its tokenizer never writes those.
  const fs::path padded = folder_ / "padded";
  fs::copy(kModels / "gpt2", padded);
  json vocabulary = json::parse(slurp(padded / "vocab.json"));
  vocabulary.erase("to");
  small_recipes::write(padded / "vocab.json", vocabulary.dump());
  small_recipes::write(padded / "merges.txt", "");
  const json many = json_of({"generate", padded, "--prompt", "to", "--length", "300",
                             "--temperature", "1000", "--top-k", "1000"});
  EXPECT_EQ(many["prompt_tokens"], json({116, 111}));
  for (const json& token : many["samples"][0]["tokens"]) EXPECT_LT(token, 256);
  EXPECT_THAT(refusal({"generate", padded, "--prompt-tokens", "256"}, 2), HasSubstr("0 to 255"));
}

// With several threads on a busy machine MKL's FP32 products now and then have other last bits, by
// which this loss moves 1.3e-5.
TEST_F(HuggingFaceProgram, EvalHasTransformersLoss) {
  const json result = json_of(
      {"eval", kModels / "gpt2", "--test-file", kModels / "gpt2/text.txt", "--precision", "fp32"});
  EXPECT_NEAR(result["runs"][0]["test_loss"].get<double>(),
              answer("gpt2", "text_loss").item<double>(), 1e-4);
  EXPECT_TRUE(result["trained_in"].is_null());
  EXPECT_THAT(refusal({"eval", kModels / "gpt2"}, 2), HasSubstr("--test-file TEXT"));
  EXPECT_THAT(refusal({"eval", kModels / "llama", "--test-file", kModels / "gpt2/text.txt"}, 3),
              HasSubstr("no tokenizer.json"));
  EXPECT_THAT(refusal({"eval", kModels / "gpt2", "--test-file", folder_ / "absent"}, 3),
              HasSubstr("absent"));
}

// Training from a folder, and its file as a folder again.
TEST_F(HuggingFaceProgram, TrainStartsFromItAndExportWritesIt) {
  const fs::path file = kModels / "gpt2/text.txt";
  Words words{"train",
              "gpt2",
              "--data",
              "text",
              "--train-file",
              file,
              "--test-file",
              file,
              "--tokenizer",
              kModels / "gpt2",
              "--from",
              kModels / "gpt2",
              "--depth",
              "2",
              "--embedding",
              "16",
              "--context",
              "12",
              "--steps",
              "1",
              "--batch-size",
              "1",
              "--tokens-per-step",
              "0",
              "--lr",
              "0",
              "--run-dir",
              folder_ / "runs"};
  Words other = words;
  other.insert(other.end(), {"--heads", "2"});
  EXPECT_THAT(refusal(other, 3), AllOf(HasSubstr("--heads 2"), HasSubstr("add --heads 4")));
  words.insert(words.end(), {"--heads", "4"});
  const Outcome trained = run(words);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("under Hugging Face's names"));
  EXPECT_THAT(trained.err, Not(HasSubstr("its tokens mean other texts")));
  // A rate of 0: the weights are those of the folder.
  const json written = json_of({"export", folder_ / "runs/train-gpt2-001", folder_ / "exported"});
  EXPECT_EQ(written["notes"], json::array());
  EXPECT_EQ(slurp(folder_ / "exported/model.safetensors"),
            slurp(kModels / "gpt2/model.safetensors"));
  EXPECT_EQ(json::parse(slurp(folder_ / "exported/vocab.json")),
            json::parse(slurp(kModels / "gpt2/vocab.json")));
  EXPECT_EQ(slurp(folder_ / "exported/merges.txt"), slurp(kModels / "gpt2/merges.txt"));
  other = words;
  std::ranges::replace(other, std::string("16"), std::string("32"));
  EXPECT_THAT(refusal(other, 3), HasSubstr("--embedding 16"));
}

TEST_F(HuggingFaceProgram, InspectListsTensorsAndConfig) {
  const json of_shards = json_of({"inspect", kModels / "llama", "--statistics", "--verify"});
  EXPECT_EQ(of_shards["kind"], "huggingface");
  EXPECT_EQ(of_shards["tensors"].size(), 21U);
  EXPECT_EQ(of_shards["tensors"][0]["file"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(of_shards["tensors"][0]["name"], "lm_head.weight");
  EXPECT_EQ(of_shards["metadata"]["rope_theta"], "5000.0");
  EXPECT_EQ(of_shards["verified"], true);
  EXPECT_THAT(run({"inspect", kModels / "gpt2"}).out,
              AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("model_type")));
  EXPECT_THAT(run({"inspect", "--diff", kModels / "gpt2", kModels / "gpt2"}).out,
              HasSubstr("all 28 tensors are equal"));
}

TEST_F(HuggingFaceProgram, WhatDoesNotFitIsRefused) {
  const fs::path copy = folder_ / "copy";
  fs::copy(kModels / "llama", copy);
  fs::remove(copy / "model-00002-of-00002.safetensors");
  for (const Words& words : {Words{"inspect", copy}, Words{"export", copy, folder_ / "exported"}})
    EXPECT_EQ(run(words).code, 3) << words.front();
  EXPECT_THAT(refusal({"generate", copy, "--prompt-tokens", "1"}, 3),
              HasSubstr("model-00002-of-00002.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "exported"));
  EXPECT_EQ(run({"predict", kModels / "gpt2", "a"}).code, 2);
  EXPECT_THAT(refusal({"export", kModels / "gpt2", folder_ / "exported", "--dtype", "fp8"}, 2),
              HasSubstr("bf16"));
  EXPECT_THAT(refusal({"export", kModels / "gpt2", folder_ / "exported", "--shard-size", "0"}, 2),
              HasSubstr("--shard-size"));
  EXPECT_EQ(run({"export", folder_ / "absent", folder_ / "exported"}).code, 3);
}

}  // namespace
}  // namespace cli_testing
