#include "lab/recipes/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "lab/recipes/batch_size.h"

namespace demi::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Ceilings keep sums and products of settings within 63 bits.
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostFeatures = int64_t{1} << 24;  // of a layer
constexpr int64_t kMostPixels = 1 << 15;             // of a side

[[noreturn]] void wrong(std::string_view source, std::string_view what, std::string_view text,
                        const std::string& accepted) {
  throw UsageError({.where = source, .what = what, .seen = text, .accepted = accepted});
}

template <class Number>
Number parse_number(std::string_view text, std::string_view source) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure == std::errc() && stop == end) return value;
  wrong(source, "not a number", text,
        std::is_integral_v<Number> ? "a whole number" : "a number such as 0.1 or 1e-3");
}

int64_t parse_whole(std::string_view text, std::string_view source, int64_t least, int64_t most) {
  const auto value = parse_number<int64_t>(text, source);
  if (value < least || value > most)
    wrong(source, value < least ? "too small" : "too large", text,
          fmt::format("{} to {}", least, most));
  return value;
}

Setting whole(std::string name, std::string group, int64_t Config::*field, int64_t least,
              std::string help, int64_t most = kMost) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "INT",
          .is_flag = false,
          .get = [field](const Config& c) { return std::to_string(c.*field); },
          .set =
              [field, least, most](Config& c, std::string_view text, std::string_view source) {
                c.*field = parse_whole(text, source, least, most);
              }};
}

// Numbers in [low, high].
Setting real(std::string name, std::string group, double Config::*field, double low, double high,
             std::string help) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "FLOAT",
          .is_flag = false,
          .get = [field](const Config& c) { return fmt::format("{}", c.*field); },
          .set =
              [field, low, high](Config& c, std::string_view text, std::string_view source) {
                const auto value = parse_number<double>(text, source);
                if (!(value >= low && value <= high))
                  wrong(source, "out of range", text,
                        high == kInfinity ? fmt::format("{} or more", low)
                                          : fmt::format("{} to {}", low, high));
                if (!std::isfinite(value)) wrong(source, "not finite", text, "a finite number");
                c.*field = value;
              }};
}

Setting words(std::string name, std::string group, std::string Config::*field, std::string help,
              std::vector<std::string> accepted = {}) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "TEXT",
          .is_flag = false,
          .get = [field](const Config& c) { return c.*field; },
          .set =
              [field, accepted = std::move(accepted)](Config& c, std::string_view text,
                                                      std::string_view source) {
                if (!accepted.empty() &&
                    std::find(accepted.begin(), accepted.end(), text) == accepted.end()) {
                  throw UsageError({.where = source,
                                    .what = "not accepted",
                                    .seen = text,
                                    .advice = did_you_mean(text, accepted)});
                }
                c.*field = text;
              }};
}

Setting flag(std::string name, std::string group, bool Config::*field, std::string help) {
  return {.name = std::move(name),
          .group = std::move(group),
          .help = std::move(help),
          .type = "",
          .is_flag = true,
          .get = [field](const Config& c) { return std::string(c.*field ? "true" : "false"); },
          .set =
              [field](Config& c, std::string_view text, std::string_view source) {
                if (text == "true" || text == "1" || text == "yes" || text == "on") {
                  c.*field = true;
                } else if (text == "false" || text == "0" || text == "no" || text == "off") {
                  c.*field = false;
                } else {
                  wrong(source, "neither true nor false", text,
                        "true, false, 1, 0, yes, no, on, off");
                }
              }};
}

Setting batch_size() {
  return {.name = "batch-size",
          .group = "Training",
          .help =
              "Examples per step and device, or auto: the largest that fits in 80 % of the "
              "memory that is free, found by trial",
          .type = "INT",
          .is_flag = false,
          .get = [](const Config& c) { return c.batch_size; },
          .set =
              [](Config& c, std::string_view text, std::string_view source) {
                if (text == "auto") {
                  c.batch_size = text;
                  return;
                }
                const auto value = parse_number<int64_t>(text, source);
                if (value < 1 || value > kMost)
                  wrong(source, value < 1 ? "too small" : "too large", text,
                        fmt::format("1 to {}, or auto", kMost));
                c.batch_size = text;
              }};
}

