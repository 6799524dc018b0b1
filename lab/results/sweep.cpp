#include "lab/results/sweep.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "demi/core/error.h"
#include "lab/report/format.h"
#include "lab/results/compare_report.h"

namespace demi::results {

namespace {

constexpr std::pair<std::string_view, std::string_view> kNotSwept[] = {
    {"precision", "the runs of one comparison have precisions: --runs fp32,bf16,fp16"},
    {"loss-scale", "the runs of one comparison have scales: --runs fp16:scale=64,fp16:scale=1024"},
    {"keep-best", "demi train alone keeps checkpoints of the best epochs"},
    {"resume", "resume each comparison by its own folder"},
    {"dry-run", "--dry-run with the sweep makes each comparison one"},
    {"ranks", "start one comparison for each number: demi compare --ranks 2"},
    {"devices", "start one comparison for each list: demi compare --devices cuda:0,cuda:1"},
};

}  // namespace

Sweep parse_sweep(std::string_view text,
                  const std::function<settings::Config(const settings::Assignment&)>& config_with) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals + 1 == text.size())
    throw UsageError({.where = "--sweep",
                      .what = "not a setting and its values",
                      .seen = text,
                      .accepted = "such as batch-size=128,256,512,513"});
  Sweep sweep{.setting = std::string(text.substr(0, equals))};
  for (const auto& [name, why] : kNotSwept)
    if (sweep.setting == name)
      throw UsageError({.where = "--sweep",
                        .what = "no comparison takes this setting from a sweep",
                        .seen = text,
                        .advice = std::string(why)});
  sweep.values = settings::words_of(text.substr(equals + 1));
  for (const std::string& value : sweep.values)
    sweep.configs.push_back(config_with({sweep.setting, value, "--sweep"}));
  return sweep;
}

report::Table to_table(const Sweep& sweep, const std::vector<recipes::Comparison>& results) {
  report::Table table{.title = "sweep of " + sweep.setting};
  table.columns = {{.name = sweep.setting}};
  for (const recipes::RunResult& run : results.front().runs) {
    table.columns.push_back({.name = run.spec.label, .unit = "ms a step"});
    table.columns.push_back({.name = run.spec.label + " peak", .unit = "MB"});
  }
  table.columns.push_back({.name = "speedup"});
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<std::string> row{sweep.values[i]};
    for (const recipes::RunResult& run : results[i].runs) {
      const double steps = static_cast<double>(std::max<std::size_t>(run.history.steps.size(), 1));
      row.push_back(report::format_fixed(1e3 * run.seconds / steps, 2));
      row.push_back(report::format_fixed(static_cast<double>(run.peak_bytes) / 1e6, 1));
    }
    const recipes::RunResult& last = results[i].runs.back();
    const bool disturbed = recipes::is_disturbed(results[i], last);
    row.push_back((disturbed ? "* " : "") + report::format_factor(last.speedup));
    if (disturbed && table.notes.empty())
      table.notes.emplace_back(
          "* Another program had a part of the cores meanwhile: these speedups say nothing.");
    table.rows.push_back(std::move(row));
  }
  return table;
}

nlohmann::ordered_json json_of(const Sweep& sweep,
                               const std::vector<recipes::Comparison>& results) {
  nlohmann::ordered_json json{{"setting", sweep.setting}};
  json["rows"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < results.size(); ++i)
    json["rows"].push_back({{"value", sweep.values[i]}, {"comparison", json_of(results[i])}});
  return json;
}

}  // namespace demi::results
