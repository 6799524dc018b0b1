#pragma once

// A value of each setting that makes a run another one, for tests over all of them.
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lab/settings/config.h"

namespace setting_values {

namespace fs = std::filesystem;

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Which recipe is trained twice, with `base` and then with `value` too. In values FOLDER is the
/// folder of write_files().
struct Trained {
  std::string setting, value, recipe = "mlp";
  Settings base = {};
};

/// What a training shows.
inline std::vector<Trained> trained() {
  const Settings fp16{{"precision", "fp16"}}, bf16{{"precision", "bf16"}},
      overflows{{"precision", "fp16"}, {"init-scale", "1e37"}, {"epochs", "2"}, {"steps", "0"}},
      whole{{"epochs", "2"}, {"steps", "0"}},
      linear{{"epochs", "2"}, {"steps", "0"}, {"schedule", "linear"}},
      pictures{{"model", "simple-cnn"}, {"image-size", "32"}},
      csv{{"data", "csv"}, {"train-file", "FOLDER/train.csv"}, {"test-file", "FOLDER/test.csv"}};
  return {
      {"model", "simple-cnn", "cifar10-resnet18", {{"model", "fashion-cnn"}}},
      {"data", "synthetic-linear"},
      {"train-file", "FOLDER/other.csv", "imdb-lstm", csv},
      {"test-file", "FOLDER/other.csv", "imdb-lstm", csv},
      {"limit", "8"},
      {"test-limit", "2", "fashion-cnn"},
      {"overfit-batches", "1"},
      {"normalize", "none", "cifar10-cnn"},
      {"crop-padding", "4", "cifar10-cnn"},
      {"horizontal-flip", "true", "cifar10-cnn"},
      {"crop-area", "1", "folder-resnet50", pictures},
      {"in", "8"},
      {"out", "8"},
      {"depth", "2"},
      {"batches", "1"},
      {"input-scale", "2"},
      {"image-size", "64", "synthetic-resnet50", pictures},
      {"classes", "5", "synthetic-resnet50", pictures},
      {"pool", "mean", "imdb-lstm"},
      {"bidirectional", "true", "imdb-lstm"},
      {"embedding", "8", "imdb-lstm"},
      {"hidden", "8", "imdb-lstm"},
      {"vocabulary-size", "4", "imdb-lstm"},
      {"max-length", "3", "imdb-lstm"},
      {"tokenizer", "bytes", "gpt-shakespeare"},
      {"context", "4", "gpt-shakespeare"},
      {"heads", "1", "gpt-shakespeare"},
      {"key-heads", "1", "gpt-shakespeare"},
      {"feed-forward", "8", "gpt-shakespeare"},
      {"tied-head", "off", "gpt-shakespeare"},
      {"norm-eps", "0.5", "gpt-shakespeare"},
      {"rope-theta", "3", "gpt-shakespeare", {{"block", "llama"}}},
      {"block", "llama", "gpt-shakespeare"},
      {"bias", "true", "gpt-shakespeare"},
      {"dropout", "0.5", "gpt-shakespeare"},
      {"eval-every", "1", "gpt-shakespeare", {{"epochs", "2"}, {"steps", "0"}}},
      {"tokens-per-step", "64", "gpt-shakespeare"},
      {"epochs", "2", "mlp", {{"steps", "0"}}},
      {"steps", "1"},
      {"batch-size", "3"},
      {"test-batch-size", "1", "fashion-cnn"},
      {"optimizer", "adam"},
      {"optimizer-options", "beta2=0.9", "mlp", {{"optimizer", "adamw"}}},
      {"betas", "0.9,0.9", "mlp", {{"optimizer", "adamw"}}},
      {"lr", "0.5"},
      {"min-lr", "1e-5", "mlp", linear},
      {"momentum", "0.9"},
      {"muon-lr", "0.05", "mlp", {{"optimizer", "muon"}}},
      {"nesterov", "true", "mlp", {{"momentum", "0.9"}}},
      {"weight-decay", "0.1"},
      {"decay-by-rule", "true", "mlp", {{"weight-decay", "0.1"}}},
      {"schedule", "linear"},
      {"schedule-epochs", "4", "mlp", linear},
      {"warmup-epochs", "1", "mlp", linear},
      {"schedule-steps", "50", "mlp", linear},
      {"warmup-steps", "1", "mlp", linear},
      {"loss-weight", "2"},
      {"label-smoothing", "0.1", "fashion-cnn"},
      {"clip-norm", "1e-3"},
      {"skip-norm-above", "1e-6"},
      {"gradient-penalty", "0.1"},
      {"accumulate", "2"},
      {"ema", "0.5"},
      {"early-stopping",
       "1",
       "fashion-cnn",
       {{"epochs", "3"}, {"steps", "0"}, {"lr", "0"}, {"schedule", "constant"}}},
      {"top-k", "2", "fashion-cnn"},
      {"precision", "bf16"},
      {"loss-scale", "128", "mlp", fp16},
      {"init-scale", "1024", "mlp", fp16},
      {"growth-factor", "4", "mlp", {{"precision", "fp16"}, {"growth-interval", "1"}}},
      {"growth-interval", "1", "mlp", fp16},
      {"backoff-factor", "0.25", "mlp", overflows},
      {"autocast", "false", "mlp", bf16},
      {"scaler", "false", "mlp", fp16},
      {"skip", "false", "mlp", overflows},
      {"moments", "int8", "mlp", {{"in", "64"}, {"out", "64"}, {"optimizer", "adamw"}}},
      {"fp32-part", "layers.0", "mlp", bf16},
      {"op-policy", "FOLDER/policy", "mlp", bf16},
      {"seed", "7"},
      {"dry-run", "true", "mlp", whole},
      {"monitor", "1"},
      {"detect-anomaly", "true", "mlp", {{"lr", "1e30"}, {"steps", "0"}}},
      {"what-if", "fp16"},
      {"checkpoint-every", "1", "mlp", {{"keep-last", "0"}}},
      {"keep-last", "0", "mlp", {{"checkpoint-every", "1"}}},
      {"keep-every", "1"},
  };
}

/// The files that rows name below FOLDER.
inline void write_files(const fs::path& folder) {
  std::ofstream(folder / "policy") << "addmm fp32\n";
  for (const char* name : {"train.csv", "test.csv", "other.csv"}) {
    std::string rows = "label,text\n";
    const bool is_other = name == std::string("other.csv");  // of longer, other texts
    for (int i = 0; i < 12; ++i)
      rows += std::string(i % 2 ? "good,good film " : "bad,bad film ") +
              (is_other ? "bad good bad film" : "") + "\n";
    std::ofstream(folder / name) << rows;
  }
}

/// A value with FOLDER in it as it is set.
inline std::string in_folder(std::string value, const fs::path& folder) {
  if (const auto at = value.find("FOLDER"); at != value.npos) value.replace(at, 6, folder.string());
  return value;
}

inline void set_in(demi::settings::Config& config, const std::string& name,
                   const std::string& value, const fs::path& folder) {
  set(config, name, in_folder(value, folder), "--" + name);
}

}  // namespace setting_values
