#include "lab/recipes/resume.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "lab/recipes/run_record.h"
#include "lab/settings/config_source.h"
#include "lab/settings/recipe.h"

namespace demi::recipes {
namespace {

using ::testing::HasSubstr;

settings::Config begun() {
  settings::Config config = settings::find_recipe("mlp").config;
  config.device = "cpu";
  config.precision = "bf16";
  config.batch_size = 96;
  return config;
}

settings::Config resumed(const std::vector<settings::Assignment>& given,
                         const settings::Config& from = begun()) {
  return resumed_config(from, given, "runs/train-mlp-001");
}

std::string refusal(const std::vector<settings::Assignment>& given,
                    const settings::Config& from = begun()) {
  try {
    resumed(given, from);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Resume, NamesTheSettingWithItsOldAndItsNewValue) {
  const std::string said = refusal({{"lr", "0.5", "--lr"}});
  for (const char* words : {"[--lr]", "seen: 0.5", "begun with 0.001", "runs/train-mlp-001"})
    EXPECT_THAT(said, HasSubstr(words));
  EXPECT_EQ(refusal({{"lr", "1e-3", "--lr"}}), "") << "the same number";
  EXPECT_EQ(refusal({{"lr", "0.5", "DEMI_LR"}, {"lr", "0.001", "--lr"}}), "") << "the last counts";
}

TEST(Resume, AFolderOfPicturesStaysTheRunsBesideThatOfTheDataSets) {
  const std::vector<settings::Assignment> sets{{"data-dir", "/sets", "DEMI_DATA_DIR"}};
  settings::Config pictures = begun();
  pictures.data = "folder";
  pictures.data_dir = "/pictures";
  EXPECT_EQ(resumed(sets, pictures).data_dir, "/pictures");
  EXPECT_EQ(resumed({{"data-dir", "/moved", "--data-dir"}}, pictures).data_dir, "/moved");
  pictures.data = "cifar10";
  EXPECT_EQ(resumed(sets, pictures).data_dir, "/sets");
}

TEST(SetAll, AFolderOfPicturesThatAFileNamesCountsBeforeThatOfTheDataSets) {
  const auto folder_of = [](const std::string& data) {
    settings::Config config;
    settings::set_all(
        config, std::vector<settings::Assignment>{{"data", data, "data in config.json"},
                                                  {"data-dir", "/file", "data_dir in config.json"},
                                                  {"data-dir", "/sets", "DEMI_DATA_DIR"}});
    return config.data_dir;
  };
  EXPECT_EQ(folder_of("folder"), "/file");
  EXPECT_EQ(folder_of("cifar10"), "/sets");
}

// Every setting that is not named here decides the bits.
TEST(Resume, ThatAreNotNamedAsFreeMustBeTheSame) {
  const std::vector<std::string> free{"epochs",           "steps",      "early-stopping", "device",
                                      "data-dir",         "train-file", "test-file",      "workers",
                                      "checkpoint-every", "keep-last",  "resume",         "monitor",
                                      "detect-anomaly",   "what-if",    "ranks",          "devices",
                                      "shard-optimizer",  "precision",  "loss-scale",     "scaler",
                                      "stop-after",       "keep-every", "keep-best",      "best-by",
                                      "recompute",        "weight-mode"};
  for (const settings::Setting& setting : settings::all_settings()) {
    const bool is_free = std::ranges::find(free, setting.name) != free.end();
    EXPECT_EQ(on_resume(setting.name) != OnResume::kSame, is_free) << setting.name;
  }
}

// The batch of all ranks together decides the steps.
TEST(Resume, OtherRanksShareTheSameBatches) {
  settings::Config config = begun();
  config.ranks = 4;  // of 96 examples each
  EXPECT_EQ(resumed({{"ranks", "2", "--ranks"}}, config).batch_size, 192);
  EXPECT_EQ(resumed({{"ranks", "1", "--ranks"}}, config).batch_size, 384);
  EXPECT_EQ(resumed({{"ranks", "4", "--ranks"}}, config).batch_size, 96);
  EXPECT_EQ(resumed({}, config).ranks, 4);
  EXPECT_THAT(refusal({{"ranks", "5", "--ranks"}}, config), HasSubstr("a divisor of 384"));
}

// The batch of each rank may be said too, and another one is not taken in silence.
TEST(Resume, OtherRanksMayNameTheirBatch) {
  settings::Config config = begun();
  config.ranks = 2;  // of 96 examples each
  EXPECT_EQ(
      resumed({{"ranks", "3", "--ranks"}, {"batch-size", "64", "--batch-size"}}, config).batch_size,
      64);
  EXPECT_EQ(
      resumed({{"batch-size", "64", "--batch-size"}, {"ranks", "3", "--ranks"}}, config).batch_size,
      64);
  EXPECT_THAT(refusal({{"ranks", "3", "--ranks"}, {"batch-size", "96", "--batch-size"}}, config),
              HasSubstr("96 on each of 2, which is 64 on each of 3"));
}

TEST(Resume, TheFirstDifferenceIsNamed) {
  settings::Config other = begun();
  EXPECT_EQ(first_difference(begun(), other), "");
  other.epochs = 9;
  other.keep_last = 3;
  other.batch_size = 0;
  other.precision = "mixed";
  EXPECT_EQ(first_difference(begun(), other), "") << "these may differ, or were found";
  other.seed = 7;
  EXPECT_EQ(first_difference(begun(), other), "seed is 0, not 7");
}

TEST(Resume, OtherRanksAgreeUnlessABatchSizeIsNamed) {
  settings::Config other = begun();
  other.ranks = 2;
  const std::vector<settings::Assignment> ranks{{"ranks", "2", "--ranks"}};
  EXPECT_EQ(first_difference(begun(), other, ranks), "") << "they share it";
  const std::vector<settings::Assignment> both{{"ranks", "2", "--ranks"}, {"batch-size", "96", ""}};
  EXPECT_EQ(first_difference(begun(), other, both),
            "batch-size is 96 on each of 1, not 96 on each of 2");
  other.batch_size = 64;
  EXPECT_NE(first_difference(begun(), other, ranks), "") << "the recipe's is another by now";
}

// One rank has nobody to share with, so it need not be said.
TEST(Resume, OneRankSharesNoOptimizerState) {
  settings::Config config = begun();
  config.ranks = 2;
  config.shard_optimizer = true;
  EXPECT_TRUE(resumed({}, config).shard_optimizer);
  EXPECT_FALSE(resumed({{"ranks", "1", "--ranks"}}, config).shard_optimizer);
  EXPECT_FALSE(
      resumed({{"shard-optimizer", "false", "--shard-optimizer"}}, config).shard_optimizer);
  EXPECT_THAT(refusal({{"ranks", "1", "--ranks"}, {"shard-optimizer", "true", "--shard-optimizer"}},
                      config),
              HasSubstr("nobody to share"));
}

// Else a run whose start takes as long would never take a step.
TEST(Resume, TheTimeLimitIsOfTheProcessThatWasGivenIt) {
  settings::Config config = begun();
  config.stop_after = "2s";
  EXPECT_EQ(resumed({}, config).stop_after, "0");
  EXPECT_EQ(resumed({{"stop-after", "11h50m", "--stop-after"}}, config).stop_after, "11h50m");
  EXPECT_EQ(resumed({{"stop-after", "2s", "DEMI_STOP_AFTER"}}, config).stop_after, "2s");
}

TEST(Resume, WhatWasFoundWhenTheRunBeganMayBeAskedForAgain) {
  EXPECT_EQ(resumed({{"batch-size", "auto", "--batch-size"}}).batch_size, 96);
  EXPECT_EQ(resumed({{"precision", "mixed", "--mp"}}).precision, "bf16");
  EXPECT_EQ(refusal({{"precision", "bf16-mixed", "--precision"}}), "") << "Lightning's name";
}

TEST(Resume, AnotherPrecisionOrScaleMakesItAnotherRun) {
  const auto change = [](const std::vector<settings::Assignment>& given) {
    return change_of_precision(begun(), resumed(given));
  };
  EXPECT_EQ(change({}), "");
  EXPECT_EQ(change({{"precision", "mixed", "--mp"}, {"scaler", "true", "--scaler"}}), "");
  EXPECT_EQ(change({{"precision", "fp16", "--precision"}}), "precision fp16, begun with bf16");
  EXPECT_EQ(change({{"loss-scale", "128", "--loss-scale"}}),
            "loss-scale 128, begun with " + begun().loss_scale);
  EXPECT_EQ(change({{"scaler", "false", "--no-scaler"}}), "scaler false, begun with true");
  settings::Config other = begun();
  other.precision = "fp16";
  EXPECT_EQ(first_difference(begun(), other), "precision is bf16, not fp16") << "auto begins anew";
}

TEST(Resume, TheEndMayMoveAwayWhereNoScheduleIsMadeForIt) {
  settings::Config config = begun();  // 3 epochs, a constant rate
  EXPECT_EQ(resumed({{"epochs", "9", "--epochs"}}).epochs, 9);
  EXPECT_THAT(refusal({{"epochs", "2", "--epochs"}}), HasSubstr("begun with 3"));
  config.schedule = "cosine";
  EXPECT_THAT(refusal({{"epochs", "9", "--epochs"}}, config), HasSubstr("made for 3 epochs"));
  EXPECT_EQ(refusal({{"epochs", "3", "--epochs"}}, config), "");
  config.schedule_epochs = 20;
  EXPECT_EQ(resumed({{"epochs", "9", "--epochs"}}, config).epochs, 9);
  EXPECT_THAT(refusal({{"epochs", "21", "--epochs"}}, config), HasSubstr("ends before training"));
  settings::Config by_step = begun();
  by_step.schedule = "cosine-by-step";
  by_step.schedule_steps = 1'000'000;
  EXPECT_EQ(resumed({{"epochs", "9", "--epochs"}}, by_step).epochs, 9);
  EXPECT_THAT(refusal({{"steps", "9", "--steps"}}), HasSubstr("begun with 0"));
  config.steps = 5;
  EXPECT_EQ(resumed({{"steps", "9", "--steps"}}, config).steps, 9);
  EXPECT_EQ(resumed({{"steps", "0", "--steps"}}, config).steps, 0);
  EXPECT_THAT(refusal({{"steps", "4", "--steps"}}, config), HasSubstr("begun with 5"));
}

// A checkpoint of an older demi says nothing of settings that it did not have.
TEST(Resume, SettingsAreThoseOfTheCheckpointAsFarAsItSaysThem) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("demi-saved-settings-" + std::to_string(getpid()));
  RunRecord record{.command = "train", .runs = {"bf16"}, .config = begun()};
  std::string text = settings::to_json(record.config);
  const auto save = [&](int64_t step) {
    checkpoint::save(folder / kCheckpoints, step,
                     {.model = {{"w", at::ones({1})}}, .text = {{"demi.config", text}}});
  };
  save(1);
  record.config.seed = 7;
  EXPECT_THROW(require_saved_settings(folder, record), UsageError);
  const std::string seed = "\"seed\": 0,";
  ASSERT_NE(text.find(seed), std::string::npos);
  text.erase(text.find(seed), seed.size());
  save(2);
  EXPECT_NO_THROW(require_saved_settings(folder, record));
  record.config = begun();
  record.config.schedule = "cosine";
  text = settings::to_json(record.config);
  save(3);
  EXPECT_NO_THROW(require_saved_settings(folder, record));
  record.config.epochs += 6;
  EXPECT_THROW(require_saved_settings(folder, record), UsageError) << "the rates would jump";
  text = R"({"shiny": 3})";  // of a newer demi
  save(4);
  EXPECT_THROW(require_saved_settings(folder, record), DataError);
  fs::remove_all(folder);
}

TEST(Resume, ValuesThatAreNoneAreRefusedAsEver) {
  EXPECT_THAT(refusal({{"device", "cpu", "--device"}, {"workers", "-1", "--workers"}}),
              HasSubstr("too small"));
  EXPECT_EQ(resumed({{"workers", "3", "--workers"}, {"keep-last", "0", "--keep-last"}}).workers, 3);
}

}  // namespace
}  // namespace demi::recipes
