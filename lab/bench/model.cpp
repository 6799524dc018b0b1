#include "lab/bench/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "demi/core/error.h"
#include "lab/settings/recipe.h"

namespace demi::bench {
namespace {

RecipeBenchOptions of_width(const ModelBenchOptions& options, int64_t width) {
  RecipeBenchOptions one{.config = settings::find_recipe("mlp").config,
                         .runs = options.runs,
                         .warmup = options.warmup,
                         .steps = options.steps,
                         .rounds = options.rounds,
                         .records = false};
  one.config.in = one.config.out = width;
  one.config.model_settings["depth"] = fmt::to_string(options.layers);
  one.config.batch_size = options.batch_size;
  one.config.batches = 4;  // that the steps take in turn
  return one;
}

}  // namespace

std::optional<int64_t> gain_from(const std::vector<ModelBenchRow>& rows) {
  std::optional<int64_t> width;
  for (auto row = rows.rbegin(); row != rows.rend() && row->mixed().speedup > 1; ++row)
    width = row->width;
  return width;
}

ModelBenchResult bench_model(const ModelBenchOptions& options, c10::Device device) {
  std::vector<int64_t> widths = options.widths;
  std::sort(widths.begin(), widths.end());
  widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
  if (widths.empty() || widths.front() < 1 || options.batch_size < 1 || options.layers < 1)
    refuse({.where = "bench.model",
            .what = "a size is out of range",
            .seen = fmt::format("widths {}, batch size {}, layers {}",
                                fmt::join(options.widths, ","), options.batch_size, options.layers),
            .accepted = "one width or more; widths, batch size and layers of 1 or more"});
  ModelBenchResult result;
  for (const int64_t width : widths) {
    RecipeBenchOptions one = of_width(options, width);
    if (options.on_part)
      one.on_part = [&](const std::string& part, int64_t done, int64_t parts) {
        options.on_part(part.empty() ? part : fmt::format("width {}: {}", width, part),
                        done + parts * static_cast<int64_t>(result.rows.size()),
                        parts * static_cast<int64_t>(widths.size()));
      };
    result.rows.push_back({width, bench_recipe(one, device)});
  }
  result.gain_from_width = gain_from(result.rows);
  return result;
}

}  // namespace demi::bench
