// `demi generate`: what is printed, and the exit codes.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "demi/core/wait_until_testing.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/tokens/byte_pair.h"
#include "lab/workload/model_file.h"
#include "lab/workload/weights_file.h"
#include "lab/workload/workload.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;

class GenerateProgram : public Cli {
 protected:
  /// The shipped file of a small network with its initial weights, and no data beside it.
  std::string made(const std::string& tokenizer = "characters", const std::string& data = "text") {
    auto config = demi::settings::find_recipe("gpt-shakespeare").config;
    config.data = data;
    config.data_dir.clear();
    config.tokenizer = tokenizer;
    config.model_settings = {
        {"depth", "1"}, {"embedding", "16"}, {"heads", "2"}, {"bias", "false"}};
    config.context = 8;
    config.train_file = folder_ / "data/train.txt";
    config.vocabulary_size = 50;
    std::string text;
    for (int i = 0; i < 30; ++i) text += "to be, or not to be: \u00e9t\u00e9\n";
    if (data == "tokens") text.resize(400, '\0');
    if (data == "tokens")
      for (char& c : text) c = '\0';
    small_recipes::write(config.train_file, text);
    const auto run = demi::settings::resolve(config, c10::kCPU);
    const auto workload = demi::workload::load_workload(config, c10::kCPU);
    const auto network = workload.make_network(1), spare = workload.make_network(0);
    const std::string file = folder_ / (data + ".safetensors");
    demi::workload::save_shipped_weights(*network.module, *spare.module, run.spec.precision, file,
                                         config, demi::workload::model_texts(run, workload, false));
    fs::remove_all(folder_ / "data");
    return file;
  }

  static std::function<void()> with_input(const fs::path& file) {
    return [file] { (void)!freopen(file.c_str(), "r", stdin); };
  }
};

