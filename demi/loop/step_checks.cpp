#include "demi/loop/step_checks.h"

#include <torch/types.h>

#include <cmath>
#include <string>
#include <unordered_set>

#include "demi/core/error.h"
#include "demi/loop/job_schedules.h"

namespace demi::loop {
namespace {

template <class Number>
void require_range(bool accepted, const char* what, Number seen, const char* range) {
  require(accepted,
          {.where = kStep, .what = what, .seen = std::to_string(seen), .accepted = range});
}

}  // namespace

void check(const Options& options) {
  require_range(options.accumulate >= 1, "accumulate is below 1", options.accumulate,
                "1 or more batches");
  require_range(options.clip_norm >= 0, "clip_norm is negative", options.clip_norm,
                "0 (off) or more");
  require_range(options.clip_value >= 0, "clip_value is negative", options.clip_value,
                "0 (off) or more");
  require_range(options.read_every >= 0, "read_every is negative", options.read_every,
                "0 (never) or more steps");
  require_range(options.steps_taken >= 0, "steps_taken is negative", options.steps_taken,
                "0 or more steps");
}

void check(const Job& job) {
  require(
      !job.optimizers.empty(),
      {.where = kStep, .what = "there is no optimizer", .seen = "none", .accepted = "one or more"});
  require(job.parallel.empty() || job.parallel.size() == job.models.size(),
          {.where = kStep,
           .what = "there are more or fewer DistributedDataParallels than models",
           .seen = c10::str(job.parallel.size(), " for ", job.models.size(), " models"),
           .accepted = "one for each model, in the models' order, or none"});
  std::unordered_set<const at::TensorImpl*> known;
  for (const NamedModel& model : job.models)
    for (const at::Tensor& one : model.module->parameters())
      known.insert(one.unsafeGetTensorImpl());
  for (const at::Tensor& one : job.more) known.insert(one.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < job.optimizers.size(); ++i) {
    const std::string name = c10::str("optimizer ", i);
    require(
        job.optimizers[i],
        {.where = kStep, .what = "an optimizer is null", .seen = name, .accepted = "an optimizer"});
    for (const auto& group : job.optimizers[i]->param_groups())
      for (const at::Tensor& one : group.params())
        if (!known.contains(one.unsafeGetTensorImpl()))
          refuse({.where = kStep,
                  .what = "a parameter of an optimizer is of no model",
                  .seen = c10::str(name, ", shape ", one.sizes()),
                  .accepted = "parameters of Job::models, or tensors of Job::more",
                  .advice = "name the model that it belongs to in Job::models"});
  }
  schedules_of(job, kStep);
}

void check_losses(const std::vector<at::Tensor>& losses) {
  constexpr auto kAdvice = "see what the loss function returns";
  require(!losses.empty(), {.where = kStep,
                            .what = "the batch has no loss",
                            .seen = "an empty vector",
                            .accepted = "one loss or more",
                            .advice = kAdvice});
  for (const at::Tensor& loss : losses) {
    require(loss.defined(), {.where = kStep,
                             .what = "a loss is undefined",
                             .seen = "an undefined tensor",
                             .accepted = "a scalar tensor",
                             .advice = kAdvice});
    if (loss.numel() != 1 || !loss.is_floating_point())
      refuse({.where = kStep,
              .what = "a loss is not one floating point number",
              .seen = c10::str(loss.sizes(), " ", c10::toString(loss.scalar_type())),
              .accepted = "the mean over the batch, a scalar tensor",
              .advice = kAdvice});
    require(loss.requires_grad(), {.where = kStep,
                                   .what = "a loss depends on nothing that is trained",
                                   .seen = "a tensor without gradient",
                                   .accepted = "a function of parameters that require a gradient",
                                   .advice = kAdvice});
  }
}

void check_weight(double weight) {
  if (!(weight >= 0) || !std::isfinite(weight))
    refuse({.where = kStep,
            .what = "the weight of a batch is out of range",
            .seen = std::to_string(weight),
            .accepted = "0 or more, finite"});
}

}  // namespace demi::loop
