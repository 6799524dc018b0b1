#include "demi/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/prepared_state.h"
#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/optim/adam.h"
#include "demi/optim/export_fp32.h"
#include "demi/optim/optimizer.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/module_tensors.h"
#include "demi/train/bf16_agreement.h"
#include "demi/train/fit.h"
#include "demi/train/fit_state.h"
#include "demi/train/forward.h"
#include "demi/train/setup.h"

namespace demi::train {
namespace {

constexpr auto kTrainer = "train.Trainer";

void require(bool good, std::string_view what, const std::string& seen, std::string_view accepted,
             std::string_view advice = "") {
  if (!good)
    throw UsageError(
        {.where = kTrainer, .what = what, .seen = seen, .accepted = accepted, .advice = advice});
}

void check_epochs(int64_t epochs) {
  require(epochs >= 0, "epochs is negative", std::to_string(epochs), "0 or more");
}

void check(const TrainerOptions& options) {
  check_epochs(options.epochs);
  require(options.accumulate >= 1, "accumulate is below 1", std::to_string(options.accumulate),
          "1 or more batches");
  require(options.clip_norm >= 0, "clip_norm is negative", std::to_string(options.clip_norm),
          "0 (off) or more");
  require(options.read_every >= 1, "read_every is below 1", std::to_string(options.read_every),
          "1 or more steps");
  require(options.max_steps >= 0, "max_steps is negative", std::to_string(options.max_steps),
          "0 (by epochs) or more steps");
  require(options.gradient_penalty >= 0 && std::isfinite(options.gradient_penalty),
          "gradient_penalty is out of range", std::to_string(options.gradient_penalty),
          "0 (off) or more, finite");
  require(options.give_up_after >= 0, "give_up_after is negative",
          std::to_string(options.give_up_after), "0 (never) or more steps");
  require(options.ema_decay >= 0 && options.ema_decay < 1, "ema_decay is out of range",
          std::to_string(options.ema_decay), "0 (off) up to, but not including, 1");
  require(options.early_stopping >= 0, "early_stopping is negative",
          std::to_string(options.early_stopping), "0 (never) or more epochs");
  require(options.history_steps >= 0, "history_steps is negative",
          std::to_string(options.history_steps), "0 (all) or more");
  require(options.best_by != BestBy::accuracy || options.loss.has_accuracy(),
          "best_by is accuracy, which this loss has none of", "BestBy::accuracy",
          "BestBy::automatic or BestBy::loss");
  require(options.label_smoothing >= 0 && options.label_smoothing < 1,
          "label_smoothing is out of range", std::to_string(options.label_smoothing),
          "0 up to, but not including, 1");
  require(options.label_smoothing == 0 || (options.loss.takes_label_smoothing() && !options.losses),
          "label_smoothing has no effect with this loss", std::to_string(options.label_smoothing),
          "0, or Loss::cross_entropy",
          "smooth the targets of another loss by hand: cross_entropy takes probabilities, too");
  const bool several = options.group && options.group->world_size() > 1;
  require(!several || options.gradient_penalty == 0,
          "a gradient penalty is of one rank's batch, not of all", "several ranks",
          "gradient_penalty = 0, or one rank");
  options.backends.check();
}

void check_checkpoints(const CheckpointOptions& options) {
  const Every& every = options.every;
  require(
      every.steps >= 0 && every.epochs >= 0 && every.minutes >= 0 && std::isfinite(every.minutes),
      "checkpoints.every is out of range",
      c10::str(every.steps, " steps, ", every.epochs, " epochs, ", every.minutes, " minutes"),
      "0 (never) or more of each");
  require(options.keep_last >= 0, "checkpoints.keep_last is negative",
          std::to_string(options.keep_last), "0 (all) or more");
  require(options.history_steps >= 0, "checkpoints.history_steps is negative",
          std::to_string(options.history_steps), "0 (all) or more");
  require(options.best_count >= 1, "checkpoints.best_count is below 1",
          std::to_string(options.best_count), "1 or more; keep_best false keeps none");
  const Every& keep = options.keep_every;
  require(keep.steps >= 0 && keep.epochs >= 0 && keep.minutes == 0,
          "checkpoints.keep_every is out of range",
          c10::str(keep.steps, " steps, ", keep.epochs, " epochs, ", keep.minutes, " minutes"),
          "0 (never) or more steps or epochs");
  require(options.retry_seconds >= 0 && std::isfinite(options.retry_seconds),
          "checkpoints.retry_seconds is out of range", c10::str(options.retry_seconds),
          "0 (a failed save ends training) or more");
}

void check_metrics(const std::vector<Metric>& metrics) {
  std::set<std::string> names;
  for (const Metric& metric : metrics) {
    require(metric.sum != nullptr, "a metric has no function", metric.name,
            "a function that sums it over a batch");
    require(names.insert(metric.name).second, "two metrics have one name", metric.name,
            "a name of its own for each");
  }
}

void check_optimizers(const TrainerOptions& options) {
  for (const auto& optimizer : options.optimizers) {
    require(optimizer != nullptr, "an optimizer is null", "a null pointer", "an optimizer");
    const auto& groups = optimizer->param_groups();
    const bool has_parameters = std::any_of(
        groups.begin(), groups.end(), [](const auto& group) { return !group.params().empty(); });
    require(has_parameters, "an optimizer has no parameters",
            std::to_string(groups.size()) + " parameter groups", "one parameter or more");
  }
}

/// The parameters that an optimizer of demi trains as FP32 in its own way (WeightMode).
std::unordered_set<const at::TensorImpl*> coded_weights(const TrainerOptions& options) {
  std::unordered_set<const at::TensorImpl*> all;
  for (const auto& optimizer : options.optimizers) {
    auto* own = dynamic_cast<optim::Optimizer*>(optimizer.get());
    if (!own || own->weight_mode() == optim::WeightMode::master) continue;
    for (const auto& group : own->param_groups())
      for (const at::Tensor& parameter : group.params())
        all.insert(parameter.unsafeGetTensorImpl());
  }
  return all;
}

// Refuses trained weights of another format, which a region or FP32 arithmetic would accept
// silently.
void check_weights(const torch::nn::Module& module, const Precision& precision,
                   const TrainerOptions& options) {
  const auto coded = coded_weights(options);
  const c10::Device device = options.device;
  const auto all = tensor::parameters_once(module);
  if (device.is_cuda() && device.has_index() && !all.empty())
    require(
        std::ranges::any_of(all, [&](const auto& one) { return one.tensor.device() == device; }),
        "no part of the model is on the device of its batches",
        c10::str(all.front().name, " on ", all.front().tensor.device()), device.str(),
        "move it there before: model->to(device)");
  for (const auto& [name, parameter] : all) {
    require(parameter.device().type() == device.type(), "the model is not on the device",
            c10::str(name, " on ", parameter.device()), device.str(),
            "move it there before: model->to(device)");
    if (!parameter.requires_grad() || !parameter.is_floating_point()) continue;
    const bool is_coded = parameter.scalar_type() == precision.autocast &&
                          coded.contains(parameter.unsafeGetTensorImpl());
    require(is_coded || parameter.scalar_type() == precision.weights,
            c10::str("weights that are trained in ", precision.name, " have another format"),
            c10::str(name, " of ", tensor::name_of(parameter.scalar_type())),
            tensor::name_of(precision.weights),
            "convert the model by demi::to_precision(model, dtype), or train in fp16-true, "
            "bf16-true or fp64, which do");
  }
}

// Contradictions: the loss scale asked for, and a rule that says otherwise.
void check_scaling(const TrainerOptions& options) {
  using Kind = LossScale::Kind;
  const Kind kind = options.loss_scale.kind;
  const ScaleMode mode = options.scaler.mode;
  const bool asks_for_scaling = kind != Kind::automatic && kind != Kind::off;
  require(options.scaler.enabled || !asks_for_scaling,
          "the loss scale is asked for, and the scaler is off", "scaler.enabled false",
          "scaler.enabled true, or loss_scale off");
  const bool fits = kind == Kind::automatic || kind == Kind::off || mode == ScaleMode::kDynamic ||
                    (kind == Kind::statistics && mode == ScaleMode::kAmax) ||
                    (kind == Kind::fixed && mode == ScaleMode::kStatic);
  require(fits, "scaler.mode and loss_scale contradict each other",
          mode == ScaleMode::kStatic ? "scaler.mode kStatic" : "scaler.mode kAmax",
          "loss_scale automatic, which leaves the mode to the scaler, or the default mode");
}

GradScalerOptions scaler_options(const TrainerOptions& options, const Precision& precision) {
  GradScalerOptions result = options.scaler;
  const LossScale::Kind kind = options.loss_scale.kind;
  result.enabled &= kind == LossScale::Kind::automatic ? precision.autocast == c10::kHalf
                                                       : kind != LossScale::Kind::off;
  if (kind == LossScale::Kind::statistics) result.mode = ScaleMode::kAmax;
  if (kind == LossScale::Kind::fixed) {
    result.mode = ScaleMode::kStatic;
    result.init_scale = options.loss_scale.value;
  }
  return result;
}

// The schedules of the checkpoint, with the rates of that moment. One that the run did not have
// before begins at the run's step.
void check_schedules(const checkpoint::Numbers& from, int64_t step, const TrainerOptions& options) {
  if (!options.schedule && !options.momentum_schedule) return;
  for (std::size_t i = 0; i < options.optimizers.size(); ++i) {
    const auto& groups = options.optimizers[i]->param_groups();
    StateDict state{{"last_epoch", static_cast<double>(step)}};
    for (std::size_t g = 0; g < groups.size(); ++g)
      state["base_lrs." + std::to_string(g)] = groups[g].options().get_lr();
    const auto saved = from.find(checkpoint::part_name("schedule", i));
    optim::lr::Scheduler::check_state_dict(saved == from.end() ? state : saved->second,
                                           groups.size(), options.schedule,
                                           options.momentum_schedule);
  }
}

// Those that the checkpoint does not hold, and the rates of that step.
void begin_schedules(const checkpoint::Numbers& from, int64_t step, const Setup& setup) {
  for (std::size_t i = 0; i < setup.schedules.size(); ++i) {
    if (from.contains(checkpoint::part_name("schedule", i))) continue;
    StateDict state = setup.schedules[i]->state_dict();
    state["last_epoch"] = static_cast<double>(step);
    setup.schedules[i]->load_state_dict(state);
  }
}

}  // namespace

int64_t steps_of(int64_t batches, int64_t accumulate) {
  return batches == 0 ? 0 : (batches - 1) / accumulate + 1;
}

Trainer::Trainer(Network network, TrainerOptions options) {
  train::check(network, kTrainer, /*needs_forward=*/!options.losses);
  const Precision precision = options.precision.value_or(global_precision());
  const GradScalerOptions scaling = scaler_options(options, precision);
  check(options);
  check_checkpoints(options.checkpoints);
  check_metrics(options.metrics);
  check_optimizers(options);
  check_scaling(options);
  demi::check(scaling);
  check_device(options.device);
  setup_ = std::make_unique<Setup>(Setup{.network = std::move(network),
                                         .options = std::move(options),
                                         .precision = precision,
                                         .scaler = GradScaler(scaling),
                                         .average = std::nullopt,
                                         .schedules = {},
                                         .watchers = {}});
  torch::nn::Module& module = *setup_->network.module;
  TrainerOptions& held = setup_->options;
  if (!precision.is_mixed() && precision.weights != c10::kFloat)
    to_precision(module, precision.weights, /*keep_normalisation_fp32=*/false);
  check_weights(module, precision, held);
  if (!held.autocast) setup_->precision.autocast.reset();
  const bool several = held.group && held.group->world_size() > 1;
  require(!(several && held.distributed.uneven_batches &&
            distributed::has_synchronised_batch_norm(module)),
          "uneven batches do not go with a synchronised batch normalisation",
          "DistributedOptions::uneven_batches",
          "one of the two: a rank without a batch takes part in no forward");
  setup_->ranks = Ranks(module, held.group, held.distributed, parameters_elsewhere(module, held));
  if (held.optimizers.empty()) {
    auto parameters = tensor::without_names(tensor::parameters_once(module));
    require(!parameters.empty(), "the model has no parameters", "none",
            "a model with parameters, or optimizers of your own");
    held.optimizers.push_back(
        std::make_shared<optim::Adam>(std::move(parameters), optim::AdamOptions(1e-3)));
  }
  setup_->ranks.require_same(
      "whether they share the optimizer's state",
      held.shard_optimizer ? "shard_optimizer true" : "shard_optimizer false");
  if (held.shard_optimizer) setup_->shard_optimizers();
  if (held.ema_decay > 0) {
    for (const auto& [name, parameter] : tensor::parameters_once(module))
      require(setup_->shards.empty() || !tensor::is_16_bit(parameter.scalar_type()),
              "the average is of what weights are trained as, which one rank has of each",
              c10::str("ema_decay, shard_optimizer, and ", name, " of ",
                       tensor::name_of(parameter.scalar_type())),
              "FP32 weights, or one of the two options");
    setup_->average.emplace(module, held.ema_decay);
  }
}

Trainer::Trainer(Network network, std::shared_ptr<torch::optim::Optimizer> optimizer,
                 TrainerOptions options)
    : Trainer(std::move(network), [&] {
        options.optimizers = {std::move(optimizer)};
        return std::move(options);
      }()) {}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

const Precision& Trainer::precision() const { return setup_->precision; }
loop::GraphCounts Trainer::graph_counts() const { return setup_->graphs; }

void Trainer::add(std::shared_ptr<StepObserver> observer) {
  require(observer != nullptr, "a callback is null", "a null pointer", "a callback");
  auto* callback = dynamic_cast<Callback*>(observer.get());
  setup_->watchers.push_back({std::move(observer), callback});
}

void Trainer::swap_average() {
  if (setup_->average) setup_->average->swap();
}

namespace {

bool has_16_bits(const at::Tensor& tensor) { return tensor::is_16_bit(tensor.scalar_type()); }

/// Sends the weight of the rank that has it to all. A weight that was never updated is on no rank.
void share_weights(std::map<std::string, at::Tensor>& weights, const Ranks& ranks) {
  std::vector<double> is_here;
  for (const auto& [name, weight] : weights) is_here.push_back(has_16_bits(weight) ? 0 : 1);
  const std::vector<double> have = ranks.totals(is_here);
  std::size_t next = 0;
  for (auto& [name, weight] : weights) {
    const std::size_t i = next++;
    if (have[i] == 0 || have[i] == ranks.group()->world_size()) continue;
    at::Tensor sum = is_here[i] != 0 ? weight.clone() : at::zeros_like(weight, at::kFloat);
    ranks.group()->all_reduce(sum);
    weight = sum;
  }
}

}  // namespace

std::map<std::string, at::Tensor> Trainer::trained_weights() const {
  const at::NoGradGuard no_grad;
  if (setup_->average) return setup_->average->averages();
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, parameter] : tensor::parameters_once(*setup_->network.module)) {
    at::Tensor weight;
    for (const auto& optimizer : setup_->options.optimizers)
      if (has_16_bits(parameter) && !weight.defined())
        weight = optim::fp32_weight(*optimizer, parameter);
    all[name] = weight.defined() ? weight : parameter.detach();
  }
  if (!setup_->shards.empty()) share_weights(all, setup_->ranks);
  return all;
}

