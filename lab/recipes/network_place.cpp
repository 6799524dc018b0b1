#include "lab/recipes/network_place.h"

#include <string>
#include <system_error>
#include <vector>

#include "demi/core/error.h"
#include "lab/models/imported.h"
#include "lab/recipes/config_source.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

bool is_file_at(const fs::path& path) {
  std::error_code unreadable;
  return fs::is_regular_file(path, unreadable);
}

/// The model of the run in whose folder the weights are; "": there is none.
std::string model_in_record(const fs::path& folder) {
  const fs::path record = folder / "config.json";
  if (!is_file_at(record)) return "";
  try {
    for (const Assignment& a : read_config_file(record).values)
      if (a.name == "model") return a.text;
  } catch (const UsageError&) {  // NOLINT(bugprone-empty-catch): another program's file
  }
  return "";
}

}  // namespace

void find_network(Config& config, const fs::path& weights, const fs::path& graph) {
  if (!models::is_network_file(config.model)) {
    if (graph.empty()) return;
    throw UsageError({.where = "--graph",
                      .what = "the model of " + weights.string() + " is not of a .pt2 file",
                      .seen = config.model,
                      .accepted = "models that were trained from one",
                      .advice = "leave it out"});
  }
  if (!graph.empty()) {
    config.model = graph;
    return;
  }
  const fs::path folder = fs::absolute(weights).parent_path();
  const fs::path name = fs::path(config.model).filename();
  for (const fs::path& place :
       {fs::path(config.model), fs::path(model_in_record(folder)), folder / name}) {
    if (place.filename() != name || !is_file_at(place)) continue;
    config.model = place;
    return;
  }
  throw DataError({.where = "train.find_network",
                   .what = weights.string() + " holds weights, and their network is not here",
                   .seen = config.model,
                   .accepted = "the .pt2 file that they were trained from",
                   .advice = "name it: --graph " + name.string()});
}

}  // namespace demi::recipes