Setting data_name(std::string group) {
  Setting setting =
      words("data", std::move(group), &Config::data,
            "Data set, by name (`demi data list`); csv: --train-file and --test-file; folder: of "
            "pictures, train/class/name.jpg and val/class/name.jpg below --data-dir");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (text.find('/') != text.npos)
      throw UsageError({.where = source,
                        .what = "the data set's name is meant, and this is a path",
                        .seen = text,
                        .advice = "name the folder with --data-dir or DEMI_DATA_DIR"});
    take(c, text, source);
  };
  return setting;
}

std::vector<Setting> data_settings() {
  const std::string g = "Model and data";
  return {
      words("model", g, &Config::model, "Network; `demi train --list` names them"),
      data_name(g),
      words("data-dir", g, &Config::data_dir,
            "Folder of the data set's files [DEMI_DATA_DIR, or where data sets lie]"),
      words("train-file", g, &Config::train_file, "CSV or TSV with label and text, to train on"),
      words("test-file", g, &Config::test_file, "CSV or TSV with label and text, to test on"),
      whole(
          "limit", g, &Config::limit, 0,
          "Use that many training examples, evenly spaced, and a sixth of it for testing; 0: all"),
      whole("overfit-batches", g, &Config::overfit_batches, 0,
            "Train and test on that many batches only, without augmentation; 0: off"),
      whole("workers", g, &Config::workers, 0,
            "Threads that make batches ahead; 0: the training thread makes them", 1024),
      words("normalize", g, &Config::normalize,
            "Pictures: data-set (mean and deviation of the set; of ImageNet for a folder), half "
            "((x/255 - 0.5) / 0.5), none",
            {"data-set", "half", "none"}),
      whole("crop-padding", g, &Config::crop_padding, 0,
            "Pad by that many pixels and crop a random window; 0: no crop", kMostPixels),
      real("crop-area", g, &Config::crop_area, 0.001, 1,
           "Folder of pictures: trained on a random window of that share of the area up to all; 1: "
           "on the middle, as in testing"),
      flag("horizontal-flip", g, &Config::horizontal_flip, "Mirror half of the training pictures"),
      whole("in", g, &Config::in, 1, "mlp: features", kMostFeatures),
      whole("out", g, &Config::out, 1, "mlp: outputs", kMostFeatures),
      whole("layers", g, &Config::layers, 1, "mlp: linear layers", 10'000),
      whole("batches", g, &Config::batches, 1, "Synthetic data: batches an epoch"),
      whole("image-size", g, &Config::image_size, 32,
            "Synthetic pictures, or of a folder: height and width", kMostPixels),
      whole("classes", g, &Config::classes, 2, "Synthetic pictures: classes", kMostFeatures),
      words("pool", g, &Config::pool, "lstm: last, mean or max over the valid outputs",
            {"last", "mean", "max"}),
      flag("bidirectional", g, &Config::bidirectional, "lstm: a second one reads backwards"),
      whole("embedding", g, &Config::embedding, 1, "lstm: width of the embedding", kMostFeatures),
      whole("hidden", g, &Config::hidden, 1, "lstm: width of the hidden state", kMostFeatures),
      whole("vocabulary-size", g, &Config::vocabulary_size, 0,
            "Texts: keep that many most frequent words; 0: all"),
      whole("max-length", g, &Config::max_length, 0,
            "Texts: keep the first that many words of each; 0: all"),
  };
}

std::vector<Setting> training_settings() {
  const std::string g = "Training";
  return {
      whole("epochs", g, &Config::epochs, 1, "Passes over the training data"),
      whole("steps", g, &Config::steps, 0, "End after that many steps; 0: by --epochs alone"),
      batch_size(),
      whole("test-batch-size", g, &Config::test_batch_size, 1, "Examples per batch in evaluation"),
      words("optimizer", g, &Config::optimizer, "sgd, adam, adamw, lamb or lion",
            {"sgd", "adam", "adamw", "lamb", "lion"}),
      real("lr", g, &Config::lr, 0, kInfinity,
           "Learning rate; the peak of a schedule that has one"),
      real("momentum", g, &Config::momentum, 0, kInfinity, "sgd: momentum"),
      flag("nesterov", g, &Config::nesterov, "sgd: Nesterov's form of momentum"),
      real("weight-decay", g, &Config::weight_decay, 0, kInfinity, "Weight decay"),
      flag("decay-by-rule", g, &Config::decay_by_rule,
           "No weight decay for biases and normalisation"),
      words("schedule", g, &Config::schedule,
            "constant, one-cycle, linear (to 0) by step, or cosine (to 0) by epoch",
            {"constant", "one-cycle", "linear", "cosine"}),
      whole("schedule-epochs", g, &Config::schedule_epochs, 0,
            "Epochs that the schedule is made for; 0: --epochs"),
      real("warmup-epochs", g, &Config::warmup_epochs, 0, static_cast<double>(kMost),
           "Epochs in which the learning rate rises to --lr, before constant, linear or cosine"),
      words("loss", g, &Config::loss, "cross-entropy, bce (with logits) or mse",
            {"cross-entropy", "bce", "mse"}),
      real("label-smoothing", g, &Config::label_smoothing, 0, 0.999,
           "Cross entropy: share of the target spread over all classes"),
      real("clip-norm", g, &Config::clip_norm, 0, kInfinity,
           "Largest L2 norm of all gradients together; 0: no clipping"),
      real("gradient-penalty", g, &Config::gradient_penalty, 0, kInfinity,
           "Weight of the gradient's L2 norm in the loss; 0: none"),
      whole("accumulate", g, &Config::accumulate, 1, "Batches whose gradients make one step"),
      real("ema", g, &Config::ema, 0, 0.999999,
           "Decay of an average of the weights, which is what is tested; 0: none"),
      whole("early-stopping", g, &Config::early_stopping, 0,
            "End after that many epochs without a better test result; 0: never"),
      whole(
          "top-k", g, &Config::top_k, 0,
          "In testing, also the share of examples whose class is among the k likeliest; 0: 5 where "
          "there are more than 10 classes, else none"),
  };
}

std::vector<Setting> precision_settings() {
  const std::string g = "Precision";
  return {
      words("precision", g, &Config::precision,
            "fp32, tf32, fp16, bf16, fp64, fp16-true or bf16-true; fp16 and bf16 are mixed"),
      words("loss-scale", g, &Config::loss_scale,
            "auto (dynamic for fp16, off otherwise), dynamic, statistics, off, or a number"),
      real("init-scale", g, &Config::init_scale, std::numeric_limits<float>::min(),
           std::numeric_limits<float>::max(), "First loss scale"),
      real("growth-factor", g, &Config::growth_factor, 1, kInfinity,
           "Of the loss scale after --growth-interval clean steps; above 1"),
      real("backoff-factor", g, &Config::backoff_factor, 0, 1,
           "Of the loss scale after an Inf or NaN; between 0 and 1"),
      whole("growth-interval", g, &Config::growth_interval, 1,
            "Clean steps until the loss scale grows"),
      flag("autocast", g, &Config::autocast,
           "The autocast region; without it a mixed run computes in FP32, loss scaling stays"),
      flag("scaler", g, &Config::scaler, "Loss scaling; without it the region stays"),
      words("fp32-part", g, &Config::fp32_part,
            "Parts of the model, by comma, that run in FP32 (names as in the module: layer4,fc)"),
      flag("flush-subnormals", g, &Config::flush_subnormals,
           "On a CPU FP32 numbers below 1.2e-38 count as 0: Intel's processors are slow with them"),
  };
}

std::vector<Setting> place_settings() {
  const std::string g = "Run";
  return {
      words("device", g, &Config::device, "auto, cpu, cuda or cuda:N"),
      whole("seed", g, &Config::seed, 0, "Of initial weights, data order and augmentation",
            std::numeric_limits<int64_t>::max()),
      flag("deterministic", g, &Config::deterministic,
           "Only algorithms that give the same bits in every run; an error where there is none"),
      flag("dry-run", g, &Config::dry_run, "Two training steps and one test batch, nothing kept"),
  };
}

}  // namespace

