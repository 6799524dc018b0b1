#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/tensor/device.h"
#include "demi/train/every.h"
#include "lab/data/data_sets.h"
#include "lab/find_by_name.h"
#include "lab/models/registry.h"
#include "lab/settings/config.h"
#include "lab/settings/devices.h"
#include "lab/settings/model_settings.h"
#include "lab/settings/norm_limit.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/run_spec.h"
#include "lab/settings/schedules.h"
#include "lab/values/setting.h"

namespace demi::settings {
namespace {

using values::flag;
using values::kInfinity;
using values::kMost;
using values::kMostFeatures;
using values::parse_whole;
using values::real;
using values::whole;
using values::words;
using values::wrong;

constexpr int64_t kMostPixels = 1 << 15;  // of a side

// What `read` returns. Its UsageError is about the place where the text was given.
template <class Read>
decltype(auto) read_from(std::string_view source, const Read& read) {
  try {
    return read();
  } catch (const UsageError& error) {
    const std::string_view text = error.what();  // "[module.function] no such ..."
    throw UsageError({.where = source, .what = text.substr(text.find("] ") + 2)});
  }
}

std::string schedules_with_effects() {
  std::vector<std::string> texts;
  for (const ScheduleKind& kind : schedule_kinds())
    texts.push_back(kind.effect.empty() ? kind.name : kind.name + " (" + kind.effect + ")");
  return values::either(texts);
}

Setting batch_size() {
  Setting setting =
      whole("batch-size", &Config::batch_size, 1,
            "Examples per step and device, or auto: the largest number with which the whole run is "
            "predicted to fit in 80 % of the free memory");
  setting.get = [](const Config& c) {
    return c.batch_size == 0 ? "auto" : std::to_string(c.batch_size);
  };
  setting.set = [](Config& c, std::string_view text, std::string_view source) {
    c.batch_size = text == "auto" ? 0 : parse_whole(text, source, 1, kMost, ", or auto");
  };
  return setting;
}

Setting stop_after() {
  Setting setting =
      words("stop-after", &Config::stop_after,
            "Time since the program's start (11h50m, 90s) after which training saves a checkpoint "
            "and ends with exit code 75, so that --resume auto goes on; 0: never");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (text != "0" && train::minutes_in(text).value_or(0) <= 0)
      wrong(source, "not a time", text,
            "hours, minutes and seconds such as 11h50m, 1.5h, 90s; or 0", train::every_meant(text));
    take(c, text, source);
  };
  return setting;
}

Setting keep_every() {
  Setting setting = words("keep-every", &Config::keep_every,
                          "Save a checkpoint every so many steps (1000) or epochs (1epoch) that "
                          "later ones do not replace; 0: none");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    constexpr const char* kAccepted = "a number of steps (1000) or of epochs (1epoch); 0 for none";
    try {
      if (train::Every::parse(text).minutes == 0) return take(c, text, source);
    } catch (const UsageError&) {
      wrong(source, "not a frequency", text, kAccepted, train::every_meant(text));
    }
    wrong(source, "takes steps or epochs, not a time", text, kAccepted);
  };
  return setting;
}

Setting skip_norm_above() {
  Setting setting = words(
      "skip-norm-above", &Config::skip_norm_above,
      "L2 norm of all gradients above which a step is skipped, or by how many standard "
      "deviations it may be above the mean of the last 128 steps that were taken (6sd); 0: no "
      "limit");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    norm_limit_of(text, source);
    take(c, text, source);
  };
  return setting;
}

Setting checkpoint_every() {
  Setting setting = words(
      "checkpoint-every", &Config::checkpoint_every,
      "How often a checkpoint is saved in training: every so many steps (400), epochs (1epoch) or "
      "minutes and hours (10min, 1.5h, 1h30m); 0: at the end alone, and when a signal asks for it");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    try {
      train::Every::parse(text);
    } catch (const UsageError&) {
      wrong(source, "not a number of steps, epochs, minutes or hours", text,
            "400, 1epoch, 2epochs, 10min, 1.5h, or 0", train::every_meant(text));
    }
    take(c, text, source);
  };
  return setting;
}

