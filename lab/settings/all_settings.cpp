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
#include "demi/train/every.h"
#include "lab/find_by_name.h"
#include "lab/models/registry.h"
#include "lab/settings/devices.h"
#include "lab/settings/norm_limit.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/run_spec.h"
#include "lab/settings/schedules.h"
#include "lab/settings/setting_kinds.h"

namespace demi::settings {
namespace {

// "a, b or c"
std::string either(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

std::string schedules_with_effects() {
  std::vector<std::string> texts;
  for (const ScheduleKind& kind : schedule_kinds())
    texts.push_back(kind.effect.empty() ? kind.name : kind.name + " (" + kind.effect + ")");
  return either(texts);
}

Setting batch_size(std::string group) {
  Setting setting =
      whole("batch-size", std::move(group), &Config::batch_size, 1,
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

Setting stop_after(std::string group) {
  Setting setting =
      words("stop-after", std::move(group), &Config::stop_after,
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

Setting keep_every(std::string group) {
  Setting setting = words("keep-every", std::move(group), &Config::keep_every,
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

Setting skip_norm_above(std::string group) {
  Setting setting = words(
      "skip-norm-above", std::move(group), &Config::skip_norm_above,
      "L2 norm of all gradients above which a step is skipped, or by how many standard "
      "deviations it may be above the mean of the last 128 steps that were taken (6sd); 0: no "
      "limit");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    norm_limit_of(text, source);
    take(c, text, source);
  };
  return setting;
}

Setting checkpoint_every(std::string group) {
  Setting setting = words(
      "checkpoint-every", std::move(group), &Config::checkpoint_every,
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
Setting op_policy(std::string group) {
  Setting setting =
      words("op-policy", std::move(group), &Config::op_policy,
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
Setting precision(std::string group) {
  Setting setting =
      words("precision", std::move(group), &Config::precision,
            "Precision of training: fp32, tf32, fp16, bf16, fp64, fp16-true or bf16-true; fp16 and "
            "bf16 are mixed precision");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (text == "mixed") return take(c, text, source);
    if (text.find(':') != text.npos)
      throw UsageError({.where = source,
                        .what = "a precision alone is meant, and this is one with a variant",
                        .seen = text,
                        .accepted = std::string(parse_run(text).precision.name),
                        .advice = "give the rest as options of their own: " + typed_options(text)});
    take(c, train::parse_precision(text).name, source);
  };
  return setting;
}

// Kept in one spelling: 128 for 128.0, auto for automatic.
Setting loss_scale(std::string group) {
  Setting setting =
      words("loss-scale", std::move(group), &Config::loss_scale,
            "Loss scaling: auto (dynamic for fp16, off otherwise), dynamic, statistics, off, or a "
            "fixed scale");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    take(c, to_text(train::parse_loss_scale(text)), source);
  };
  return setting;
}

// One word and the entry of all others are the least.
Setting vocabulary_size(std::string group) {
  Setting setting = whole("vocabulary-size", std::move(group), &Config::vocabulary_size, 0,
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

Setting what_if(std::string group) {
  Setting setting =
      words("what-if", std::move(group), &Config::what_if,
            "In an FP32 run: which tensors would leave the range of fp16 or bf16, by layer and op, "
            "and a policy file (--op-policy) for a run without that; each step is slower");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    const std::vector<std::string> formats{"fp16", "bf16"};
    if (!text.empty() && std::ranges::find(formats, text) == formats.end())
      throw UsageError({.where = source,
                        .what = "no format of a region",
                        .seen = text,
                        .advice = did_you_mean(text, formats)});
    take(c, text, source);
  };
  return setting;
}

// Settings that come later may name another number of ranks, which check() refuses.
Setting devices(std::string group) {
  Setting setting = words("devices", std::move(group), &Config::devices,
                          "Devices by comma, one rank on each: cuda:0,cuda:1 (says --ranks, too)");
  setting.set = [take = setting.set](Config& c, std::string_view text, std::string_view source) {
    if (!text.empty()) c.ranks = std::ssize(device_list(text, source));
    take(c, text, source);
  };
  return setting;
}

Setting data_name(std::string group) {
  Setting setting =
      words("data", std::move(group), &Config::data,
            "Data set: a name from `demi data list`; csv, text or tokens (--train-file); folder "
            "(pictures train/class/name.jpg and val/class/name.jpg below --data-dir); "
            "synthetic-rows, synthetic-linear or synthetic-images (made in memory)");
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
      words("model", g, &Config::model,
            "Network: " + either(lab::names_of(models::models())) +
                "; or a .pt2 file that PyTorch exported"),
      words("model-output", g, &Config::model_output,
            "Of a .pt2 file the output that is trained, by its name in a dict or by number; loss: "
            "the network computes its loss itself, of input and target"),
      data_name(g),
      words("data-dir", g, &Config::data_dir,
            "Folder that holds the data set's files [DEMI_DATA_DIR, else the cache and "
            "/usr/share/datasets]"),
      words(
          "train-file", g, &Config::train_file,
          "File to train on: CSV or TSV with label and text (csv), UTF-8 (text), token files by a "
          "pattern such as 'train*.bin' (tokens)"),
      words(
          "test-file", g, &Config::test_file,
          "File to test on, likewise; text and tokens without it: the last tenth of --train-file"),
      whole("limit", g, &Config::limit, 0,
            "Number of training examples to use, evenly spaced, with a sixth as many for testing; "
            "0: all"),
      whole("test-limit", g, &Config::test_limit, 0,
            "Number of test examples to use, evenly spaced; 0: a sixth of --limit"),
      whole("overfit-batches", g, &Config::overfit_batches, 0,
            "Number of batches to both train and test on, without augmentation; in place of "
            "--limit; 0: off"),
      whole("workers", g, &Config::workers, 0,
            "Threads that prepare batches ahead; 0: the training thread prepares them", 1024),
      words("normalize", g, &Config::normalize,
            "Normalization of pictures: data-set (mean and deviation of the set; ImageNet's for a "
            "folder), half ((x/255 - 0.5) / 0.5), none",
            {"data-set", "half", "none"}),
      whole("crop-padding", g, &Config::crop_padding, 0,
            "CIFAR and MNIST: pixels of padding before a random crop; 0: no crop", kMostPixels),
      real("crop-area", g, &Config::crop_area, 0.001, 1,
           "Random crop of a folder's pictures: least share of the picture's area; 1: centre crop"),
      flag("horizontal-flip", g, &Config::horizontal_flip, "Mirror half of the training pictures"),
      whole("in", g, &Config::in, 1, "mlp: number of input features", kMostFeatures),
      whole("out", g, &Config::out, 1, "mlp: number of outputs", kMostFeatures),
      whole("depth", g, &Config::layers, 1, "mlp: number of linear layers; gpt: number of blocks",
            10'000),
      whole("batches", g, &Config::batches, 1, "Synthetic data: batches per epoch"),
      real("input-scale", g, &Config::input_scale, -kInfinity, kInfinity,
           "Synthetic rows: factor of the inputs, as of features that nobody normalised; targets "
           "stay"),
      whole("image-size", g, &Config::image_size, 32,
            "Height and width of synthetic pictures and of a folder's pictures", kMostPixels),
      whole("classes", g, &Config::classes, 2, "Synthetic pictures: number of classes",
            kMostFeatures),
      words("pool", g, &Config::pool, "lstm: pooling of the outputs over a text: last, mean or max",
            {"last", "mean", "max"}),
      flag("bidirectional", g, &Config::bidirectional,
           "lstm: a second LSTM reads the text backwards"),
      whole("embedding", g, &Config::embedding, 1, "lstm: width of the word embedding; gpt: width",
            kMostFeatures),
      whole("hidden", g, &Config::hidden, 1, "lstm: width of the hidden state", kMostFeatures),
      vocabulary_size(g),
      whole("max-length", g, &Config::max_length, 0,
            "Texts: number of words to keep of each text, from its start; 0: all"),
      words(
          "tokenizer", g, &Config::tokenizer,
          "Running texts: characters, bytes, or GPT-2's byte pairs: a tokenizer.json, or a folder "
          "of vocab.json and merges.txt"),
      whole("context", g, &Config::context, 1, "gpt: tokens of a window", kMostFeatures),
      whole("heads", g, &Config::heads, 1, "gpt: heads of attention", kMostFeatures),
      whole("key-heads", g, &Config::key_heads, 0,
            "gpt: heads of keys and values, which heads share (a divisor of --heads); 0: as many",
            kMostFeatures),
      whole("feed-forward", g, &Config::feed_forward, 0,
            "gpt: width within the feed-forward part; 0: 4 times the width, in llama 8/3 of it",
            kMostFeatures),
      words("block", g, &Config::block,
            "gpt: gpt2 (learned positions, LayerNorm, GELU, tied head), llama (rotary positions, "
            "RMSNorm, SwiGLU) or nanochat (llama's with squared ReLU, QK-norm, capped logits)",
            {"gpt2", "llama", "nanochat"}),
      flag("bias", g, &Config::bias, "gpt: biases of linear layers and norms, of --block gpt2"),
      real("dropout", g, &Config::dropout, 0, 0.999,
           "gpt: share of embeddings, attention weights and what each part adds that is zeroed"),
      words("tied-head", g, &Config::tied_head,
            "gpt: the head is the embedding: on, off, or auto (in --block gpt2)",
            {"auto", "on", "off"}),
      real("norm-eps", g, &Config::norm_eps, 0, 1, "gpt: what norms add to the variance"),
      real("rope-theta", g, &Config::rope_theta, 1, 1e12,
           "gpt: base of rotary positions, of --block llama and nanochat"),
      words("recompute", g, &Config::recompute,
            "gpt and resnets: none, blocks (less memory: backward runs each block again), products "
            "(likewise, and keeps the results of matrix products and convolutions: faster)",
            {"none", "blocks", "products"}),
  };
}

std::vector<Setting> training_settings() {
  const std::string g = "Training";
  return {
      whole("epochs", g, &Config::epochs, 1, "Passes over the training data"),
      whole("steps", g, &Config::steps, 0,
            "Optimizer steps after which training ends; 0: --epochs alone decide"),
      whole("eval-every", g, &Config::eval_every, 1,
            "Running texts and tokens, which have no end: optimizer steps of an epoch"),
      batch_size(g),
      whole("test-batch-size", g, &Config::test_batch_size, 1, "Examples per batch in evaluation"),
      words("optimizer", g, &Config::optimizer,
            "Update rule: " + either(lab::names_of(optimizer_kinds())),
            lab::names_of(optimizer_kinds())),
      words("optimizer-options", g, &Config::optimizer_options,
            "Other options of the update rule, by comma: eps=1e-6,beta2=0.95; rmsprop also alpha "
            "and centered, nadam momentum_decay, nadam and radam decoupled_weight_decay"),
      words("betas", g, &Config::betas,
            "Decay rates of the moments, by comma: 0.9,0.95; empty: those of the update rule"),
      real("lr", g, &Config::lr, 0, kInfinity, "Learning rate; the peak, if the schedule has one"),
      real("min-lr", g, &Config::min_lr, 0, kInfinity,
           "Learning rate at which a linear or cosine schedule ends"),
      real("momentum", g, &Config::momentum, 0, kInfinity, "sgd, rmsprop: momentum"),
      flag("nesterov", g, &Config::nesterov, "sgd: Nesterov's form of momentum"),
      real("weight-decay", g, &Config::weight_decay, 0, kInfinity, "Weight decay"),
      flag("decay-by-rule", g, &Config::decay_by_rule,
           "Exempt biases and normalization layers from weight decay"),
      words("schedule", g, &Config::schedule,
            "Course of the learning rate: " + schedules_with_effects(),
            lab::names_of(schedule_kinds())),
      whole("schedule-epochs", g, &Config::schedule_epochs, 0,
            "Epochs that the schedule is made for; 0: as --epochs"),
      whole("schedule-steps", g, &Config::schedule_steps, 0,
            "Optimizer steps that the schedule is made for, in place of --schedule-epochs; 0: off"),
      real("warmup-epochs", g, &Config::warmup_epochs, 0, static_cast<double>(kMost),
           "Epochs in which the learning rate rises to --lr, before a constant, linear or cosine "
           "schedule"),
      whole("warmup-steps", g, &Config::warmup_steps, 0,
            "Optimizer steps in which it rises, in place of --warmup-epochs; 0: off"),
      words("loss", g, &Config::loss,
            "Loss function: cross-entropy, bce (binary cross entropy with logits) or mse (mean "
            "squared error)",
            {"cross-entropy", "bce", "mse"}),
      real("loss-weight", g, &Config::loss_weight, std::numeric_limits<float>::min(),
           std::numeric_limits<float>::max(),
           "Factor of the loss, as of one term among several; gradients are as many times greater"),
      real("label-smoothing", g, &Config::label_smoothing, 0, 0.999,
           "Cross entropy: share of the target that is spread over all classes"),
      real("clip-norm", g, &Config::clip_norm, 0, kInfinity,
           "Largest L2 norm of all gradients together; 0: no clipping"),
      skip_norm_above(g),
      real("gradient-penalty", g, &Config::gradient_penalty, 0, kInfinity,
           "Weight of the gradients' L2 norm in the loss; 0: no penalty"),
      whole("accumulate", g, &Config::accumulate, 1,
            "Batches for one step, which takes the sum of their gradients divided by this number"),
      whole("tokens-per-step", g, &Config::tokens_per_step, 0,
            "Running texts and tokens: tokens of one step on all ranks, for which batches are "
            "accumulated; 0: those of --accumulate"),
      real("ema", g, &Config::ema, 0, 0.999999,
           "Decay of a moving average of the weights, which is tested and saved in their place; 0: "
           "no average"),
      whole("early-stopping", g, &Config::early_stopping, 0,
            "Epochs without a better test result after which training ends; 0: never"),
      whole("top-k", g, &Config::top_k, 0,
            "Also report the share of test examples whose class is among the k likeliest, with "
            "cross entropy; 0: 5 with more than 10 classes, else off"),
  };
}

std::vector<Setting> precision_settings() {
  const std::string g = "Precision";
  return {
      precision(g),
      loss_scale(g),
      real("init-scale", g, &Config::init_scale, std::numeric_limits<float>::min(),
           std::numeric_limits<float>::max(), "First loss scale"),
      real("growth-factor", g, &Config::growth_factor, 1, kInfinity,
           "Factor by which the loss scale grows after --growth-interval steps without Inf or NaN; "
           "above 1"),
      real("backoff-factor", g, &Config::backoff_factor, 0, 1,
           "Factor by which the loss scale shrinks after an Inf or NaN; between 0 and 1"),
      whole("growth-interval", g, &Config::growth_interval, 1,
            "Steps without Inf or NaN after which the loss scale grows"),
      flag("autocast", g, &Config::autocast,
           "Autocast region; without it a mixed run computes in FP32 but keeps loss scaling"),
      flag("scaler", g, &Config::scaler,
           "Loss scaling; without it a mixed run keeps its autocast region"),
      words("moments", g, &Config::moments,
            "Storage of the update rule's moments: fp32, bf16 or int8 (8 bits in groups of 32), "
            "rounded "
            "by chance; tensors under 4,096 elements and amsgrad's maximum stay in fp32",
            {"fp32", "bf16", "int8"}),
      words(
          "weight-mode", g, &Config::weight_mode,
          "Weights that lie in bf16 (bf16-true, and bf16 but for normalisations; split: fp16, "
          "too), "
          "and what is kept beside them: split: the 16 bits that they lack of FP32, none of which "
          "is lost (fp16: from 2^-16 on); "
          "split24: 8 of these; stochastic: nothing, they are rounded by chance; master: FP32 "
          "numbers, whose rounded copies they are",
          {"master", "split", "split24", "stochastic"}),
      flag("skip", g, &Config::skip,
           "Skip a step whose gradients hold Inf or NaN; without it the step is taken, with a loss "
           "scale or without"),
      words("fp32-part", g, &Config::fp32_part,
            "Parts of the model that run in FP32, by comma (module names: stages.7,classifier)"),
      op_policy(g),
      flag("flush-subnormals", g, &Config::flush_subnormals,
           "Count FP32 numbers below 1.2e-38 as 0 on a CPU: Intel's processors are slow with them"),
  };
}

std::vector<Setting> backend_settings() {
  const std::string g = "Backends";
  return {
      words("cuda-matmul-allow-tf32", g, &Config::cuda_matmul_allow_tf32,
            "CUDA: FP32 matrix products may use TF32: auto (in runs of precision tf32 alone), on "
            "or off",
            {"auto", "on", "off"}),
      words("cudnn-allow-tf32", g, &Config::cudnn_allow_tf32,
            "CUDA: FP32 convolutions and recurrent layers may use TF32: auto (in runs of precision "
            "tf32 alone), on (LibTorch's own default) or off",
            {"auto", "on", "off"}),
      flag("allow-fp16-reduced-precision-reduction", g, &Config::fp16_reduction,
           "Partial sums of fp16 matrix products in fp16, on CUDA"),
      flag("allow-bf16-reduced-precision-reduction", g, &Config::bf16_reduction,
           "Partial sums of bf16 matrix products in bf16, on CUDA"),
      flag("cudnn-enabled", g, &Config::cudnn_enabled,
           "Convolutions and recurrent layers in cuDNN, on CUDA"),
      flag("cudnn-benchmark", g, &Config::cudnn_benchmark,
           "Trials of cuDNN's algorithms for each new shape of a convolution, of which the fastest "
           "is "
           "used, on CUDA; not with --deterministic"),
      flag("deterministic", g, &Config::deterministic,
           "Use only algorithms that give the same bits in every run; an error if an operation has "
           "none"),
      whole("threads", g, &Config::threads, 0,
            "CPU: threads of one operation; 0: LibTorch's choice", 1024),
  };
}

std::vector<Setting> place_settings() {
  const std::string g = "Run";
  return {
      words("device", g, &Config::device, "Device: auto, cpu, cuda or cuda:N"),
      devices(g),
      whole("ranks", g, &Config::ranks, 1,
            "Processes of this machine that train together, each with batches of --batch-size; "
            "torchrun, mpirun and srun say it themselves",
            1024),
      flag("sync-batch-norm", g, &Config::sync_batch_norm,
           "Several ranks: batch normalisation over the batches of all of them; without it over "
           "each "
           "rank's own"),
      flag(
          "shard-optimizer", g, &Config::shard_optimizer,
          "Several ranks: each keeps moments and FP32 masters of its share of the parameters alone "
          "(ZeRO stage 1)"),
      whole("seed", g, &Config::seed, 0,
            "Seed of the initial weights, the data order and the augmentation",
            std::numeric_limits<int64_t>::max()),
      flag("dry-run", g, &Config::dry_run,
           "Two training steps and one test batch; nothing is kept"),
      whole("monitor", g, &Config::monitor, 0,
            "Look at gradients and updates every so many steps, by layer and power of two: "
            "metrics.jsonl, TensorBoard, report; 0: off"),
      flag("detect-anomaly", g, &Config::detect_anomaly,
           "Name the op that makes the first Inf or NaN, forward or backward, by repeating the "
           "step; each step is slower, see docs/reference/monitor.md"),
      what_if(g),
      checkpoint_every(g),
      whole("keep-last", g, &Config::keep_last, 0,
            "Number of checkpoints to keep, besides the best and those of --keep-every; 0: all"),
      keep_every(g),
      whole("keep-best", g, &Config::keep_best, 0,
            "Number of epochs with the best test results whose checkpoints are kept; "
            "checkpoints/best names the first; 0: none"),
      words("best-by", g, &Config::best_by,
            "By what a test result is the best, for --keep-best and --early-stopping: "
            "test_accuracy, test_loss (or validation_loss, the same), or auto: accuracy where "
            "there is one",
            {"auto", "test_accuracy", "test_loss", "validation_loss"}),
      stop_after(g),
      words("from", g, &Config::from,
            "Start at step 0 from saved weights: of a run's folder (its last checkpoint), a "
            "checkpoint (RUN/checkpoints/best), a safetensors file or a folder of Hugging Face's"),
      flag("from-state", g, &Config::from_state,
           "With --from: the optimizer's moments too, by the parameters' names; the optimizer has "
           "to be of the same rule"),
      flag("from-average", g, &Config::from_average,
           "With --from: the moving average of a run with --ema in place of its weights"),
      words("resume", g, &Config::resume,
            "Go on with a run: its folder; a checkpoint, from which a new run begins; or auto: the "
            "newest unfinished run of this command and recipe, and a new one if there is none"),
  };
}

}  // namespace

std::span<const Setting> all_settings() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> table;
    for (auto part : {data_settings(), training_settings(), precision_settings(),
                      backend_settings(), place_settings()})
      table.insert(table.end(), part.begin(), part.end());
    return table;
  }();
  return all;
}

void set(Config& config, std::string_view name, std::string_view text, std::string_view source) {
  for (const Setting& setting : all_settings())
    if (setting.name == name) return setting.set(config, text, source);
  throw UsageError({.where = source,
                    .what = "no such setting",
                    .seen = name,
                    .advice = did_you_mean_setting(name)});
}

}  // namespace demi::settings
