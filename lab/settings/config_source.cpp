#include "lab/settings/config_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "demi/core/error.h"
#include "demi/core/json.h"
#include "demi/core/json_value.h"
#include "lab/data/data_sets.h"

namespace demi::settings {
namespace {

// Entries of a run folder's config.json besides the settings.
const std::set<std::string> kOfTheProgram{"command", "recipe", "runs", "interleave"};

std::string key_of(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const Setting* setting_of_key(const std::string& key) {
  for (const Setting& setting : all_settings())
    if (key_of(setting.name) == key || setting.name == key) return &setting;
  return nullptr;
}

[[noreturn]] void unknown_key_of_run(const std::string& key, const std::string& file) {
  throw DataError({.where = "settings.read_config_text",
                   .what = file + " has a setting that this demi does not know",
                   .seen = key,
                   .advice =
                       "another demi, perhaps a newer one, may have written it: go on with that "
                       "one"});
}

[[noreturn]] void unknown_key(const std::string& key, const std::string& file) {
  std::string name = key;
  std::ranges::replace(name, '_', '-');
  const std::string meant = key_of(setting_meant(name));
  throw UsageError({.where = "settings.read_config_file",
                    .what = "no such setting in " + file,
                    .seen = key,
                    .advice = (meant.empty() ? "" : "did you mean " + meant + "? ") +
                              "`demi train --help` lists the settings"});
}

[[noreturn]] void refuse(const std::string& what, const std::string& seen) {
  throw UsageError({.where = "settings.read_config_file",
                    .what = what,
                    .seen = seen,
                    .accepted = "a JSON object such as {\"lr\": 0.1, \"batch_size\": 128}",
                    .advice = "every run folder's config.json is one"});
}

// An ordered object looks through all of its members at each new one.
constexpr std::size_t kMostBytes = 1 << 16;

nlohmann::ordered_json parse(std::string_view text, const std::string& file) {
  if (text.size() > kMostBytes)
    refuse(file + " is too long for a config", fmt::format("more than {} bytes", kMostBytes));
  try {
    auto json = read_ordered_json(text);
    if (!json.is_object()) refuse(file + " holds no JSON object", json.type_name());
    // A setting may be there twice, with a hyphen and with an underscore.
    std::set<std::string> keys;
    for (const auto& [key, value] : json.items())
      if (!keys.insert(key_of(key)).second) refuse(file + " says a setting twice", key_of(key));
    return json;
  } catch (const JsonError& error) {
    refuse(file + " is not JSON", error.what());
  }
}

std::string content_of(const std::filesystem::path& file) {
  std::error_code unreadable;  // which reading it says
  if (std::filesystem::is_directory(file, unreadable))
    throw UsageError(
        {.where = "settings.read_config_file",
         .what = "the config file is a folder",
         .seen = file.string(),
         .advice = "of a run folder name the file: " + (file / "config.json").string()});
  const auto text = json_text(file, kMostBytes);
  if (!text) refuse("the config file cannot be read", file.string() + ": " + std::strerror(errno));
  return *text;
}

using RefuseKey = void (*)(const std::string& key, const std::string& file);

std::vector<Assignment> values_of(const nlohmann::ordered_json& json, const std::string& file,
                                  RefuseKey refuse_key) {
  std::vector<Assignment> result;
  for (const auto& [key, value] : json.items()) {
    if (kOfTheProgram.contains(key)) continue;
    const Setting* setting = setting_of_key(key);
    if (!setting) refuse_key(key, file);
    if (value.is_structured() || value.is_null()) {
      throw UsageError({.where = "settings.read_config_file",
                        .what = key + " in " + file + " is not a plain value",
                        .seen = value.dump(),
                        .accepted = "a number, a string, true or false"});
    }
    const bool is_whole = setting->type == "INT" && value.is_number_float() &&
                          std::nearbyint(value.get<double>()) == value.get<double>();
    result.push_back({setting->name,
                      value.is_string() ? value.get<std::string>()
                      : is_whole        ? fmt::format("{:.0f}", value.get<double>())
                                        : value.dump(),
                      key + " in " + file});
  }
  return result;
}

std::string recipe_of(const nlohmann::ordered_json& json, const std::string& file) {
  const auto recipe = json.find("recipe");
  if (recipe == json.end()) return "";
  if (!recipe->is_string())
    throw UsageError({.where = "settings.read_config_file",
                      .what = "recipe in " + file + " is not a name",
                      .seen = recipe->dump(),
                      .accepted = "a string, such as \"fashion-cnn\""});
  return recipe->get<std::string>();
}

ComparedRuns runs_of(const nlohmann::ordered_json& json, const std::string& file) {
  ComparedRuns found;
  try {
    const JsonValue all(json);
    found.runs = all.value("runs", std::vector<std::string>());
    found.turn_steps = all.value("interleave", int64_t{0});
    found.is_comparison = all.value("command", std::string()).starts_with("demi compare");
  } catch (const JsonError& error) {
    refuse("what " + file + " says of its runs is damaged", error.what());
  }
  return found;
}

}  // namespace

std::vector<Assignment> read_config_text(std::string_view text, const std::string& file) {
  return values_of(parse(text, file), file, unknown_key_of_run);
}

ConfigFile read_config_file(const std::filesystem::path& file) {
  const auto json = parse(content_of(file), file.string());
  return {.values = values_of(json, file.string(), unknown_key),
          .recipe = recipe_of(json, file.string()),
          .runs = runs_of(json, file.string())};
}

std::string environment_variable(std::string_view setting) {
  std::string name(setting);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c == '-' ? '_' : static_cast<char>(c - (c >= 'a' && c <= 'z' ? 32 : 0));
  });
  return "DEMI_" + name;
}

std::vector<Assignment> read_environment() {
  std::vector<Assignment> result;
  for (const Setting& setting : all_settings()) {
    const std::string variable = environment_variable(setting.name);
    if (const char* text = std::getenv(variable.c_str()))
      result.push_back({setting.name, text, variable});
  }
  return result;
}

bool gives_way_to_own_folder(const Assignment& assignment, const Config& config) {
  return assignment.source == "DEMI_DATA_DIR" && !config.data.empty() && !config.data_dir.empty() &&
         data::data_set(config.data).layout == data::Layout::picture_folder;
}

void set_all(Config& config, std::span<const Assignment> given) {
  for (const Assignment& a : given)
    if (!gives_way_to_own_folder(a, config)) set(config, a.name, a.text, a.source);
}

nlohmann::ordered_json json_of(const Config& config) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Setting& setting : all_settings()) {
    const std::string text = setting.get(config);
    // Numbers and flags as such. A word that looks like a number stays one: the folder 2.10.
    const bool may_be_plain = setting.is_flag || setting.type != "TEXT";
    const auto plain =
        may_be_plain ? json_or_null<nlohmann::ordered_json>(text) : nlohmann::ordered_json();
    json[key_of(setting.name)] = plain.is_null() ? nlohmann::ordered_json(text) : plain;
  }
  return json;
}

std::string to_json(const Config& config) { return json_of(config).dump(2) + "\n"; }

}  // namespace demi::settings
