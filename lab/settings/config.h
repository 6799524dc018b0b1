#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/values/setting.h"

namespace demi::settings {

/// All settings of one training run. A recipe is a config with its published values filled in.
/// Flat, so that each value is one option of the program, one entry of a config file and one
/// environment variable; all_settings() is the one table of them, with their help.
struct Config {
  // Model and data
  std::string model = {}, model_output = {}, fuse = "low-precision", data = {}, data_dir = {},
              train_file = {}, test_file = {};
  bool channels_last = false;  // of a network from Python
  int64_t in = 4096, out = 4096, batches = 50;
  double input_scale = 1;
  int64_t image_size = 224, classes = 1000;
  int64_t vocabulary_size = 0, max_length = 0;
  std::string tokenizer = "characters";
  int64_t context = 64, eval_every = 250;
  values::Texts model_settings = {};  // those that models bring (models::ModelInfo::settings)
  std::string recompute = "none";
  std::string normalize = "data-set";
  int64_t crop_padding = 0;
  double crop_area = 0.08;
  bool horizontal_flip = false;
  int64_t limit = 0, test_limit = 0, overfit_batches = 0, workers = 0;

  // Training
  int64_t epochs = 1, steps = 0;
  int64_t batch_size = 64, test_batch_size = 500;  // 0: auto, which is found before training
  std::string optimizer = "adamw", optimizer_options = {}, betas = {};
  double lr = 1e-3, muon_lr = 0.02, momentum = 0, weight_decay = 0;
  bool nesterov = false, decay_by_rule = false;
  std::string schedule = "constant";
  int64_t schedule_epochs = 0, schedule_steps = 0, warmup_steps = 0;
  double warmup_epochs = 0, min_lr = 0;
  std::string loss = "cross-entropy";
  double loss_weight = 1;
  double label_smoothing = 0, clip_norm = 0, gradient_penalty = 0, ema = 0;
  std::string skip_norm_above = "0";  // as norm_limit_of reads it; 0: no limit
  int64_t accumulate = 1, tokens_per_step = 0, early_stopping = 0, top_k = 0;

  // Precision
  std::string precision = "fp32", loss_scale = "auto", moments = "fp32", weight_mode = "master";
  double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool autocast = true, scaler = true, skip = true;
  std::string fp32_part = {};
  std::string op_policy = {};  // the text of a policy file; without a line end a file's path
  bool flush_subnormals = true;

  // LibTorch's settings
  std::string cuda_matmul_allow_tf32 = "auto", cudnn_allow_tf32 = "auto";  // auto, on, off
  bool fp16_reduction = true, bf16_reduction = true;
  bool cudnn_enabled = true, cudnn_benchmark = false;
  bool deterministic = false;
  std::string cuda_graph = "off";  // on, auto
  int64_t threads = 0;             // 0: LibTorch's choice

  // Devices
  std::string device = "auto";
  std::string devices = {};  // by comma, one for each rank; empty: `device` is that of all
  int64_t ranks = 1;         // processes that train together, each with batches of batch_size
  bool sync_batch_norm = true;
  bool shard_optimizer = false;  // several ranks: each keeps a share of the optimizer's state
  int64_t seed = 0;
  bool dry_run = false;
  int64_t monitor = 0;  // steps; 0: off
  bool detect_anomaly = false;
  std::string what_if = {};  // fp16, bf16, a recipe; "": off

  // Starting from saved weights, and resuming
  std::string from = {};  // "": from new weights; a run folder, a checkpoint or a weights file
  bool from_state = false, from_average = false;
  std::string checkpoint_every = "10min";  // as train::Every reads it
  int64_t keep_last = 1;
  std::string keep_every = "0";  // as train::Every reads it
  int64_t keep_best = 1;
  std::string best_by = "auto";
  std::string stop_after = "0";  // as train::minutes_in reads it; 0: never
  std::string resume = {};       // "": a new run; auto, or a path
};

/// A value of a Config by name.
using Setting = values::Setting<Config>;

/// The words of a list by comma; of an empty text one empty word.
DEMI_API std::vector<std::string> words_of(std::string_view list);

/// Batches whose gradients are summed for a step: `accumulate`, or what `tokens_per_step` asks for
/// of rows of `context` tokens on all ranks.
DEMI_API int64_t batches_of_step(const Config& config);

/// Bytes that one example of synthetic data takes as long as the run lasts; 0 if the config's data
/// are not synthetic.
DEMI_API int64_t synthetic_bytes(const Config& config);

/// Whether the model is one of demi's that reads rows of `context` tokens.
bool reads_tokens(const Config& config);

/// Whether `tokens_per_step` counts; check_effects refuses it elsewhere.
bool counts_tokens(const Config& config);

/// Tokens of one batch on all ranks.
int64_t tokens_of_batch(const Config& config);

/// The optimizer step after which training ends, also within an epoch; 0: the epochs alone decide.
DEMI_API int64_t last_step(const Config& config);

/// All settings, in the order of --help.
DEMI_API std::span<const Setting> all_settings();

/// The setting of that name; null: none.
DEMI_API const Setting* find_setting(std::string_view name);

/// Sets one value from text. `source` says where the text came from ("--lr", "lr in file.json",
/// "DEMI_LR"). Throws UsageError: no such name (with the nearest right one), not a number, out of
/// range.
DEMI_API void set(Config& config, std::string_view name, std::string_view text,
                  std::string_view source);

/// The setting that a word which is none was meant for: by what other programs call it
/// (learning-rate, wd), else by the nearest name; "": none.
DEMI_API std::string setting_meant(std::string_view word);

/// "did you mean lr? ..." for such a word.
DEMI_API std::string did_you_mean_setting(std::string_view word);

/// Throws UsageError for values that contradict each other, and for a word that is not in its
/// setting's list.
DEMI_API void check(const Config& config);

/// The epochs that the schedule is made for.
DEMI_API int64_t scheduled_epochs(const Config& config);

}  // namespace demi::settings
