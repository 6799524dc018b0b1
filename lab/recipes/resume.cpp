#include "lab/recipes/resume.h"

#include <c10/core/Device.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"
#include "lab/settings/resolved.h"
#include "lab/settings/run_spec.h"
#include "lab/settings/schedules.h"

namespace demi::recipes {
namespace {

constexpr std::pair<std::string_view, OnResume> kRules[] = {
    {"epochs", OnResume::kLonger},        {"steps", OnResume::kLonger},
    {"early-stopping", OnResume::kAny},   {"device", OnResume::kAny},
    {"devices", OnResume::kAny},          {"ranks", OnResume::kAny},
    {"data-dir", OnResume::kAny},         {"train-file", OnResume::kAny},
    {"test-file", OnResume::kAny},        {"workers", OnResume::kAny},
    {"checkpoint-every", OnResume::kAny}, {"keep-last", OnResume::kAny},
    {"keep-every", OnResume::kAny},       {"keep-best", OnResume::kAny},
    {"best-by", OnResume::kAny},          {"stop-after", OnResume::kAny},
    {"monitor", OnResume::kAny},          {"detect-anomaly", OnResume::kAny},
    {"what-if", OnResume::kAny},          {"resume", OnResume::kAny},
    {"shard-optimizer", OnResume::kAny},  {"recompute", OnResume::kAny},
    {"precision", OnResume::kNewRun},     {"loss-scale", OnResume::kNewRun},
    {"scaler", OnResume::kNewRun},        {"weight-mode", OnResume::kNewRun},
};

const settings::Setting& setting_of(std::string_view name) {
  if (const settings::Setting* setting = settings::find_setting(name)) return *setting;
  throw UsageError({.where = "recipes.resume", .what = "no such setting", .seen = name});
}

// Whether the value that was asked for is the one that the run was begun with.
bool is_same(const settings::Setting& setting, const settings::Config& begun,
             const settings::Config& asked) {
  const std::string before = setting.get(begun), now = setting.get(asked);
  if (setting.name == "batch-size")  // of all ranks together
    return asked.batch_size == 0 ||
           asked.batch_size * asked.ranks == begun.batch_size * begun.ranks;
  if (before == now) return true;
  return setting.name == "precision" && now == "mixed" &&
         before == mixed_precision_of(c10::Device(begun.device).type()).name;
}

[[noreturn]] void refuse(const settings::Assignment& given, const std::string& what,
                         const std::string& before, const std::filesystem::path& run) {
  const std::string advice = "leave it out, or begin a new run without --resume";
  throw UsageError({.where = given.source,
                    .what = what + " of " + run.string(),
                    .seen = given.text,
                    .accepted = before,
                    .advice = advice});
}

// The schedule is made for a number of epochs, and the two are not the same.
bool changes_rates(const settings::Config& begun, const settings::Config& asked) {
  return settings::find_schedule(begun.schedule).ends && begun.schedule_steps == 0 &&
         settings::scheduled_epochs(asked) != settings::scheduled_epochs(begun);
}

// 0 means that nothing is set, for --steps.
bool is_shorter(std::string_view setting, const settings::Config& begun,
                const settings::Config& asked) {
  if (setting == "epochs") return asked.epochs < begun.epochs;
  return asked.steps > 0 && (begun.steps == 0 || asked.steps < begun.steps);
}

void require_longer(const settings::Assignment& given, const settings::Config& begun,
                    const settings::Config& asked, const std::filesystem::path& run) {
  if (is_shorter(given.name, begun, asked))
    refuse(given, "this would end the training earlier than that",
           "it was begun with " + setting_of(given.name).get(begun) + "; more is accepted", run);
  if (changes_rates(begun, asked))
    refuse(given, "this would change the learning rates of the " + begun.schedule + " schedule",
           "it was made for " + std::to_string(settings::scheduled_epochs(begun)) + " epochs", run);
}

// The batch of all ranks together stays, so that the steps do.
void share_batches_anew(const settings::Assignment& given, const settings::Config& begun,
                        settings::Config& config, const std::filesystem::path& run) {
  const int64_t all = begun.batch_size * begun.ranks;
  if (all % config.ranks != 0)
    throw UsageError({.where = given.source,
                      .what = "so many ranks cannot share the batches of " + run.string(),
                      .seen = given.text,
                      .accepted = fmt::format("a divisor of {}, which {} ranks have together", all,
                                              begun.ranks)});
  config.batch_size = all / config.ranks;
}

const settings::Assignment* last_named(std::span<const settings::Assignment> given,
                                       std::string_view name) {
  const settings::Assignment* found = nullptr;
  for (const settings::Assignment& a : given)
    if (a.name == name) found = &a;
  return found;
}

// The given settings that count: of several with one name the last. Ranks come first, since they
// decide the batch of each.
std::vector<settings::Assignment> that_count(std::span<const settings::Assignment> given) {
  std::vector<settings::Assignment> all;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto is_later = [&](const settings::Assignment& other) {
      return other.name == given[i].name;
    };
    if (std::ranges::none_of(given.subspan(i + 1), is_later)) all.push_back(given[i]);
  }
  std::stable_partition(all.begin(), all.end(), [](const settings::Assignment& a) {
    return a.name == "ranks" || a.name == "devices";
  });
  return all;
}

std::string begun_with(const settings::Setting& setting, const settings::Config& begun,
                       const settings::Config& now) {
  const std::string before = setting.get(begun);
  if (setting.name != "batch-size" || begun.ranks == now.ranks) return before;
  return fmt::format("{} on each of {}, which is {} on each of {}", before, begun.ranks,
                     now.batch_size, now.ranks);
}

// Other devices take the place of the one that the run found.
std::string named_device(std::span<const settings::Assignment> given) {
  const settings::Assignment* device = last_named(given, "device");
  return device ? device->text : "auto";
}

// Another number of ranks: each finds a device of the same kind.
void forget_devices(std::span<const settings::Assignment> given, settings::Config& config) {
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

namespace {

bool decides_bits(std::string_view setting) {
  const OnResume rule = on_resume(setting);
  return rule == OnResume::kSame || rule == OnResume::kNewRun;
}

}  // namespace

std::string change_of_precision(const settings::Config& begun, const settings::Config& now) {
  std::string text;
  for (const settings::Setting& setting : settings::all_settings())
    if (on_resume(setting.name) == OnResume::kNewRun && !is_same(setting, begun, now))
      text += fmt::format("{}{} {}, begun with {}", text.empty() ? "" : "; ", setting.name,
                          setting.get(now), setting.get(begun));
  return text;
}

std::string first_difference(const settings::Config& begun, const settings::Config& now,
                             std::span<const settings::Assignment> given) {
  for (const settings::Setting& setting : settings::all_settings()) {
    if (!decides_bits(setting.name) || is_same(setting, begun, now)) continue;
    // Nobody asked for another: with other ranks the batch of all together stays.
    if (setting.name == "batch-size" && !last_named(given, "batch-size") &&
        begun.batch_size == now.batch_size)
      continue;
    const bool of_ranks = setting.name == "batch-size" && begun.ranks != now.ranks;
    const auto on_ranks = [&](int64_t ranks) {
      return of_ranks ? fmt::format(" on each of {}", ranks) : std::string();
    };
    return fmt::format("{} is {}{}, not {}{}", setting.name, setting.get(begun),
                       on_ranks(begun.ranks), setting.get(now), on_ranks(now.ranks));
  }
  return "";
}

namespace {

// The newest checkpoint of a folder whose manifest can be read. Reading its tensors passes over a
// damaged one.
std::optional<std::pair<std::filesystem::path, checkpoint::Metadata>> newest_texts(
    const std::filesystem::path& folder) {
  std::error_code code;
  if (!std::filesystem::is_directory(folder, code)) return std::nullopt;
  try {
    std::filesystem::path last = checkpoint::find(folder);
    return std::pair(last, checkpoint::read_manifest(last).text);
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace

void require_saved_settings(const std::filesystem::path& run_folder, const RunRecord& record) {
  for (const std::string& label : record.runs) {
    const auto saved = newest_texts(checkpoints_of(run_folder, record, label));
    if (!saved || !saved->second.contains("demi.config")) continue;
    settings::Config of_checkpoint;
    std::set<std::string> names;  // an older demi had fewer
    for (const settings::Assignment& a :
         settings::read_config_text(saved->second.at("demi.config"), saved->first)) {
      settings::set(of_checkpoint, a.name, a.text, a.source);
      names.insert(a.name);
    }
    const bool alone = record.command == "train";
    const settings::Config of_file = settings::config_of(
        record.config, alone ? settings::run_of(record.config) : settings::parse_run(label));
    for (const settings::Setting& setting : settings::all_settings()) {
      const bool is_shorter_now = on_resume(setting.name) == OnResume::kLonger &&
                                  is_shorter(setting.name, of_checkpoint, of_file);
      const bool is_other =
          (decides_bits(setting.name) && !is_same(setting, of_checkpoint, of_file)) ||
          (setting.name == "epochs" && changes_rates(of_checkpoint, of_file));
      if (!names.contains(setting.name) || !(is_shorter_now || is_other)) continue;
      throw UsageError({.where = "--resume",
                        .what = setting.name + " in " + (run_folder / "config.json").string() +
                                " is not what the checkpoint was trained with",
                        .seen = setting.get(of_file),
                        .accepted = setting.get(of_checkpoint) + ", as in " + saved->first.string(),
                        .advice = "put the value back, or begin a new run with the other one"});
    }
  }
}

settings::Config resumed_config(const settings::Config& begun,
                                std::span<const settings::Assignment> given,
                                const std::filesystem::path& run) {
  settings::Config config = begun;
  config.stop_after = settings::Config().stop_after;  // of the process that it has ended
  for (const settings::Assignment& a : that_count(given)) {
    if (settings::gives_way_to_own_folder(a, begun)) continue;
    const settings::Setting& setting = setting_of(a.name);
    settings::Config asked = config;
    setting.set(asked, a.text, a.source);
    const OnResume rule = on_resume(a.name);
    if (rule == OnResume::kSame) {
      if (!is_same(setting, begun, asked))
        refuse(a, "this would change the training",
               "it was begun with " + begun_with(setting, begun, config), run);
      continue;
    }
    if (rule == OnResume::kNewRun && is_same(setting, begun, asked)) continue;
    if (rule == OnResume::kLonger) require_longer(a, begun, asked, run);
    config = asked;
    if (a.name == "ranks" && config.ranks != begun.ranks) forget_devices(given, config);
    if (a.name == "devices") config.device = named_device(given);
    if (a.name == "ranks" || a.name == "devices") share_batches_anew(a, begun, config, run);
  }
  if (config.ranks == 1 && !last_named(given, "shard-optimizer")) config.shard_optimizer = false;
  settings::check(config);
  return config;
}

}  // namespace demi::recipes
