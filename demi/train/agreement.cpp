#include "demi/train/agreement.h"

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/serialize/output-archive.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <sstream>
#include <typeinfo>
#include <vector>

#include "demi/core/crc32c.h"
#include "demi/optim/optimizer.h"

namespace demi::train {
namespace {

std::uint32_t checksum(const torch::optim::OptimizerOptions& options) {
  torch::serialize::OutputArchive archive;
  options.serialize(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return crc32c(bytes.str());
}

std::uint32_t checksum(const at::Tensor& rates) {
  return crc32c({static_cast<const char*>(rates.const_data_ptr()), rates.nbytes()});
}

// The values at some steps tell two schedules apart.
std::string values_of(const optim::lr::Schedule& schedule, double base) {
  if (!schedule) return "none";
  std::string text;
  for (const std::int64_t step : {0, 1, 2, 5, 10, 100, 1'000, 10'000, 100'000}) {
    try {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", step, schedule(step, base));
    } catch (const std::exception&) {  // it may have an end
      text += fmt::format("{}{}: an exception", text.empty() ? "" : ", ", step);
    }
  }
  return text;
}

std::string names_of(const std::vector<Metric>& metrics) {
  std::string text;
  for (const Metric& metric : metrics) text += (text.empty() ? "" : ", ") + metric.name;
  return text.empty() ? "none" : text;
}

}  // namespace

std::string agreement_on(const GradScalerOptions& o) {
  const char* mode = o.mode == ScaleMode::kDynamic  ? "dynamic"
                     : o.mode == ScaleMode::kStatic ? "static"
                                                    : "amax";
  return fmt::format(
      "scaler: enabled {}\nscaler: mode {}\nscaler: skip_nonfinite {}\nscaler: min_scale {}\n"
      "scaler: max_scale {}\nscaler: hysteresis {}\nscaler: refill_hysteresis {}\n"
      "scaler: amax_window {}\nscaler: amax_limit {}\n",
      o.enabled, mode, o.skip_nonfinite, o.min_scale, o.max_scale, o.hysteresis,
      o.refill_hysteresis, o.amax_window, o.amax_limit);
}

std::string agreement_on(const std::optional<OpPolicy>& policy) {
  std::string text = fmt::format("op_policy {}\n", policy ? "given" : "none");
  if (!policy) return text;
  for (const OpRule& rule : policy->changes())
    text += fmt::format("op_policy: {} {}\n", rule.op, name_of(rule.category));
  for (const PartRule& rule : policy->parts())
    text += fmt::format("op_policy: part {} {}{}\n", rule.part, rule.treatment,
                        rule.until ? fmt::format(" until {}", *rule.until) : "");
  return text;
}

std::string agreement_on(const torch::optim::Optimizer& optimizer, const std::string& name) {
  const auto& groups = optimizer.param_groups();
  const auto* ours = dynamic_cast<const optim::Optimizer*>(&optimizer);
  std::string text = fmt::format(
      "{}: {}\n", name, ours ? ours->rule_name() : c10::demangle(typeid(optimizer).name()));
  const auto numbers = ours ? ours->group_numbers() : std::vector<StateDict>();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::string group = fmt::format("{}, group {}", name, g);
    text += fmt::format("{}: {} parameters\n", group, groups[g].params().size());
    if (!ours)
      text +=
          fmt::format("{}: options with checksum {:08x}\n", group, checksum(groups[g].options()));
    if (const at::Tensor rates = ours ? ours->scheduled_rates(g) : at::Tensor(); rates.defined())
      text += fmt::format("{}: {} scheduled rates with checksum {:08x}\n", group, rates.numel(),
                          checksum(rates));
    for (const auto& [option, value] : ours ? numbers[g] : StateDict())
      text += fmt::format("{}: {} {}\n", group, option, value);
  }
  return text;
}

std::string agreement_on(const Setup& setup) {
  const TrainerOptions& o = setup.options;
  const double base = o.optimizers.front()->param_groups().front().options().get_lr();
  std::string text = fmt::format(
      "max_steps {}\nprecision {}\nautocast {}\nlabel_smoothing {}\nclip_norm {}\n"
      "accumulate {}\nema_decay {}\nearly_stopping {}\nbest_by {}\nread_every {}\ngive_up_after "
      "{}\n"
      "optimizers {}\nschedule {}\nmomentum_schedule {}\nlosses {}\nflush_subnormals {}\n",
      o.max_steps, setup.precision.name, o.autocast, o.label_smoothing, o.clip_norm, o.accumulate,
      o.ema_decay, o.early_stopping, static_cast<int>(o.best_by), o.read_every, o.give_up_after,
      o.optimizers.size(), o.schedule ? "given" : "none", o.momentum_schedule ? "given" : "none",
      o.losses ? "given" : "none", o.flush_subnormals);
  text += fmt::format("schedule, by step: {}\nmomentum_schedule, by step: {}\n",
                      values_of(o.schedule, base), values_of(o.momentum_schedule, 0.9));
  text += fmt::format("loss {}\nmetrics {}\n", o.loss.text(), names_of(o.metrics));
  text += agreement_on(o.op_policy);
  for (const auto& optimizer : o.optimizers)
    text += fmt::format("learning rate {}\n", optimizer->param_groups().front().options().get_lr());
  for (std::size_t i = 0; i < o.optimizers.size(); ++i)
    text += agreement_on(*o.optimizers[i], fmt::format("optimizer {}", i));
  text += agreement_on(setup.scaler.options());
  for (const auto& [name, number] : setup.scaler.state_dict())
    text += fmt::format("scaler: {} {}\n", name, number);
  return text;
}

}  // namespace demi::train
