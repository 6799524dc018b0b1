#include "lab/settings/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "demi/autocast/op_policy.h"
#include "demi/core/error.h"
#include "lab/files/folder_testing.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"

namespace demi::settings {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::string_view name, std::string_view text) {
  Config config;
  try {
    set(config, name, text, "--" + std::string(name));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Config, RefusesWhatItCannotMeanAndSaysWhatItTakes) {
  EXPECT_THAT(refusal("batch-siz", "3"), HasSubstr("did you mean batch-size?"));
  EXPECT_THAT(refusal("batch-size", "0"), HasSubstr("1 to 2147483647, or auto"));
  EXPECT_THAT(refusal("batch-size", "many"), HasSubstr("not a number"));
  EXPECT_THAT(refusal("epochs", "1.5"), HasSubstr("a whole number"));
  EXPECT_THAT(refusal("lr", "-0.1"), HasSubstr("out of range"));
  EXPECT_THAT(refusal("lr", "nan"), HasSubstr("out of range"));
  EXPECT_THAT(refusal("lr", "inf"), HasSubstr("finite"));
  EXPECT_THAT(refusal("optimizer", "lanb"), HasSubstr("did you mean lamb?"));
  EXPECT_THAT(refusal("autocast", "perhaps"), HasSubstr("true, false"));
  EXPECT_EQ(refusal("batch-size", "auto"), "");
}

// A resumed run and a saved model have the rules that were trained by.
TEST(Config, APolicyFileIsKeptAsItsText) {
  const TestFolder folder;
  folder.write("policy", "softmax fp32  # why\npart layers.0 fp32\n");
  Config config;
  set(config, "op-policy", (folder / "policy").string(), "--op-policy");
  const std::string text = config.op_policy;
  EXPECT_EQ(OpPolicy::from_text(text).to_string(),
            OpPolicy::from_file(folder / "policy").to_string());
  EXPECT_THAT(text, HasSubstr("# why"));
  folder.write("policy", "tanh bf16\n");
  set(config, "op-policy", text, "a file");
  EXPECT_EQ(config.op_policy, text);
  EXPECT_THAT(refusal("op-policy", (folder / "policy").string()), HasSubstr("policy:1"));
  config.model = "mlp";
  config.data = "synthetic-rows";
  EXPECT_EQ(resolve(config, c10::kCPU).op_policy->fp32_parts(),
            std::vector<std::string>{"layers.0"});
}

TEST(Config, OneValueHasOneSpelling) {
  const auto kept = [](std::string_view name, std::string_view text) {
    Config config;
    set(config, name, text, name);
    return find_setting(name)->get(config);
  };
  EXPECT_EQ(kept("loss-scale", "automatic"), "auto");
  EXPECT_EQ(kept("loss-scale", "128.0"), "128");
  EXPECT_EQ(kept("precision", "16-mixed"), "fp16");
  EXPECT_EQ(kept("precision", "mixed"), "mixed");
  EXPECT_EQ(kept("data-dir", "2.10"), "2.10");
}

// `--precision fp16:scale=128` trained with another scale.
TEST(Config, AVariantIsNoPrecision) {
  EXPECT_THAT(refusal("precision", "fp16:scale=128"),
              HasSubstr("--precision fp16 --loss-scale 128"));
  EXPECT_THAT(refusal("precision", "bf16:no-autocast"), HasSubstr("--no-autocast"));
  EXPECT_THAT(refusal("precision", "fp99"), HasSubstr("did you mean"));
  EXPECT_THAT(refusal("vocabulary-size", "1"), HasSubstr("2 or more"));
  EXPECT_THAT(refusal("data-dir", "p\xff"), HasSubstr("not UTF-8"));
}

TEST(Config, WordsOfOtherProgramsHaveASettingEach) {
  for (const char* word : {"learning-rate", "bs", "wd", "clip", "gpu", "amp", "half"}) {
    Config config;
    EXPECT_THROW(set(config, word, "1", "x"), UsageError);
    const std::string meant = setting_meant(word);
    EXPECT_TRUE(find_setting(meant)) << word;
  }
  EXPECT_EQ(setting_meant("learning-rate"), "lr");
}

// Sums and products of settings stay within 63 bits. 2^63 - 1 made runs of 0 batches, which shipped
// untrained weights and ended well.
TEST(Config, EveryNumberHasACeiling) {
  for (const Setting& setting : all_settings()) {
    if (setting.type != "INT" || setting.name == "seed") continue;
    EXPECT_THAT(refusal(setting.name, "9223372036854775807"), HasSubstr("too large"))
        << setting.name;
    EXPECT_THAT(refusal(setting.name, "-9223372036854775808"), HasSubstr("too small"))
        << setting.name;
  }
  EXPECT_EQ(refusal("seed", "9223372036854775807"), "");
  EXPECT_EQ(refusal("batch-size", "2147483647"), "");
  EXPECT_THAT(refusal("batch-size", "2147483648"), HasSubstr("1 to 2147483647, or auto"));
  EXPECT_THAT(refusal("warmup-epochs", "1e300"), HasSubstr("out of range"));
}

TEST(Config, SyntheticDataBeyondAnyMemoryAreRefused) {
  Config config = find_recipe("mlp").config;
  set(config, "in", "16777216", "--in");
  set(config, "batch-size", "2147483647", "--batch-size");
  set(config, "batches", "2147483647", "--batches");
  EXPECT_THROW(check(config), UsageError);
  set(config, "batches", "1", "--batches");
  set(config, "batch-size", "512", "--batch-size");
  EXPECT_NO_THROW(check(config));
}

// DEMI_DATA was documented as the folder; it is the setting `data`, DEMI_DATA_DIR the folder.
TEST(Config, AFolderIsNoNameOfADataSet) {
  EXPECT_THAT(refusal("data", "/mnt/sets"), HasSubstr("DEMI_DATA_DIR"));
  EXPECT_EQ(refusal("data", "cifar10"), "");
}

TEST(Config, OptionsThatContradictEachOtherAreRefused) {
  Config config;
  config.optimizer = "sgd";
  config.nesterov = true;
  EXPECT_THROW(check(config), UsageError);
  config.momentum = 0.9;
  EXPECT_NO_THROW(check(config));
  config = {};
  config.data = "csv";
  EXPECT_THROW(check(config), UsageError);
  config = {};
  config.schedule = "one-cycle";
  config.warmup_epochs = 1;
  EXPECT_THROW(check(config), UsageError);
  config.schedule = "linear";
  config.epochs = 1;
  EXPECT_THROW(check(config), UsageError) << "nothing is left of the schedule";
  config.schedule_epochs = 2;
  EXPECT_NO_THROW(check(config));
  config.schedule_epochs = 0;
  config.schedule = "constant";
  EXPECT_NO_THROW(check(config));
}

// torch.optim.SGD refuses nesterov without momentum. The others have no such flag: a file's does
// nothing there, and muon's momentum is Nesterov's without one.
TEST(Config, NesterovNeedsAMomentumInSgdAlone) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    Config config;
    config.optimizer = kind.name;
    config.nesterov = true;
    if (kind.name == "sgd")
      EXPECT_THROW(check(config), UsageError);
    else
      EXPECT_NO_THROW(check(config)) << kind.name;
  }
}

