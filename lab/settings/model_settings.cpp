#include "lab/settings/model_settings.h"

#include <algorithm>
#include <utility>

#include "lab/models/registry.h"
#include "lab/values/setting.h"

namespace demi::settings {
namespace {

using models::ModelInfo;
using models::ModelSetting;

const ModelSetting* find_own(const ModelInfo& model, std::string_view name) {
  for (const ModelSetting& own : model.settings)
    if (own.setting.name == name) return &own;
  return nullptr;
}

data::Kind first_kind_with(std::string_view name) {
  data::Kind first = data::Kind::tokens;
  for (const ModelInfo& model : models::models())
    if (find_own(model, name)) first = std::min(first, model.reads);
  return first;
}

// "mlp: number of linear layers; gpt: number of blocks"
std::string joined_help(std::string_view name) {
  std::vector<std::pair<std::string, std::vector<std::string>>> helps;
  for (const ModelInfo& model : models::models()) {
    const ModelSetting* own = find_own(model, name);
    if (!own) continue;
    auto same = std::ranges::find(helps, own->setting.help,
                                  &std::pair<std::string, std::vector<std::string>>::first);
    if (same == helps.end()) same = helps.insert(same, {own->setting.help, {}});
    same->second.push_back(model.name);
  }
  std::string text;
  for (const auto& [help, of_models] : helps)
    text += (text.empty() ? "" : "; ") + values::either(of_models, " and ") + ": " + help;
  return text;
}

// Whether a setting does something for the model: one of its own, or one that models share.
bool counts(const ModelInfo& model, std::string_view setting, const values::Texts& values) {
  if (setting == "context") return model.reads == data::Kind::tokens;
  if (setting == "recompute") return model.recomputes;
  const ModelSetting* const own = find_own(model, setting);
  return own && (!own->counts || own->counts(values));
}

}  // namespace

std::vector<Setting> settings_of_models(data::Kind kind) {
  std::vector<Setting> all;
  for (const ModelInfo& model : models::models()) {
    if (model.reads != kind) continue;
    for (const ModelSetting& own : model.settings) {
      const std::string& name = own.setting.name;
      if (first_kind_with(name) != kind) continue;
      if (std::ranges::find(all, name, &Setting::name) != all.end()) continue;
      all.push_back(values::of_member(&Config::model_settings, own.setting));
      all.back().help = joined_help(name);
    }
  }
  return all;
}

bool is_of_models(std::string_view setting) {
  return std::ranges::any_of(models::models(), [&](const ModelInfo& model) {
    return find_own(model, setting) != nullptr;
  });
}

std::string why_not_of_model(const Config& config, std::string_view setting) {
  const ModelInfo* const model = models::model_named(config.model);
  if (model && counts(*model, setting, config.model_settings)) return "";
  std::vector<std::string> with;
  for (const ModelInfo& other : models::models()) {
    const ModelSetting* const own = find_own(other, setting);
    if (own && !own->counts_if.empty())
      with.push_back(other.name + " " + own->counts_if);
    else if (counts(other, setting, {}))
      with.push_back(other.name);
  }
  if (with.empty()) return "";
  return (with.size() == 1 ? "it is about the model " : "it is about the models ") +
         values::either(with, " and ");
}

}  // namespace demi::settings
