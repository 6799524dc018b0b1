#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/recipes/compare.h"
#include "lab/report/table.h"
#include "lab/settings/config_source.h"

namespace demi::results {

/// A setting and the values that are compared: "batch-size=128,256,512,513".
struct Sweep {
  std::string setting;                    // as its option names it: "batch-size"
  std::vector<std::string> values;        // as they were written
  std::vector<settings::Config> configs;  // of a comparison with each value
};

/// Throws UsageError: no such setting, no value, and as `config_with`, which gives the settings of
/// a comparison with one value more and is called for all of them.
DEMI_API Sweep
parse_sweep(std::string_view text,
            const std::function<settings::Config(const settings::Assignment&)>& config_with);

/// A row a value, from the comparison that was made with it.
DEMI_API report::Table to_table(const Sweep& sweep,
                                const std::vector<recipes::Comparison>& results);
/// The table as JSON.
DEMI_API nlohmann::ordered_json json_of(const Sweep& sweep,
                                        const std::vector<recipes::Comparison>& results);

}  // namespace demi::results