void Trainer::resume(const std::filesystem::path& path) {
  checkpoint::Checkpoint mapped = checkpoint::map(path);
  take_from(mapped);
}

void Trainer::resume(const checkpoint::Checkpoint& from) {
  if (!setup_->shards.empty()) {
    const bool has_state = setup_->ranks.totals({from.model.empty() ? 1.0 : 0.0}).front() == 0;
    require(has_state, "the ranks share the optimizer's state, and rank 0 alone has all of it",
            "a checkpoint of Parts::checkpoint()", "a saved one: resume(path)");
  }
  checkpoint::Checkpoint same_tensors = from;
  take_from(same_tensors);
}

void Trainer::take_from(checkpoint::Checkpoint& from) {
  Setup& setup = *setup_;
  auto resume_point = std::make_unique<ResumePoint>(read_resume_point(from, setup));
  const int64_t step = resume_point->progress.step;
  check_schedules(from.numbers, step, setup.options);
  loop::Job job = setup.job();
  job.schedules.clear();  // they are made below, once everything is known to fit
  const checkpoint::PreparedState prepared = checkpoint::prepare(from, job);
  setup.make_schedules();
  checkpoint::load_schedules(from.numbers, setup.job(), prepared.keeps_options);
  prepared.objects();
  begin_schedules(from.numbers, step, setup);
  setup.average_is_begun = true;
  resume_point->random = prepared.random;
  warn_if_resumed_otherwise(from.text, setup);
  resume_point_ = std::move(resume_point);
}

