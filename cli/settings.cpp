#include "cli/settings.h"

#include <fmt/format.h>

#include "lab/recipes/recipe.h"

namespace demi::cli {
namespace {

// "Autocast region" as the end of a sentence; "FP32 ..." stays.
std::string lower_first(std::string text) {
  const bool is_word = text.size() > 1 && text[1] >= 'a' && text[1] <= 'z';
  if (is_word && text[0] >= 'A' && text[0] <= 'Z') text[0] = static_cast<char>(text[0] + 32);
  return text;
}

}  // namespace

void SettingOptions::add(CLI::App& command, const train::Setting& setting,
                         const train::Config& shown) {
  const std::string value = setting.get(shown);
  const auto note = [this, name = setting.name](const std::string& text,
                                                const std::string& source) {
    typed_.push_back({name, text, source});
  };
  if (!setting.is_flag) {
    const std::string option = "--" + setting.name;
    command
        .add_option_function<std::string>(
            option, [note, option](const std::string& text) { note(text, option); },
            setting.help + (value.empty() ? "" : " [" + value + "]"))
        ->type_name(setting.type)
        ->group(setting.group);
    return;
  }
  // The form that changes something is shown, the other one is taken too.
  const std::string yes = "--" + setting.name, no = "--no-" + setting.name;
  const bool on = value == "true";
  const auto flag = [&](const std::string& option, const std::string& text, bool visible) {
    command
        .add_flag_callback(
            option, [note, option, text] { note(text, option); },
            visible && on ? "Turn off: " + lower_first(setting.help) : setting.help)
        ->group(visible ? setting.group : "");
  };
  flag(yes, "true", !on);
  flag(no, "false", on);
}

namespace {

const train::Recipe* recipe_of(const std::string& name) {
  for (const train::Recipe& recipe : train::recipes())
    if (recipe.name == name) return &recipe;
  return nullptr;
}

// The settings of a recipe that differ from those shown in brackets, as options.
std::string set_by(const train::Recipe& recipe, const train::Config& shown) {
  std::string text;
  for (const train::Setting& setting : train::settings()) {
    const std::string value = setting.get(recipe.config);
    if (value == setting.get(shown)) continue;
    if (setting.is_flag) {
      text += (value == "true" ? " --" : " --no-") + setting.name;
    } else {
      text += " --" + setting.name + " " + (value.empty() ? "''" : value);
    }
  }
  return text;
}

std::string footer(const CLI::App& command, const train::Recipe* by_default,
                   const train::Config& shown) {
  const std::string brackets =
      "In brackets: what a setting is where " +
      (by_default ? "file, environment and options say nothing, in the recipe " + by_default->name
                  : "recipe, file, environment and options say nothing") +
      ".\n";
  const auto given = command.get_option("RECIPE")->results();
  const train::Recipe* named = given.empty() ? nullptr : recipe_of(given.front());
  if (!named) return brackets + "What a recipe sets: demi " + command.get_name() + " RECIPE --help";
  if (named == by_default) return brackets;
  return brackets + "The recipe " + named->name + " (" + named->title + ") sets\n " +
         set_by(*named, shown);
}

}  // namespace

void SettingOptions::add_to(CLI::App& command, const std::string& default_recipe,
                            const std::set<std::string>& without) {
  const train::Recipe* by_default = recipe_of(default_recipe);
  const train::Config shown = by_default ? by_default->config : train::Config();
  command.footer([&command, by_default, shown] { return footer(command, by_default, shown); });
  command.add_option("--config", file_,
                     "JSON file of settings, such as a run folder's config.json; weaker than the "
                     "environment (DEMI_LR=0.1, ...), which is weaker than options");
  for (const train::Setting& setting : train::settings())
    if (!without.contains(setting.name)) add(command, setting, shown);
}

void SettingOptions::add_mixed_flag(CLI::App& command) {
  command
      .add_flag_callback(
          "--mp,--mixed-precision",
          [this] {
            typed_.push_back({"precision", "mixed", "--mixed-precision"});
          },
          "--precision fp16 on CUDA, bf16 on a CPU")
      ->group("Precision");
}

std::vector<train::Assignment> SettingOptions::given() const {
  std::vector<train::Assignment> all;
  if (!file_.empty()) all = train::read_config_file(file_);
  const std::vector<train::Assignment> environment = train::read_environment();
  all.insert(all.end(), environment.begin(), environment.end());
  all.insert(all.end(), typed_.begin(), typed_.end());
  return all;
}

train::Config SettingOptions::resolve(train::Config config) const {
  for (const train::Assignment& a : given()) train::set(config, a.name, a.text, a.source);
  train::check(config);
  return config;
}

std::string SettingOptions::recipe_of_file() const {
  return file_.empty() ? "" : train::recipe_of_config_file(file_);
}

std::string SettingOptions::typed() const {
  std::string line;
  for (const train::Assignment& a : typed_) {
    const bool is_flag = a.source == "--no-" + a.name ||
                         (a.text == "true" && a.source == "--" + a.name) || a.text == "mixed";
    const bool plain =
        a.text.find_first_of(" '\"\\$&;|<>()*?") == std::string::npos && !a.text.empty();
    line += " " + a.source;
    if (!is_flag) line += plain ? " " + a.text : " '" + a.text + "'";
  }
  return file_.empty() ? line : " --config '" + file_ + "'" + line;
}

}  // namespace demi::cli