// Kept as the text of the file, which may change or move.
Setting op_policy() {
  Setting setting =
      words("op-policy", &Config::op_policy,
            "File that says what ops run in, and which parts of the model in FP32, a line each: "
            "`softmax fp32`, `part fc fp32`");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    const bool is_text = text.find('\n') != text.npos;
    std::error_code unreadable;
    const bool is_file = !is_text && std::filesystem::is_regular_file(text, unreadable);
    take(c, is_file ? OpPolicy::from_file(text).to_string() : std::string(text), source);
  };
  return setting;
}

// Kept under demi's own name. A variant would be a second place for what other settings say.
Setting precision() {
  Setting setting =
      words("precision", &Config::precision,
            "Precision of training: fp32, tf32, fp16, bf16, fp64, fp16-true or bf16-true; fp16 and "
            "bf16 are mixed precision; fp8, fp8:rowwise, fp8:blocks, mxfp8, mxfp8:wgrad-bf16 and "
            "nvfp4 are bf16 with linear layers of 8 or 4 bits, emulated");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (text == "mixed") return take(c, text, source);
    const bool is_name =
        std::ranges::find(precisions(), text, &Precision::name) != precisions().end();
    if (!is_name && text.find(':') != text.npos)
      throw UsageError({.where = source,
                        .what = "a precision alone is meant, and this is one with a variant",
                        .seen = text,
                        .accepted = std::string(parse_run(text).precision.name),
                        .advice = "give the rest as options of their own: " + typed_options(text)});
    take(c, read_from(source, [&] { return parse_precision(text).name; }), source);
  };
  return setting;
}

// Kept in one spelling: 128 for 128.0, auto for automatic.
Setting loss_scale() {
  Setting setting =
      words("loss-scale", &Config::loss_scale,
            "Loss scaling: auto (dynamic for fp16, off otherwise), dynamic, statistics, off, or a "
            "fixed scale");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    take(c, read_from(source, [&] { return to_text(parse_loss_scale(text)); }), source);
  };
  return setting;
}

// The least vocabulary is one word and the entry of all others.
Setting vocabulary_size() {
  Setting setting = whole("vocabulary-size", &Config::vocabulary_size, 0,
                          "Texts: entries of the vocabulary, the most frequent words and one for "
                          "all others; 2 or more, 0: all words. Token files: above each token");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    Config tried;
    take(tried, text, source);
    if (tried.vocabulary_size == 1) wrong(source, "no word is left", text, "2 or more, or 0: all");
    take(c, text, source);
  };
  return setting;
}

Setting what_if() {
  Setting setting =
      words("what-if", &Config::what_if,
            "In an FP32 run: which tensors would leave the range of fp16 or bf16, by layer and op, "
            "each step is slower; or which layers a recipe such as fp8 or mxfp8 would harm, seen "
            "on twenty batches. And a policy file (--op-policy) for a run without that");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    std::vector<std::string> formats{"fp16", "bf16"};
    for (const Precision& precision : precisions())
      if (!precision.recipe.empty()) formats.emplace_back(precision.name);
    if (!text.empty() && std::ranges::find(formats, text) == formats.end())
      throw UsageError({.where = source,
                        .what = "no format of a region, and no recipe",
                        .seen = text,
                        .advice = did_you_mean(text, formats)});
    take(c, text, source);
  };
  return setting;
}

// pick_device loads LibTorch's CUDA part for a name that may be one.
Setting device() {
  Setting setting = words("device", &Config::device, "Device: auto, cpu, cuda or cuda:N");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (!is_device_name(text)) read_from(source, [&] { return pick_device(text); });
    take(c, text, source);
  };
  return setting;
}

// Settings that come later may name another number of ranks, which check() refuses.
Setting devices() {
  Setting setting = words("devices", &Config::devices,
                          "Devices by comma, one rank on each: cuda:0,cuda:1 (says --ranks, too)");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (!text.empty()) c.ranks = std::ssize(device_list(text, source));
    take(c, text, source);
  };
  return setting;
}

Setting data_name() {
  Setting setting =
      words("data", &Config::data,
            "Data set: a name from `demi data list`; csv, text or tokens (--train-file); folder "
            "(pictures train/class/name.jpg and val/class/name.jpg below --data-dir); "
            "synthetic-rows, synthetic-linear or synthetic-images (made in memory)");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (text.find('/') != text.npos)
      throw UsageError({.where = source,
                        .what = "the data set's name is meant, and this is a path",
                        .seen = text,
                        .advice = "name the folder with --data-dir or DEMI_DATA_DIR"});
    if (!text.empty()) read_from(source, [&] { return data::data_set(text).name; });
    take(c, text, source);
  };
  return setting;
}