History Trainer::fit(const data::Loader& training, const data::Loader* validation) {
  return fit_epochs(training, validation, setup_->options.epochs);
}

History Trainer::fit_epochs(const data::Loader& training, const data::Loader* validation,
                            int64_t epochs) {
  history_ = {};
  Parts parts(*this, training, validation, epochs);
  try {
    parts.advance(std::numeric_limits<int64_t>::max());
  } catch (...) {
    history_ = parts.history();
    throw;
  }
  history_ = parts.history();
  return history_;
}

Trainer::Parts::Parts(Trainer& trainer, const data::Loader& training,
                      const data::Loader* validation)
    : Parts(trainer, training, validation, trainer.setup_->options.epochs) {}

Trainer::Parts::Parts(Trainer& trainer, const data::Loader& training,
                      const data::Loader* validation, int64_t epochs) {
  check_epochs(epochs);
  Setup& setup = *trainer.setup_;
  setup.require_weights_in_place();
  std::optional<ResumePoint> resume_point;
  if (trainer.resume_point_) {
    resume_point = *trainer.resume_point_;
  } else {
    setup.make_schedules();
    setup.begin_average();
    setup.scaler.load_state_dict(setup.scaler.state_dict());  // drops what an exception left behind
  }
  fit_ = std::make_unique<Fit>(setup, training, validation, epochs, std::move(resume_point));
  trainer.resume_point_.reset();
}