// GPT-2's 524,288 tokens are 32 batches of 16 x 1,024 (llm.c: B T ranks must divide them).
TEST(Config, AStepOfSoManyTokensIsSoManyBatches) {
  Config config = find_recipe("gpt2").config;
  config.train_file = config.test_file = "tokens.bin";
  const auto complaint_of = [](const Config& checked) {
    try {
      check(checked);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto complaint = [&] { return complaint_of(config); };
  EXPECT_EQ(batches_of_step(config), 32);
  check(config);
  config.ranks = 8;
  EXPECT_EQ(batches_of_step(config), 4);
  config.accumulate = 2;
  EXPECT_THAT(complaint(), HasSubstr("leave out one of them"));
  config.accumulate = 1;
  config.batch_size = 12;
  EXPECT_THAT(complaint(),
              HasSubstr("seen: --tokens-per-step 524288, and 12 x 1024 tokens a batch on 8 ranks; "
                        "491520, or 589824"));
  config.batch_size = 1024;
  EXPECT_THAT(complaint(), ::testing::EndsWith("; 8388608"));
  config.batch_size = 0;
  EXPECT_THAT(complaint(), HasSubstr("name a --batch-size"));
  config.tokens_per_step = 0;
  config.accumulate = 3;
  EXPECT_EQ(batches_of_step(config), 3);
  Config rows = find_recipe("mlp").config;
  rows.tokens_per_step = 1000;
  EXPECT_EQ(complaint_of(rows), "") << "check_effects says that it does nothing";
  EXPECT_EQ(batches_of_step(rows), 1);
}

TEST(Config, AScheduleBySteps) {
  Config config;
  config.schedule = "cosine-by-step";
  config.schedule_steps = 10;
  config.warmup_steps = 9;
  config.min_lr = config.lr;
  EXPECT_NO_THROW(check(config));
  const auto refused = [&](auto field, auto value) {
    Config other = config;
    other.*field = value;
    EXPECT_THROW(check(other), UsageError) << value;
  };
  refused(&Config::warmup_steps, int64_t{10});
  refused(&Config::warmup_epochs, 0.1);
  refused(&Config::schedule_epochs, int64_t{1});
  refused(&Config::min_lr, 2 * config.lr);
  refused(&Config::schedule, "cosine");
  refused(&Config::schedule, "one-cycle");
  refused(&Config::schedule, "constant");
}

TEST(Config, AScheduleMustNotEndBeforeTrainingDoes) {
  Config config = find_recipe("fashion-cnn").config;  // one-cycle over its 3 epochs
  EXPECT_NO_THROW(check(config));
  config.schedule_epochs = 3;
  EXPECT_NO_THROW(check(config));
  config.schedule_epochs = 2;
  try {
    check(config);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--schedule one-cycle --schedule-epochs 2 --epochs 3"));
  }
  config.schedule = "constant";
  EXPECT_NO_THROW(check(config));
  for (const Recipe& recipe : recipes()) {
    Config own = recipe.config;
    if (own.data == "folder") own.data_dir = "somewhere";
    if (own.data == "tokens") own.train_file = own.test_file = "somewhere";
    EXPECT_NO_THROW(check(own)) << recipe.name;
  }
}

// The published values of the AMP and CIFAR recipes.
TEST(Config, RecipesHoldThePublishedValues) {
  const Config& mlp = find_recipe("mlp").config;
  EXPECT_EQ(mlp.in, 4096);
  EXPECT_EQ(find_setting("depth")->get(mlp), "3");
  EXPECT_EQ(mlp.batch_size, 512);
  EXPECT_EQ(mlp.batches * mlp.epochs, 150);
  EXPECT_EQ(mlp.lr, 0.001);
  const Config& resnet = find_recipe("cifar10-resnet50").config;
  EXPECT_EQ(resnet.lr, 0.1);
  EXPECT_EQ(resnet.momentum, 0.9);
  EXPECT_EQ(resnet.weight_decay, 5e-4);
  EXPECT_EQ(resnet.schedule_epochs, 200);
  EXPECT_EQ(resnet.test_batch_size, 100);
  EXPECT_EQ(find_recipe("cifar10-cnn").config.normalize, "half");
  EXPECT_EQ(find_recipe("imdb-lstm").config.loss, "bce");
}

TEST(Config, ListsAreSplitAtCommas) {
  EXPECT_EQ(words_of("fp32,bf16"), (std::vector<std::string>{"fp32", "bf16"}));
  EXPECT_EQ(words_of("fp32"), std::vector<std::string>{"fp32"});
  EXPECT_EQ(words_of("a,,b,"), (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(words_of(""), std::vector<std::string>{""});
}

}  // namespace
}  // namespace demi::settings