std::span<const Setting> settings() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> table;
    for (auto part : {data_settings(), training_settings(), precision_settings(), place_settings()})
      table.insert(table.end(), part.begin(), part.end());
    return table;
  }();
  return all;
}

void set(Config& config, std::string_view name, std::string_view text, std::string_view source) {
  std::vector<std::string> known;
  for (const Setting& setting : settings()) {
    if (setting.name == name) return setting.set(config, text, source);
    known.push_back(setting.name);
  }
  throw UsageError({.where = source,
                    .what = "no such setting",
                    .seen = name,
                    .advice = did_you_mean(name, known)});
}

int64_t batch_size_of(const Config& config) {
  if (config.batch_size == "auto")
    throw UsageError({.where = "train.batch_size_of",
                      .what = "the batch size is still to be found",
                      .seen = "auto",
                      .advice = "call find_batch_size first"});
  return parse_number<int64_t>(config.batch_size, "batch_size");
}

int64_t scheduled_epochs(const Config& config) {
  return config.schedule_epochs > 0 ? config.schedule_epochs : config.epochs;
}

namespace {

/// Synthetic data lie in memory as a whole; a number that is not one of bytes would come out as
/// LibTorch's complaint of an overflow.
void check_synthetic(const Config& c) {
  if (!c.data.starts_with("synthetic-") || c.batch_size == "auto") return;
  const double bytes = static_cast<double>(batch_size_of(c)) * static_cast<double>(c.batches) *
                       static_cast<double>(synthetic_bytes(c));
  constexpr double kMostBytes = 0x1p50;
  if (bytes > kMostBytes)
    throw UsageError(
        {.where = "train.check",
         .what = "the synthetic data do not fit in any memory",
         .seen = fmt::format("{:.3g} bytes ({} batches of {})", bytes, c.batches, c.batch_size),
         .accepted = fmt::format("at most {:.3g}", kMostBytes),
         .advice = "fewer --batches, a smaller --batch-size or smaller examples"});
}

}  // namespace