Trainer::Parts::~Parts() = default;

const History& Trainer::Parts::history() const { return fit_->history(); }

void Trainer::Parts::add_earlier(std::vector<StepMetrics> steps) {
  fit_->add_earlier(std::move(steps));
}

checkpoint::Checkpoint Trainer::Parts::checkpoint() { return fit_->checkpoint(); }

bool Trainer::Parts::advance(int64_t steps) {
  require(steps >= 1, "steps of a part are below 1", std::to_string(steps), "1 or more");
  return fit_->advance(steps);
}

History Trainer::fit(const at::Tensor& x, const at::Tensor& y, const FitOptions& fit) {
  const TensorPair& held_out = fit.validation;
  require(x.defined() && y.defined(), "the training data are not given",
          x.defined()   ? "x alone"
          : y.defined() ? "y alone"
                        : "neither x nor y",
          "x and y");
  require(held_out.x.defined() == held_out.y.defined(), "half of the validation is given",
          held_out.x.defined() ? "x alone" : "y alone", "x and y, or neither");
  const c10::Device device = setup_->options.device;
  const auto loader = [&](const TensorPair& rows, data::OrderOptions order) {
    if (const distributed::ProcessGroup* group = setup_->ranks.group()) {
      order.rank = group->rank();
      order.world_size = group->world_size();
    }
    return data::TensorLoader(rows.x.to(device), rows.y.to(device), order);
  };
  setup_->ranks.require_same(
      "the order of the data",
      c10::str("batch_size ", fit.batch_size, "\nshuffle ", fit.shuffle, "\nseed ", fit.seed));
  const data::TensorLoader training =
      loader({x, y}, {.batch_size = fit.batch_size, .shuffle = fit.shuffle, .seed = fit.seed});
  if (!fit.validation.x.defined()) return fit_epochs(training, nullptr, fit.epochs);
  const data::TensorLoader validation =
      loader(fit.validation, {.batch_size = fit.batch_size, .keep_all = true});
  return fit_epochs(training, &validation, fit.epochs);
}

}  // namespace demi::train