std::vector<Setting> source_settings() {
  return {
      words("model", &Config::model,
            "Network: " + values::either(lab::names_of(models::models())) +
                "; or a .pt2 file that PyTorch exported"),
      words("model-output", &Config::model_output,
            "Of a .pt2 file the output that is trained, by its name in a dict or by number; loss: "
            "the network computes its loss itself, of input and target"),
      words(
          "fuse", &Config::fuse,
          "Of a .pt2 file on a CPU the batch norms that run with the sum, ReLU and pooling behind "
          "them as one operator: low-precision (of 16-bit inputs), always (FP32, too, whose last "
          "bits are then not Python's) or never",
          {"low-precision", "always", "never"}),
      flag("channels-last", &Config::channels_last,
           "Run a .pt2 file of pictures in channels_last, in which convolutions on a CPU are "
           "faster; a graph with a `view` that forbids it runs as it is, and that is said"),
      data_name(),
      words("data-dir", &Config::data_dir,
            "Folder that holds the data set's files [DEMI_DATA_DIR, else the cache and "
            "/usr/share/datasets]"),
      words(
          "train-file", &Config::train_file,
          "File to train on: CSV or TSV with label and text (csv), UTF-8 (text), token files by a "
          "pattern such as 'train*.bin' (tokens)"),
      words(
          "test-file", &Config::test_file,
          "File to test on, likewise; text and tokens without it: the last tenth of --train-file"),
      whole("limit", &Config::limit, 0,
            "Number of training examples to use, evenly spaced, with a sixth as many for testing; "
            "0: all"),
      whole("test-limit", &Config::test_limit, 0,
            "Number of test examples to use, evenly spaced; 0: a sixth of --limit"),
      whole("overfit-batches", &Config::overfit_batches, 0,
            "Number of batches to both train and test on, without augmentation; in place of "
            "--limit; 0: off"),
      whole("workers", &Config::workers, 0,
            "Threads that prepare batches ahead; 0: the training thread prepares them", 1024),
      words("normalize", &Config::normalize,
            "Normalization of pictures: data-set (mean and deviation of the set; ImageNet's for a "
            "folder), half ((x/255 - 0.5) / 0.5), none",
            {"data-set", "half", "none"}),
      whole("crop-padding", &Config::crop_padding, 0,
            "CIFAR and MNIST: pixels of padding before a random crop; 0: no crop", kMostPixels),
      real("crop-area", &Config::crop_area, 0.001, 1,
           "Random crop of a folder's pictures: least share of the picture's area; 1: centre crop"),
      flag("horizontal-flip", &Config::horizontal_flip, "Mirror half of the training pictures"),
  };
}

std::vector<Setting> row_settings() {
  return {
      whole("in", &Config::in, 1, "mlp: number of input features", kMostFeatures),
      whole("out", &Config::out, 1, "mlp: number of outputs", kMostFeatures),
  };
}

std::vector<Setting> synthetic_settings() {
  return {
      whole("batches", &Config::batches, 1, "Synthetic data: batches per epoch"),
      real("input-scale", &Config::input_scale, -kInfinity, kInfinity,
           "Synthetic rows: factor of the inputs, as of features that nobody normalised; targets "
           "stay"),
      whole("image-size", &Config::image_size, 32,
            "Height and width of synthetic pictures and of a folder's pictures", kMostPixels),
      whole("classes", &Config::classes, 2, "Synthetic pictures: number of classes", kMostFeatures),
  };
}

std::vector<Setting> text_settings() {
  return {
      vocabulary_size(),
      whole("max-length", &Config::max_length, 0,
            "Texts: number of words to keep of each text, from its start; 0: all"),
      words(
          "tokenizer", &Config::tokenizer,
          "Running texts: characters, bytes, or GPT-2's byte pairs: a tokenizer.json, or a folder "
          "of vocab.json and merges.txt"),
      whole("context", &Config::context, 1, "gpt: tokens of a window", kMostFeatures),
  };
}

