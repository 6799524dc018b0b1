#include "cli/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "cli/command_tree.h"
#include "cli/output.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/settings/devices.h"
#include "lab/settings/effects.h"
#include "lab/shell_word.h"

namespace demi::cli {
namespace {

// "Autocast region" as the end of a sentence; "FP32 ..." stays.
std::string lower_first(std::string text) {
  const bool is_word = text.size() > 1 && text[1] >= 'a' && text[1] <= 'z';
  if (is_word && text[0] >= 'A' && text[0] <= 'Z') text[0] = static_cast<char>(text[0] + 32);
  return text;
}

}  // namespace

void SettingOptions::add(CLI::App& command, const settings::Setting& setting,
                         const std::string& value) {
  if (!setting.is_flag) {
    const std::string option = "--" + setting.name;
    CLI::Option* added = command.add_option(
        option, [](const CLI::results_t&) { return true; },
        setting.help + (value.empty() ? "" : " [" + value + "]"));
    added->type_name(setting.type)->group(setting.group);
    added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    forms_[added] = {.setting = setting.name, .option = option};
    return;
  }
  // The form that changes something is shown, the other one is taken too.
  const std::string yes = "--" + setting.name, no = "--no-" + setting.name;
  const bool on = value == "true";
  const auto flag = [&](const std::string& option, const std::string& text, bool visible) {
    CLI::Option* added = command.add_flag(
        option, visible && on ? "Turn off: " + lower_first(setting.help) : setting.help);
    added->group(visible ? setting.group : "");
    added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    forms_[added] = {.setting = setting.name, .option = option, .text = text};
  };
  flag(yes, "true", !on);
  flag(no, "false", on);
}

namespace {

const settings::Recipe* recipe_of(const std::string& name) {
  for (const settings::Recipe& recipe : settings::recipes())
    if (recipe.name == name) return &recipe;
  return nullptr;
}

// Settings as options, behind the words that say when they hold.
std::string set_when(const std::string& words,
                     const std::vector<std::pair<std::string, std::string>>& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += " --" + name + " " + value;
  return text.empty() ? text : "\n" + words + " it sets\n " + text;
}

// The settings of a recipe that differ from those shown in brackets, as options.
std::string set_by(const settings::Recipe& recipe, const settings::Config& shown) {
  std::string text;
  for (const settings::Setting& setting : settings::all_settings()) {
    const std::string value = setting.get(recipe.config);
    if (value != setting.get(shown)) text += option_text(setting, value);
  }
  return text;
}

std::string footer(const CLI::App& command, const settings::Recipe* by_default,
                   const settings::Config& shown) {
  const std::string brackets =
      "In brackets: what a setting is where " +
      (by_default ? "file, environment and options say nothing, in the recipe " + by_default->name
                  : "recipe, file, environment and options say nothing") +
      ".\n";
  const auto given = command.get_option("RECIPE")->results();
  const settings::Recipe* named = given.empty() ? nullptr : recipe_of(given.front());
  if (!named) return brackets + "What a recipe sets: demi " + command.get_name() + " RECIPE --help";
  const std::string besides =
      set_when("On a GPU", named->on_gpu) + set_when("With --from", named->fine_tuning);
  if (named == by_default) return brackets + besides;
  return brackets + "The recipe " + named->name + " (" + named->title + ") sets\n " +
         set_by(*named, shown) + besides;
}

}  // namespace

std::string option_text(const settings::Setting& setting, const std::string& value) {
  if (setting.is_flag) return (value == "true" ? " --" : " --no-") + setting.name;
  return " --" + setting.name + " " + lab::shell_word(value);
}

void SettingOptions::add_to(CLI::App& command, const std::string& default_recipe,
                            const std::set<std::string>& without) {
  const settings::Recipe* by_default = recipe_of(default_recipe);
  const settings::Config shown = by_default ? by_default->config : settings::Config();
  command_ = &command;
  without_ = without;
  command.footer([&command, by_default, shown] { return footer(command, by_default, shown); });
  command.add_option("--config", file_,
                     "JSON file of settings, such as a run folder's config.json; weaker than the "
                     "environment (DEMI_LR=0.1, ...), which is weaker than options");
  for (const settings::Setting& setting : settings::all_settings())
    if (!without.contains(setting.name)) add(command, setting, setting.get(shown));
}

void SettingOptions::add_those(CLI::App& command,
                               const std::function<bool(const settings::Setting&)>& is_taken) {
  command_ = &command;
  for (const settings::Setting& setting : settings::all_settings())
    if (is_taken(setting))
      add(command, setting, setting.is_flag ? setting.get(settings::Config()) : "the recipe's");
}

void SettingOptions::add_mixed_flag(CLI::App& command) {
  const std::string help = "--precision fp16 on CUDA, bf16 on a CPU";
  CLI::Option* added = command.add_flag("--mp,--mixed-precision", help);
  added->group("Precision");
  added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  forms_[added] = {.setting = "precision", .option = "--mixed-precision", .text = "mixed"};
}

// What a flag says: --skip, --skip=no, --no-skip, --mp.
std::string SettingOptions::value_of(const Form& flag, const std::string& given) {
  const settings::Setting& setting = *settings::find_setting(flag.setting);
  if (given == "true") return flag.text;
  if (!setting.is_flag)
    throw UsageError({.where = flag.option,
                      .what = "the option takes no value",
                      .seen = given,
                      .advice = "leave it out; --" + flag.setting + " names another one"});
  settings::Config asked;
  setting.set(asked, given, flag.option);
  const bool is_on = setting.get(asked) == "true";
  return is_on == (flag.text == "true") ? "true" : "false";
}

// CLI11 keeps the options by value.
std::vector<settings::Assignment> SettingOptions::typed_ones() const {
  std::vector<settings::Assignment> all;
  std::map<const CLI::Option*, std::size_t> seen;
  for (const CLI::Option* option : command_->parse_order()) {
    const auto form = forms_.find(option);
    if (form == forms_.end()) continue;
    const Form& typed = form->second;
    const std::string given = option->results().at(seen[option]++);
    std::string value = typed.text.empty() ? given : value_of(typed, given);
    std::erase_if(all, [&](const settings::Assignment& a) { return a.name == typed.setting; });
    all.push_back({typed.setting, std::move(value), typed.option});
  }
  return all;
}

namespace {

// A file's settings of the weights that its run began with do not apply to other weights.
void leave_out_other_start(std::vector<settings::Assignment>& all) {
  const bool names_another = std::ranges::any_of(
      all, [&](const settings::Assignment& a) { return a.name == "from" && !a.is_of_file(); });
  if (!names_another) return;
  std::erase_if(all, [&](const settings::Assignment& a) {
    return a.is_of_file() && (a.name == "from-state" || a.name == "from-average");
  });
}

}  // namespace

std::vector<settings::Assignment> SettingOptions::given() const {
  std::vector<settings::Assignment> all;
  settings::Config tried;  // an unknown word is reported, whether it counts or not
  // Named runs have a weight mode of their own, bf16:split; the weight mode of a run's file belongs
  // to its precision.
  const bool leaves_mode = without_.contains("precision") && !of_file().runs.is_comparison;
  const auto is_taken = [&](const settings::Assignment& a) {
    if (a.is_of_file() && a.name == "epochs") return true;  // a schedule is made for so many
    return !without_.contains(a.name) &&
           !(a.is_of_file() && leaves_mode && a.name == "weight-mode");
  };
  std::vector<settings::Assignment> weaker = of_file().values;
  std::ranges::move(settings::read_environment(), std::back_inserter(weaker));
  for (const settings::Assignment& a : weaker) {
    if (is_taken(a)) {
      all.push_back(a);
      continue;
    }
    const settings::Config before = tried;
    settings::set(tried, a.name, a.text, a.source);
    const bool is_about_runs =
        a.name == "precision" || a.name == "loss-scale" || a.name == "weight-mode";
    const bool differs = settings::to_json(before) != settings::to_json(tried);
    if (!a.is_of_file() || (is_about_runs && differs)) ignored_.insert(a.source);
  }
  const std::vector<settings::Assignment> typed = typed_ones();
  all.insert(all.end(), typed.begin(), typed.end());
  leave_out_other_start(all);
  return all;
}

void SettingOptions::note_ignored() const {
  for (const std::string& source : std::exchange(ignored_, {}))
    note(source + " has no effect on " + full_name(*command_) +
         (command_->get_option_no_throw("--runs") ? ": --runs names precisions and scales"
                                                  : ", which has no such option"));
}

settings::Config SettingOptions::start_of(const settings::Recipe& recipe,
                                          const std::vector<settings::Assignment>& given,
                                          bool starts_from_weights) {
  settings::Circumstances circumstances{.starts_from_weights = starts_from_weights};
  if (!recipe.on_gpu.empty()) {
    settings::Config asked;
    for (const settings::Assignment& a : given)
      if (a.name == "device" || a.name == "devices") set(asked, a.name, a.text, a.source);
    const c10::Device device = pick_device(settings::device_of_rank(asked, 0));
    circumstances.on_gpu = device.is_cuda();
  }
  settings::Config config = config_of(recipe, circumstances);
  settings::leave_out_for_others(config, given);
  return config;
}

settings::Config SettingOptions::resolve(const settings::Recipe& recipe) const {
  const std::vector<settings::Assignment> all = given();
  settings::Config config = start_of(recipe, all);
  note_ignored();
  settings::set_all(config, all);
  settings::check(config);
  check_effects(config, all);
  return config;
}

void SettingOptions::check_effects(settings::Config config,
                                   const std::vector<settings::Assignment>& given) const {
  if (without_.contains("precision")) {
    config.precision = "mixed";  // each run has its own
  } else if (config.precision == "mixed") {
    const c10::Device device = pick_device(settings::device_of_rank(config, 0));
    config.precision = mixed_precision_of(device.type()).name;
  }
  settings::check_effects(config, given);
}

const settings::ConfigFile& SettingOptions::of_file() const {
  if (!of_file_)
    of_file_ = file_.empty() ? settings::ConfigFile() : settings::read_config_file(file_);
  return *of_file_;
}

std::string SettingOptions::typed() const {
  std::string line = file_.empty() ? "" : " --config " + lab::shell_word(file_);
  for (const settings::Assignment& a : typed_ones()) {
    if (a.source == "--mixed-precision") {
      line += " " + a.source;
      continue;
    }
    if (const settings::Setting* setting = settings::find_setting(a.name))
      line += option_text(*setting, a.text);
  }
  return line;
}

}  // namespace demi::cli
