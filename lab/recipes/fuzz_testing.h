#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "demi/checkpoint/header_testing.h"
#include "demi/core/folder_testing.h"
#include "demi/core/fuzz_target_testing.h"
#include "demi/core/memory_file_testing.h"
#include "lab/recipes/run_record.h"
#include "lab/settings/config_source.h"
#include "lab/workload/model_file.h"

namespace demi::recipes {

/// A run's config.json.
inline void fuzz_run_config(std::string_view bytes) {
  static const TestFolder folder;
  folder.write("config.json", bytes);
  recipes::read_run_record(folder.path());
  settings::read_config_file(folder.path() / "config.json");
}

/// A model file without tensors, whose demi.model the input is.
inline void fuzz_model_texts(std::string_view bytes) {
  const nlohmann::json header{{"__metadata__",
                               {{"demi.file", "1"},
                                {"demi.model", std::string(bytes)},
                                {"demi.vocabulary", "<unk> a b"},
                                {"demi.precision", "fp32"},
                                {"demi.config", settings::to_json(settings::Config())}}}};
  const std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  workload::read_model_texts(MemoryFile(checkpoint::header_length(text.size()) + text).path());
}

inline constexpr FuzzTarget kFuzzTargets[] = {{"run_config", fuzz_run_config},
                                              {"model_texts", fuzz_model_texts}};

}  // namespace demi::recipes
