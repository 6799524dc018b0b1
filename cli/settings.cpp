#include "cli/settings.h"

#include <fmt/format.h>

namespace demi::cli {

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
            visible && on ? "Without: " + setting.help : setting.help)
        ->group(visible ? setting.group : "");
  };
  flag(yes, "true", !on);
  flag(no, "false", on);
}

void SettingOptions::add_to(CLI::App& command, const train::Config& shown,
                            const std::set<std::string>& without) {
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

train::Config SettingOptions::resolve(train::Config config) const {
  const auto apply = [&](const std::vector<train::Assignment>& assignments) {
    for (const train::Assignment& a : assignments) train::set(config, a.name, a.text, a.source);
  };
  if (!file_.empty()) apply(train::read_config_file(file_));
  apply(train::read_environment());
  apply(typed_);
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