TEST_F(GenerateProgram, WritesWhatTheFileAloneKnows) {
  const std::string file = made();
  const Outcome text = run({"generate", file, "--prompt", "to be", "--length", "30"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("to be")) << text.out;
  EXPECT_TRUE(text.out.ends_with("\n"));
  const json one = json_of({"generate", file, "--prompt", "to be", "--length", "30"});
  EXPECT_EQ(one["prompt"], "to be");
  EXPECT_EQ(one["seed"], 1337);
  ASSERT_EQ(one["samples"].size(), 1U);
  EXPECT_EQ(one["samples"][0]["tokens"].size(), 30U);
  EXPECT_EQ("to be" + one["samples"][0]["text"].get<std::string>() + "\n", text.out);
  const json plain = json_of(
      {"generate", file, "--prompt", "to be", "--length", "30", "--no-cache", "--top-k", "1000"});
  EXPECT_EQ(plain["samples"][0]["tokens"], one["samples"][0]["tokens"]);

  small_recipes::write(folder_ / "p", "to be\n");
  const json more = json_of({"generate", file, "--prompt", "@" + (folder_ / "p").string(),
                             "--samples", "2", "--length", "9", "--seed", "3"});
  EXPECT_EQ(more["prompt"], "to be\n");
  EXPECT_EQ(more["samples"].size(), 2U);
  EXPECT_NE(more["samples"][0]["tokens"], more["samples"][1]["tokens"]);
  const Outcome two =
      run({"generate", file, "--prompt", "-", "--samples", "2", "--length", "9", "--seed", "3"},
          with_input(folder_ / "p"));
  EXPECT_EQ(two.out, "to be\n" + more["samples"][0]["text"].get<std::string>() +
                         "\n---------------\nto be\n" +
                         more["samples"][1]["text"].get<std::string>() + "\n");
}

TEST_F(GenerateProgram, APromptMayBeAnyText) {
  const std::string file = made("bytes");
  for (const char* prompt : {"--length", "--length=", "-", "[a, b]"}) {
    small_recipes::write(folder_ / "p", prompt);
    const Outcome outcome =
        run({"generate", file, "--prompt", prompt, "--length", "1", "--temperature", "0"},
            with_input(folder_ / "p"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with(prompt)) << outcome.out;
  }
  // Bytes of a model that has learned nothing are hardly UTF-8, and the text is.
  const Outcome bytes =
      run({"generate", file, "--temperature", "100", "--top-k", "256", "--length", "60"});
  EXPECT_THAT(bytes.out, HasSubstr("\uFFFD"));
  EXPECT_NO_THROW(static_cast<void>(json(bytes.out).dump()));
}

// The steps make no whole logits; the test does, for the metric.
TEST_F(GenerateProgram, TheTokensAmongTheLikeliestAreCounted) {
  small_recipes::write(folder_ / "t.txt", std::string(40, 'a') + "bcdefgh, bcdefgh, bcdefgh.\n");
  const Outcome outcome = run({"train",        "gpt-shakespeare",
                               "--data",       "text",
                               "--train-file", folder_ / "t.txt",
                               "--depth",      "1",
                               "--heads",      "1",
                               "--embedding",  "16",
                               "--context",    "4",
                               "--batch-size", "2",
                               "--epochs",     "1",
                               "--steps",      "2",
                               "--top-k",      "3",
                               "--device",     "cpu",
                               "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json run = json::parse(outcome.out)["runs"][0];
  const double first = run["test_accuracy"], among_three = run["test_top3_accuracy"];
  EXPECT_LE(first, among_three);
  EXPECT_LE(among_three, 1);
}

TEST_F(GenerateProgram, BytePairsAreInTheFile) {
  json vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[demi::tokens::byte_symbol(static_cast<unsigned char>(byte))] = byte;
  vocabulary["to"] = 256;
  fs::create_directories(folder_ / "bpe");
  small_recipes::write(folder_ / "bpe/vocab.json", vocabulary.dump());
  small_recipes::write(folder_ / "bpe/merges.txt", "t o\n");
  const std::string file = made(folder_ / "bpe");
  fs::remove_all(folder_ / "bpe");
  const json one = json_of({"generate", file, "--prompt", "to", "--length", "2"});
  EXPECT_EQ(one["prompt_tokens"], json({256}));
  EXPECT_EQ(one["prompt"], "to");
  // json_of's --json comes right after the empty value.
  EXPECT_EQ(json_of({"generate", file, "--length", "1", "--prompt="})["prompt"], "\n");
  EXPECT_THAT(run({"inspect", file}).out,
              AllOf(HasSubstr("257 symbols"), HasSubstr("1 merges: [\"t\",\"o\"]")));
}

TEST_F(GenerateProgram, FilesWithoutATokenizerReadNumbers) {
  const std::string file = made("characters", "tokens");
  const Outcome text = run({"generate", file, "--prompt", "a"});
  EXPECT_EQ(text.code, 2);
  EXPECT_THAT(text.err, HasSubstr("--prompt-tokens"));
  EXPECT_EQ(run({"generate", file}).code, 2);
  const Outcome numbers =
      run({"generate", file, "--prompt-tokens", "7,49", "--length", "2", "--temperature", "0"});
  EXPECT_EQ(numbers.code, 0) << numbers.err;
  EXPECT_THAT(numbers.out, ::testing::MatchesRegex("7 49 [0-9]+ [0-9]+\n"));
  const Outcome beyond = run({"generate", file, "--prompt-tokens", "7,50"});
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.err, AllOf(HasSubstr("number 1"), HasSubstr("50"), HasSubstr("0 to 49")));
}

TEST_F(GenerateProgram, RefusesWhatDoesNotFit) {
  const std::string file = made();
  const auto refusal = [&](const Words& words, int code) {
    Words all{"generate", file};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--prompt", "to \u00fc"}, 3),
              AllOf(HasSubstr("byte 3"), HasSubstr("U+00FC"), HasSubstr("its 11 characters")));
  EXPECT_THAT(refusal({"--prompt", "to\xff"}, 3), HasSubstr("UTF-8 at byte 2"));
  EXPECT_THAT(refusal({"--prompt", "@/nowhere"}, 3), HasSubstr("/nowhere"));
  EXPECT_THAT(refusal({"--temperature", "nan"}, 2), HasSubstr("--temperature"));
  EXPECT_THAT(refusal({"--seed", "-1"}, 2), HasSubstr("--seed"));
  EXPECT_THAT(refusal({"--prompt", "t", "--prompt-tokens", ""}, 2), HasSubstr("both"));
  EXPECT_THAT(refusal({"--prompt-tokens", ""}, 2), HasSubstr("no numbers"));
  EXPECT_THAT(refusal({"--prompt-tokens="}, 2), HasSubstr("no numbers"));
  EXPECT_THAT(refusal({"--seed", "9223372036854775808"}, 2),
              HasSubstr("--seed: out of range; seen: 9223372036854775808"));
  EXPECT_THAT(refusal({"--length", "-9223372036854775809"}, 2), HasSubstr("out of range"));
  EXPECT_EQ(run({"generate", folder_ / "absent"}).code, 3);
}

TEST_F(GenerateProgram, AModelOfPicturesIsForPredict) {
  const auto config = small_recipes::of("fashion-cnn", folder_);
  const auto run_of = demi::settings::resolve(config, c10::kCPU);
  const auto workload = demi::workload::load_workload(config, c10::kCPU);
  const auto network = workload.make_network(1), spare = workload.make_network(0);
  const std::string file = folder_ / "pictures.safetensors";
  demi::workload::save_shipped_weights(*network.module, *spare.module, run_of.spec.precision, file,
                                       config,
                                       demi::workload::model_texts(run_of, workload, false));
  const Outcome outcome = run({"generate", file, "--prompt", "a"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("fashion-cnn"), HasSubstr("demi predict")));
}

TEST_F(GenerateProgram, EndsQuietlyWhenNobodyReads) {
  const Outcome outcome = run({"generate", made(), "--length", "1000000"}, [] {
    int ends[2];
    if (pipe(ends) != 0) _exit(126);
    close(ends[0]);
    dup2(ends[1], STDOUT_FILENO);
  });
  EXPECT_EQ(outcome.code, 128 + SIGPIPE);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(GenerateProgram, ASignalEndsTheLineAndTheProgram) {
  const pid_t child = start({"generate", made(), "--length", "1000000"});
  EXPECT_TRUE(
      demi::wait_until([&] { return slurp(folder_ / "out").size() >= 20 || has_ended(child); }));
  kill(child, SIGINT);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 128 + SIGINT);
  EXPECT_TRUE(outcome.out.ends_with("\n"));
  EXPECT_EQ(outcome.err, "");
}

// Whatever is shown before the first token is a note, and signals are noted right behind it.
TEST_F(GenerateProgram, ASignalLeavesTheSamplesSoFarInJson) {
  const std::string file = made();
  Outcome outcome;
  for (int tries = 0; tries < 10 && outcome.out.empty(); ++tries) {
    const pid_t child = start({"generate", file, "--prompt", "to be, or not to be", "--length", "3",
                               "--samples", "10000000", "--json"});
    EXPECT_TRUE(
        demi::wait_until([&] { return !slurp(folder_ / "err").empty() || has_ended(child); }));
    demi::wait_until([&] { return has_ended(child); }, std::chrono::milliseconds(100 << tries));
    kill(child, SIGINT);
    outcome = finish(child);
    EXPECT_EQ(outcome.code, 128 + SIGINT) << outcome.err;
  }
  const json samples = json::parse(outcome.out)["samples"];
  ASSERT_FALSE(samples.empty());
  EXPECT_FALSE(samples[0]["tokens"].empty());
}

}  // namespace
}  // namespace cli_testing
