#include "demi/train/fit_state.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/prepared_state.h"
#include "demi/core/error.h"
#include "demi/core/version.h"
#include "demi/tensor/module_tensors.h"
#include "demi/train/bf16_agreement.h"

namespace demi::train {
namespace {

constexpr std::string_view kGradient = "gradient/";
constexpr auto kRankSeed = "ranks/seed";

// A sparse gradient is saved as its two parts.
constexpr std::string_view kIndices = "gradient.indices/", kValues = "gradient.values/";
constexpr std::string_view kWindow = "window/", kStatistics = "statistics/";

// The parameters by their names in a checkpoint.
std::map<std::string, at::Tensor> parameters_of(const Setup& setup) {
  std::map<std::string, at::Tensor> all;
  for (auto& [name, parameter] : tensor::parameters_once(*setup.network.module))
    all[name] = parameter;
  const auto more = parameters_elsewhere(*setup.network.module, setup.options);
  for (std::size_t i = 0; i < more.size(); ++i) all["more/" + std::to_string(i)] = more[i];
  return all;
}

void write_gradients(const Setup& setup, checkpoint::NamedTensors& to) {
  for (const auto& [name, parameter] : parameters_of(setup)) {
    const at::Tensor gradient =
        parameter.grad().defined() ? parameter.grad().detach() : at::Tensor();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {
      to[std::string(kIndices) + name] = gradient._indices();
      to[std::string(kValues) + name] = gradient._values();
    } else {
      to[std::string(kGradient) + name] = gradient;
    }
  }
}

[[noreturn]] void refuse_gradient(const std::string& name, const at::Tensor& saved) {
  throw UsageError({.where = "train.Trainer.resume",
                    .what = "a gradient in the checkpoint is that of another model",
                    .seen = c10::str(name, " ", saved.sizes()),
                    .accepted = "names and shapes of this module's parameters"});
}

// Sums over a sparse one keep their order, too: it is not coalesced.
at::Tensor sparse_gradient(const std::string& name, const at::Tensor& parameter,
                           const at::Tensor& indices, const at::Tensor& values) {
  const bool fits = indices.dim() == 2 && indices.scalar_type() == at::kLong && values.dim() >= 1 &&
                    values.is_floating_point() && values.size(0) == indices.size(1) &&
                    indices.size(0) + values.dim() - 1 == parameter.dim();
  if (!fits) refuse_gradient(name, values);
  const c10::Device device = parameter.device();
  return at::sparse_coo_tensor(indices.to(device), values.to(device, /*non_blocking=*/false, true),
                               parameter.sizes());
}

// Copies the gradient to the parameter's layout, in which backward makes gradients: sums over them
// keep their order.
at::Tensor gradient_like(const at::Tensor& parameter, const at::Tensor& value) {
  return at::empty_like(parameter,
                        parameter.options().dtype(value.scalar_type()).requires_grad(false))
      .copy_(value);
}

// The options; of several ranks, those other than the first save nothing.
CheckpointOptions checkpoints_of(const Setup& setup) {
  return setup.ranks.is_first() ? setup.options.checkpoints : CheckpointOptions();
}

}  // namespace

ResumePoint read_resume_point(checkpoint::Checkpoint& from, Setup& setup) {
  ResumePoint resume_point{
      .progress = read_progress(from), .gradients = {}, .rank_seed = {}, .random = {}};
  if (const auto seed = from.state.extract(kRankSeed); !seed.empty())
    resume_point.rank_seed = std::bit_cast<std::uint64_t>(seed.mapped().item<std::int64_t>());
  const auto parameters = parameters_of(setup);
  const at::NoGradGuard no_grad;
  for (auto& [name, saved] : checkpoint::take_part(from.state, kStatistics))
    resume_point.statistics[name] = saved.clone();
  for (auto& [name, saved] : checkpoint::take_part(from.state, kGradient)) {
    const auto parameter = parameters.find(name);
    if (parameter == parameters.end() || parameter->second.sizes() != saved.sizes() ||
        !saved.is_floating_point())
      refuse_gradient(name, saved);
    resume_point.gradients[name] = gradient_like(parameter->second, std::exchange(saved, {}));
  }
  checkpoint::NamedTensors values = checkpoint::take_part(from.state, kValues);
  for (const auto& [name, indices] : checkpoint::take_part(from.state, kIndices)) {
    const auto parameter = parameters.find(name);
    if (parameter == parameters.end() || !values.contains(name)) refuse_gradient(name, indices);
    resume_point.gradients[name] =
        sparse_gradient(name, parameter->second, indices, values.at(name));
  }
  return resume_point;
}

void set_gradients(const ResumePoint& resume_point, const Setup& setup) {
  for (auto& [name, parameter] : parameters_of(setup)) {
    const auto saved = resume_point.gradients.find(name);
    if (saved != resume_point.gradients.end()) parameter.mutable_grad() = saved->second;
  }
}

FitState::FitState(Setup& setup, const Progress& progress, std::function<void()> count_seconds)
    : setup_(setup),
      options_(setup.options),
      progress_(progress),
      count_seconds_(std::move(count_seconds)),
      plan_(checkpoints_of(setup), setup.options.should_save) {}

void FitState::begin_step() {
  if (is_on()) step_random_ = checkpoint::random_states();
}

void FitState::has_changed() {
  if (!kept_) is_saved_ = false;
}

bool FitState::asks_to_save() {
  return setup_.ranks.are_several() && plan_.is_due_after_batch(progress_.step + 1, true);
}

// Several ranks know it from agree_to_save(). Within a step each has gradients of its own.
bool FitState::is_due_after_batch(bool step_done, bool epoch_done) {
  bool due = false;
  if (setup_.ranks.are_several())
    due = step_done && std::exchange(save_is_agreed_, false) &&
          (setup_.ranks.is_first() || !setup_.shards.empty());
  else
    due = plan_.is_due_after_batch(progress_.step, step_done);
  is_due_ = due && epoch_done;
  return due && !epoch_done;
}

FitState::Due FitState::due_after_epoch(std::int64_t epoch, bool is_best) {
  const bool best_due = is_on() && plan_.keeps_best() && is_best;
  const bool by_step = std::exchange(is_due_, false);
  const bool last_due =
      !kept_ && (by_step || plan_.is_due_after_epoch(epoch) || (is_on() && is_among_best()));
  const Due due = best_due ? Due::kBest : last_due ? Due::kLast : Due::kNo;
  return static_cast<Due>(of_saving_rank(static_cast<std::int64_t>(due)));
}

// A write of the thread may fail after the last step that could have reported it.
void FitState::settle() { is_saved_ = plan_.is_written() && is_saved_; }

bool FitState::is_due_at_end() {
  settle();
  const History& history = progress_.history;
  const bool due = is_on() && !is_saved_ && !history.failed && !history.steps.empty();
  return of_saving_rank(due ? 1 : 0) != 0;
}

// Rank 0's answer on saving, if all ranks have to take part in it.
std::int64_t FitState::of_saving_rank(std::int64_t number) const {
  if (setup_.shards.empty()) return number;
  return static_cast<std::int64_t>(setup_.ranks.of_first(static_cast<std::uint64_t>(number)));
}

checkpoint::Checkpoint FitState::checkpoint() { return kept_ ? *kept_ : captured(); }

checkpoint::Checkpoint FitState::captured() {
  count_seconds_();
  for (const auto& shards : setup_.shards) shards->consolidate();
  if (!setup_.shards.empty() && !setup_.ranks.is_first()) return {};
  checkpoint::Checkpoint state = checkpoint::capture_within_step(setup_.job());
  for (const auto& shards : setup_.shards) shards->release();  // `state` holds it
  if (progress_.window.is_open()) {
    write_gradients(setup_, state.state);
    if (step_)
      for (const auto& [name, kept] : step_->statistics())
        state.state[std::string(kStatistics) + name] = kept;
  }
  write(progress_, state, options_.checkpoints.history_steps);
  if (setup_.ranks.are_several())
    state.state[kRankSeed] = at::full({1}, std::bit_cast<std::int64_t>(rank_seed_), at::kLong);
  add_texts(state.text);
  state.model_text = options_.checkpoints.model_text;
  return state;
}

void FitState::add_texts(checkpoint::Metadata& text) const {
  const History& history = progress_.history;
  text["demi.precision"] = setup_.precision.name;
  if (std::string way = bf16_way_of(setup_); !way.empty()) text[kBf16ProductsText] = std::move(way);
  if (std::string products = matrix_products_of(setup_); !products.empty())
    text[kMatrixProductsText] = std::move(products);
  text["demi.epoch"] = std::to_string(progress_.epochs_begun);
  text["demi.step"] = std::to_string(progress_.step);
  text["demi.libtorch"] = TORCH_VERSION;
  text["demi.version"] = version();
  const auto add_accuracy = [&](const char* name, const Evaluation& evaluation) {
    if (evaluation.accuracy) text[name] = fmt::format("{}", *evaluation.accuracy);
  };
  for (const EpochRecord& epoch : history.epochs)
    if (epoch.validation) add_accuracy("demi.test_accuracy", *epoch.validation);
  if (const Evaluation* best = progress_.best()) add_accuracy("demi.best_accuracy", *best);
  for (const auto& [name, words] : options_.checkpoints.text) text[name] = words;
}

// Whether the last epoch is one of those with the best validations.
bool FitState::is_among_best() const {
  const std::vector<EpochRecord>& epochs = progress_.history.epochs;
  if (!plan_.keeps_best() || epochs.empty() || !epochs.back().validation) return false;
  const Evaluation& last = *epochs.back().validation;
  const auto as_good = std::count_if(epochs.begin(), epochs.end() - 1, [&](const EpochRecord& one) {
    return one.validation && !last.better_than(*one.validation, options_.best_by);
  });
  return !std::isnan(last.loss) && as_good < options_.checkpoints.best_count;
}

// Options for the state between two batches that `progress_` describes.
checkpoint::SaveOptions FitState::how_to_save(bool is_best) const {
  const Every& keep = options_.checkpoints.keep_every;
  const std::vector<EpochRecord>& epochs = progress_.history.epochs;
  checkpoint::SaveOptions how{.is_best = is_best};
  how.keep = keep.steps > 0 && progress_.step % keep.steps == 0 && !progress_.window.is_open();
  if (!progress_.in_epoch && !kept_ && !epochs.empty()) {
    how.keep |= keep.epochs > 0 && epochs.back().epoch % keep.epochs == 0;
    if (const auto& validation = epochs.back().validation) {
      how.scores["loss"] = validation->loss;
      if (validation->accuracy) how.scores["accuracy"] = *validation->accuracy;
    }
  }
  const bool by_loss = options_.best_by == BestBy::loss || !options_.loss.has_accuracy();
  if (plan_.keeps_best())
    how.keep_best = {options_.checkpoints.best_count, by_loss ? "loss" : "accuracy", by_loss};
  return how;
}

// Saves the state that was kept if the run ended within an epoch, also after a first try has
// failed.
void FitState::save(bool is_best) {
  const checkpoint::Checkpoint state = checkpoint();
  is_saved_ = !is_on() || plan_.save(progress_.step, state, how_to_save(is_best));
}

void FitState::keep_open_epoch() {
  kept_ = captured();
  const bool due = is_on() && !is_saved_ && !progress_.history.failed;
  if (due) is_saved_ = plan_.save(progress_.step, *kept_, how_to_save(/*is_best=*/false));
}

void FitState::save_after_exception(Stage stage) {
  if (!setup_.shards.empty()) return finish();
  if (!is_on()) return;
  try {
    settle();
  } catch (const TrainingError&) {  // the first failure ends training; this is its end
    is_saved_ = false;
  }
  if (is_saved_ || progress_.step == 0 || stage == Stage::kInUpdate) return finish();
  checkpoint::Checkpoint state = captured();
  // Between the batches of a step, gradients are those of this rank alone.
  const bool is_open = setup_.ranks.are_several() && progress_.window.is_open();
  if (stage == Stage::kInBatch || is_open) {
    Progress start = progress_;
    start.position -= start.position % options_.accumulate;
    start.window = {};
    std::erase_if(state.state, [](const auto& item) {
      for (const std::string_view part : {kGradient, kIndices, kValues, kStatistics, kWindow})
        if (item.first.starts_with(part)) return true;
      return false;
    });
    write(start, state, options_.checkpoints.history_steps);
    for (const auto& [name, value] : step_random_) state.state[name] = value;
  }
  plan_.save(progress_.step, state, how_to_save(/*is_best=*/false));
  finish();
}

std::string FitState::last_checkpoint() const {
  const std::filesystem::path& folder = options_.checkpoints.folder;
  if (!setup_.ranks.are_several() || folder.empty()) return {};
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      const std::filesystem::path last = checkpoint::find(folder);
      const std::int64_t step = checkpoint::read_manifest(last).step;
      const char* newer =
          setup_.ranks.is_first() ? "" : ", unless rank 0 saves another one as it ends";
      return fmt::format("the last checkpoint is that of step {}, {}{}", step, last.string(),
                         newer);
    } catch (const DataError&) {  // NOLINT(bugprone-empty-catch): none, or rank 0 removes it now
    }
  }
  return "no checkpoint has been saved yet";
}

}  // namespace demi::train