std::vector<Setting> recompute_settings() {
  return {
      words("recompute", &Config::recompute,
            "gpt and resnets: none, blocks (less memory: backward runs each block again), products "
            "(likewise, and keeps the results of matrix products and convolutions: faster)",
            {"none", "blocks", "products"}),
  };
}

std::vector<Setting> training_settings() {
  return {
      whole("epochs", &Config::epochs, 1, "Passes over the training data"),
      whole("steps", &Config::steps, 0,
            "Optimizer steps after which training ends; 0: --epochs alone decide"),
      whole("eval-every", &Config::eval_every, 1,
            "Running texts and tokens, which have no end: optimizer steps of an epoch"),
      batch_size(),
      whole("test-batch-size", &Config::test_batch_size, 1, "Examples per batch in evaluation"),
      words("optimizer", &Config::optimizer,
            "Update rule: " + values::either(lab::names_of(optimizer_kinds())),
            lab::names_of(optimizer_kinds())),
      words("optimizer-options", &Config::optimizer_options,
            "Other options of the update rule, by comma: eps=1e-6,beta2=0.95; rmsprop also alpha "
            "and centered, nadam momentum_decay, nadam and radam decoupled_weight_decay, adagrad "
            "lr_decay and initial_accumulator_value, muon ns_steps, adjust_lr (0 to 3), "
            "polar_express, sgd, nesterov and muon_eps (eps is that of its adamw)"),
      words("betas", &Config::betas,
            "Decay rates of the moments, by comma: 0.9,0.95; empty: those of the update rule"),
      real("lr", &Config::lr, 0, kInfinity, "Learning rate; the peak, if the schedule has one"),
      real("muon-lr", &Config::muon_lr, 0, kInfinity,
           "muon: learning rate of hidden matrices and convolutions; --lr is that of the others, "
           "which adamw updates"),
      real("min-lr", &Config::min_lr, 0, kInfinity,
           "Learning rate at which a linear or cosine schedule ends"),
      real("momentum", &Config::momentum, 0, kInfinity,
           "sgd, rmsprop: momentum; muon: 0.95 if it is 0"),
      flag("nesterov", &Config::nesterov,
           "sgd: Nesterov's form of momentum; muon has it unless --optimizer-options nesterov=0"),
      real("weight-decay", &Config::weight_decay, 0, kInfinity, "Weight decay"),
      flag("decay-by-rule", &Config::decay_by_rule,
           "Exempt biases and normalization layers from weight decay"),
      words("schedule", &Config::schedule,
            "Course of the learning rate: " + schedules_with_effects(),
            lab::names_of(schedule_kinds())),
      whole("schedule-epochs", &Config::schedule_epochs, 0,
            "Epochs that the schedule is made for; 0: as --epochs"),
      whole("schedule-steps", &Config::schedule_steps, 0,
            "Optimizer steps that the schedule is made for, in place of --schedule-epochs; 0: off"),
      real("warmup-epochs", &Config::warmup_epochs, 0, static_cast<double>(kMost),
           "Epochs in which the learning rate rises to --lr, before a constant, linear or cosine "
           "schedule"),
      whole("warmup-steps", &Config::warmup_steps, 0,
            "Optimizer steps in which it rises, in place of --warmup-epochs; 0: off"),
      words("loss", &Config::loss,
            "Loss function: cross-entropy, bce (binary cross entropy with logits) or mse (mean "
            "squared error)",
            {"cross-entropy", "bce", "mse"}),
      real("loss-weight", &Config::loss_weight, std::numeric_limits<float>::min(),
           std::numeric_limits<float>::max(),
           "Factor of the loss, as of one term among several; gradients are as many times greater"),
      real("label-smoothing", &Config::label_smoothing, 0, 0.999,
           "Cross entropy: share of the target that is spread over all classes"),
      real("clip-norm", &Config::clip_norm, 0, kInfinity,
           "Largest L2 norm of all gradients together; 0: no clipping"),
      skip_norm_above(),
      real("gradient-penalty", &Config::gradient_penalty, 0, kInfinity,
           "Weight of the gradients' L2 norm in the loss; 0: no penalty"),
      whole("accumulate", &Config::accumulate, 1,
            "Batches for one step, which takes the sum of their gradients divided by this number"),
      whole("tokens-per-step", &Config::tokens_per_step, 0,
            "Running texts and tokens: tokens of one step on all ranks, for which batches are "
            "accumulated; 0: those of --accumulate"),
      real("ema", &Config::ema, 0, 0.999999,
           "Decay of a moving average of the weights, which is tested and saved in their place; 0: "
           "no average"),
      whole("early-stopping", &Config::early_stopping, 0,
            "Epochs without a better test result after which training ends; 0: never"),
      whole("top-k", &Config::top_k, 0,
            "Also report the share of test examples whose class is among the k likeliest, with "
            "cross entropy; 0: 5 with more than 10 classes, else off"),
  };
}