int64_t synthetic_bytes(const Config& c) {
  if (c.data == "synthetic-rows") return 4 * (c.in + c.out);
  if (c.data == "synthetic-images") return 3 * c.image_size * c.image_size + 8;
  return 0;
}

void check(const Config& config) {
  check_synthetic(config);
  const auto refuse = [](std::string_view what, std::string_view seen, std::string_view advice) {
    throw UsageError({.where = "train.check", .what = what, .seen = seen, .advice = advice});
  };
  if (config.data == "csv" && (config.train_file.empty() || config.test_file.empty()))
    refuse("--data csv names no files", "", "add --train-file and --test-file");
  if (config.data != "csv" && !(config.train_file.empty() && config.test_file.empty()))
    refuse("--train-file and --test-file belong to --data csv", config.data, "add --data csv");
  if (config.data == "folder" && config.data_dir.empty())
    refuse("--data folder names no folder", "", "add --data-dir");
  if (config.nesterov && config.momentum == 0)
    refuse("Nesterov's form needs a momentum", "momentum 0", "add --momentum 0.9");
  if (config.schedule != "constant" && scheduled_epochs(config) < config.epochs)
    refuse("the schedule ends before training does",
           fmt::format("--schedule {} --schedule-epochs {} --epochs {}", config.schedule,
                       config.schedule_epochs, config.epochs),
           "as many --schedule-epochs as --epochs or more, or leave them out");
  if (config.schedule == "one-cycle" && config.warmup_epochs > 0)
    refuse("a one-cycle schedule has its own warm-up", "", "leave out --warmup-epochs");
  if (config.schedule != "constant" && config.warmup_epochs > 0 &&
      config.warmup_epochs >= static_cast<double>(scheduled_epochs(config)))
    refuse(
        "the warm-up takes the whole schedule",
        fmt::format("--warmup-epochs {:g} of {}", config.warmup_epochs, scheduled_epochs(config)),
        "fewer --warmup-epochs, or more --schedule-epochs");
}

}  // namespace demi::train
