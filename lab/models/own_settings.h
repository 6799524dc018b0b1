#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/models/model_info.h"
#include "lab/values/setting.h"

namespace demi::models {

/// A model's own settings, over its options struct.
template <class Options>
class OwnSettings {
 public:
  struct Entry {
    values::Setting<Options> setting;
    Decides decides = Decides::tensors;
    std::string_view key = {};                 // as ModelSetting's; empty: name, with underscores
    bool (*counts)(const Options&) = nullptr;  // as ModelSetting's; null: always
    std::string_view counts_if = {};
  };

  /// `defaults`: the options of a network whose settings are not given.
  OwnSettings(Options defaults, std::vector<Entry> entries)
      : defaults_(std::move(defaults)), entries_(std::move(entries)) {}

  /// The options of given values; of others' values none. Throws UsageError.
  Options read(const values::Texts& given) const {
    Options options = defaults_;
    for (const Entry& entry : entries_)
      if (const auto value = given.find(entry.setting.name); value != given.end())
        entry.setting.set(options, value->second, "--" + entry.setting.name);
    return options;
  }

  /// The values of options, those that are not the default.
  values::Texts write(const Options& options) const {
    values::Texts texts;
    for (const Entry& entry : entries_)
      if (std::string text = entry.setting.get(options); text != entry.setting.get(defaults_))
        texts.emplace(entry.setting.name, std::move(text));
    return texts;
  }

  /// The settings as ModelInfo has them. This object has to outlive them.
  std::vector<ModelSetting> over_texts() const {
    std::vector<ModelSetting> all;
    for (const Entry& entry : entries_) {
      std::string key(entry.key.empty() ? entry.setting.name : entry.key);
      std::ranges::replace(key, '-', '_');
      all.push_back({.setting = values::over_texts(entry.setting, defaults_),
                     .decides = entry.decides,
                     .key = std::move(key),
                     .counts_if = std::string(entry.counts_if)});
      if (entry.counts)
        all.back().counts = [this, counts = entry.counts](const values::Texts& texts) {
          return counts(read(texts));
        };
    }
    return all;
  }

 private:
  Options defaults_;
  std::vector<Entry> entries_;
};

}  // namespace demi::models