std::vector<Setting> precision_settings() {
  return {
      precision(),
      loss_scale(),
      real("init-scale", &Config::init_scale, std::numeric_limits<float>::min(),
           std::numeric_limits<float>::max(), "First loss scale"),
      real("growth-factor", &Config::growth_factor, 1, kInfinity,
           "Factor by which the loss scale grows after --growth-interval steps without Inf or NaN; "
           "above 1"),
      real("backoff-factor", &Config::backoff_factor, 0, 1,
           "Factor by which the loss scale shrinks after an Inf or NaN; between 0 and 1"),
      whole("growth-interval", &Config::growth_interval, 1,
            "Steps without Inf or NaN after which the loss scale grows"),
      flag("autocast", &Config::autocast,
           "Autocast region; without it a mixed run computes in FP32 but keeps loss scaling"),
      flag("scaler", &Config::scaler,
           "Loss scaling; without it a mixed run keeps its autocast region"),
      words("moments", &Config::moments,
            "Storage of the update rule's moments: fp32, bf16 or int8 (8 bits in groups of 32), "
            "rounded "
            "by chance; tensors under 4,096 elements and amsgrad's maximum stay in fp32",
            {"fp32", "bf16", "int8"}),
      words(
          "weight-mode", &Config::weight_mode,
          "Weights that lie in bf16 (bf16-true, and bf16 but for normalisations; split: fp16, "
          "too), "
          "and what is kept beside them: split: the 16 bits that they lack of FP32, none of which "
          "is lost (fp16: from 2^-16 on); "
          "split24: 8 of these; stochastic: nothing, they are rounded by chance; master: FP32 "
          "numbers, whose rounded copies they are",
          {"master", "split", "split24", "stochastic"}),
      flag("skip", &Config::skip,
           "Skip a step whose gradients hold Inf or NaN; without it the step is taken, with a loss "
           "scale or without"),
      words("fp32-part", &Config::fp32_part,
            "Parts of the model that run in FP32, by comma (module names: stages.7,classifier)"),
      op_policy(),
      flag("flush-subnormals", &Config::flush_subnormals,
           "Count FP32 numbers below 1.2e-38 as 0 on a CPU: Intel's processors are slow with them"),
  };
}

std::vector<Setting> backend_settings() {
  return {
      words("cuda-matmul-allow-tf32", &Config::cuda_matmul_allow_tf32,
            "CUDA: FP32 matrix products may use TF32: auto (in runs of precision tf32 alone), on "
            "or off",
            {"auto", "on", "off"}),
      words("cudnn-allow-tf32", &Config::cudnn_allow_tf32,
            "CUDA: FP32 convolutions and recurrent layers may use TF32: auto (in runs of precision "
            "tf32 alone), on (LibTorch's own default) or off",
            {"auto", "on", "off"}),
      flag("allow-fp16-reduced-precision-reduction", &Config::fp16_reduction,
           "Partial sums of fp16 matrix products in fp16, on CUDA"),
      flag("allow-bf16-reduced-precision-reduction", &Config::bf16_reduction,
           "Partial sums of bf16 matrix products in bf16, on CUDA"),
      flag("cudnn-enabled", &Config::cudnn_enabled,
           "Convolutions and recurrent layers in cuDNN, on CUDA"),
      flag("cudnn-benchmark", &Config::cudnn_benchmark,
           "Trials of cuDNN's algorithms for each new shape of a convolution, of which the fastest "
           "is "
           "used, on CUDA; not with --deterministic"),
      flag("deterministic", &Config::deterministic,
           "Use only algorithms that give the same bits in every run; an error if an operation has "
           "none"),
      words("cuda-graph", &Config::cuda_graph,
            "CUDA: record the device's work of a training step, and of a batch that is tested on, "
            "once and replay it, which spares the host's time: off, auto (where it can be; what "
            "cannot runs plainly, and a warning says why) or on (an error where it cannot be)",
            {"off", "auto", "on"}),
      whole("threads", &Config::threads, 0, "CPU: threads of one operation; 0: LibTorch's choice",
            1024),
  };
}

