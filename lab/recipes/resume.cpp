#include "lab/recipes/resume.h"

#include <c10/core/Device.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "demi/core/error.h"
#include "demi/train/precision.h"
#include "lab/recipes/run_spec.h"
#include "lab/recipes/schedules.h"

namespace demi::train {
namespace {

constexpr std::pair<std::string_view, OnResume> kRules[] = {
    {"epochs", OnResume::kLonger},        {"steps", OnResume::kLonger},
    {"early-stopping", OnResume::kAny},   {"device", OnResume::kAny},
    {"devices", OnResume::kAny},          {"ranks", OnResume::kAny},
    {"data-dir", OnResume::kAny},         {"train-file", OnResume::kAny},
    {"test-file", OnResume::kAny},        {"workers", OnResume::kAny},
    {"checkpoint-every", OnResume::kAny}, {"keep-last", OnResume::kAny},
    {"monitor", OnResume::kAny},          {"detect-anomaly", OnResume::kAny},
    {"what-if", OnResume::kAny},          {"resume", OnResume::kAny},
    {"shard-optimizer", OnResume::kAny},
};

const Setting& setting_of(std::string_view name) {
  for (const Setting& setting : settings())
    if (setting.name == name) return setting;
  throw UsageError({.where = "train.resume", .what = "no such setting", .seen = name});
}

// Whether the value that was asked for is the one that the run was begun with.
bool is_same(const Setting& setting, const Config& begun, const Config& asked) {
  const std::string before = setting.get(begun), now = setting.get(asked);
  if (before == now) return true;
  if (setting.name == "batch-size") return now == "auto";
  if (setting.name != "precision") return false;
  const auto label = [&](const std::string& text) {
    if (text != "mixed") return parse_run(text).label;
    return std::string(mixed_precision_of(c10::Device(begun.device).type()).name);
  };
  return label(before) == label(now);
}

[[noreturn]] void refuse(const Assignment& given, const std::string& what,
                         const std::string& before, const std::filesystem::path& run) {
  const std::string advice = "leave it out, or begin a new run without --resume";
  throw UsageError({.where = given.source,
                    .what = what + " of " + run.string(),
                    .seen = given.text,
                    .accepted = before,
                    .advice = advice});
}

// 0 means that nothing is set, for --steps.
bool is_shorter(std::string_view setting, const Config& begun, const Config& asked) {
  if (setting == "epochs") return asked.epochs < begun.epochs;
  return asked.steps > 0 && (begun.steps == 0 || asked.steps < begun.steps);
}

void require_longer(const Assignment& given, const Config& begun, const Config& asked,
                    const std::filesystem::path& run) {
  if (is_shorter(given.name, begun, asked))
    refuse(given, "this would end the training earlier than that",
           "it was begun with " + setting_of(given.name).get(begun) + "; more is accepted", run);
  const bool rate_follows = find_schedule(begun.schedule).ends;
  if (rate_follows && scheduled_epochs(asked) != scheduled_epochs(begun))
    refuse(given, "this would change the learning rates of the " + begun.schedule + " schedule",
           "it was made for " + std::to_string(scheduled_epochs(begun)) + " epochs", run);
}

}  // namespace

namespace {

// The batch of all ranks together stays, so that the steps do.
void share_batches_anew(const Assignment& given, const Config& begun, Config& config,
                        const std::filesystem::path& run) {
  const int64_t all = batch_size_of(begun) * begun.ranks;
  if (all % config.ranks != 0)
    throw UsageError({.where = given.source,
                      .what = "so many ranks cannot share the batches of " + run.string(),
                      .seen = given.text,
                      .accepted = fmt::format("a divisor of {}, which {} ranks have together", all,
                                              begun.ranks)});
  config.batch_size = std::to_string(all / config.ranks);
}

const Assignment* last_named(std::span<const Assignment> given, std::string_view name) {
  const Assignment* found = nullptr;
  for (const Assignment& a : given)
    if (a.name == name) found = &a;
  return found;
}

// Other devices take the place of the one that the run found.
std::string named_device(std::span<const Assignment> given) {
  const Assignment* device = last_named(given, "device");
  return device ? device->text : "auto";
}

// Another number of ranks: each finds a device of the same kind.
void forget_devices(std::span<const Assignment> given, Config& config) {
  if (config.devices.empty() || last_named(given, "devices")) return;
  config.devices.clear();
  if (!last_named(given, "device") && config.device.starts_with("cuda")) config.device = "cuda";
}

}  // namespace

OnResume on_resume(std::string_view setting) {
  for (const auto& [name, rule] : kRules)
    if (name == setting) return rule;
  return OnResume::kSame;
}

Config resumed_config(const Config& begun, std::span<const Assignment> given,
                      const std::filesystem::path& run) {
  Config config = begun;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Assignment& a = given[i];
    const auto is_later = [&](const Assignment& other) { return other.name == a.name; };
    if (std::ranges::any_of(given.subspan(i + 1), is_later)) continue;
    const Setting& setting = setting_of(a.name);
    Config asked = config;
    setting.set(asked, a.text, a.source);
    const OnResume rule = on_resume(a.name);
    if (rule == OnResume::kSame) {
      if (!is_same(setting, begun, asked))
        refuse(a, "this would change the training", "it was begun with " + setting.get(begun), run);
      continue;
    }
    if (rule == OnResume::kLonger) require_longer(a, begun, asked, run);
    config = asked;
    if (a.name == "ranks" && config.ranks != begun.ranks) forget_devices(given, config);
    if (a.name == "devices") config.device = named_device(given);
    if (a.name == "ranks" || a.name == "devices") share_batches_anew(a, begun, config, run);
  }
  if (config.ranks == 1 && !last_named(given, "shard-optimizer")) config.shard_optimizer = false;
  check(config);
  return config;
}

}  // namespace demi::train