std::vector<Setting> place_settings() {
  return {
      device(),
      devices(),
      whole("ranks", &Config::ranks, 1,
            "Processes of this machine that train together, each with batches of --batch-size; "
            "torchrun, mpirun and srun say it themselves",
            1024),
      flag("sync-batch-norm", &Config::sync_batch_norm,
           "Several ranks: batch normalisation over the batches of all of them; without it over "
           "each "
           "rank's own"),
      flag(
          "shard-optimizer", &Config::shard_optimizer,
          "Several ranks: each keeps moments and FP32 masters of its share of the parameters alone "
          "(ZeRO stage 1)"),
      whole("seed", &Config::seed, 0,
            "Seed of the initial weights, the data order and the augmentation",
            std::numeric_limits<int64_t>::max()),
      flag("dry-run", &Config::dry_run, "Two training steps and one test batch; nothing is kept"),
      whole("monitor", &Config::monitor, 0,
            "Look at gradients and updates every so many steps, by layer and power of two: "
            "metrics.jsonl, TensorBoard, report; 0: off"),
      flag("detect-anomaly", &Config::detect_anomaly,
           "Name the op that makes the first Inf or NaN, forward or backward, by repeating the "
           "step; each step is slower, see docs/reference/monitor.md"),
      what_if(),
      checkpoint_every(),
      whole("keep-last", &Config::keep_last, 0,
            "Number of checkpoints to keep, besides the best and those of --keep-every; 0: all"),
      keep_every(),
      whole("keep-best", &Config::keep_best, 0,
            "Number of epochs with the best test results whose checkpoints are kept; "
            "checkpoints/best names the first; 0: none"),
      words("best-by", &Config::best_by,
            "By what a test result is the best, for --keep-best and --early-stopping: "
            "test_accuracy, test_loss (or validation_loss, the same), or auto: accuracy where "
            "there is one",
            {"auto", "test_accuracy", "test_loss", "validation_loss"}),
      stop_after(),
      words("from", &Config::from,
            "Start at step 0 from saved weights: of a run's folder (its last checkpoint), a "
            "checkpoint (RUN/checkpoints/best), a safetensors file or a folder of Hugging Face's"),
      flag("from-state", &Config::from_state,
           "With --from: the optimizer's moments too, by the parameters' names; the optimizer has "
           "to be of the same rule"),
      flag("from-average", &Config::from_average,
           "With --from: the moving average of a run with --ema in place of its weights"),
      words("resume", &Config::resume,
            "Go on with a run: its folder; a checkpoint, from which a new run begins; or auto: the "
            "newest unfinished run of this command and recipe, and a new one if there is none"),
  };
}

}  // namespace

std::span<const Setting> all_settings() {
  using data::Kind;
  static const std::vector<Setting> all = [] {
    std::vector<Setting> table;
    const auto add = [&](const char* group, std::vector<Setting> settings) {
      for (Setting& setting : settings) table.emplace_back(std::move(setting)).group = group;
    };
    for (auto& part :
         {source_settings(), row_settings(), settings_of_models(Kind::rows),
          settings_of_models(Kind::pictures), synthetic_settings(), settings_of_models(Kind::texts),
          text_settings(), settings_of_models(Kind::tokens), recompute_settings()})
      add("Model and data", part);
    add("Training", training_settings());
    add("Precision", precision_settings());
    add("Backends", backend_settings());
    add("Run", place_settings());
    return table;
  }();
  return all;
}

const Setting* find_setting(std::string_view name) {
  const auto found = std::ranges::find(all_settings(), name, &Setting::name);
  return found == all_settings().end() ? nullptr : &*found;
}

void set(Config& config, std::string_view name, std::string_view text, std::string_view source) {
  if (const Setting* setting = find_setting(name)) return setting->set(config, text, source);
  throw UsageError({.where = source,
                    .what = "no such setting",
                    .seen = name,
                    .advice = did_you_mean_setting(name)});
}

}  // namespace demi::settings
