#include "lab/workload/network_place.h"

#include <fmt/format.h>

#include <system_error>

#include "demi/core/error.h"
#include "lab/models/imported.h"
#include "lab/settings/config_source.h"

namespace demi::workload {
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
    for (const settings::Assignment& a : settings::read_config_file(record).values)
      if (a.name == "model") return a.text;
  } catch (const UsageError&) {  // NOLINT(bugprone-empty-catch): another program's file
  }
  return "";
}

bool is_other_network(const settings::Config& config, const std::string& identity) {
  return !identity.empty() && network_identity(config) != identity;
}

// The path of the file if it is not given.
fs::path place_of(const settings::Config& config, const fs::path& weights) {
  const fs::path folder = fs::absolute(weights).parent_path();
  const fs::path name = fs::path(config.model).filename();
  for (const fs::path& place :
       {fs::path(config.model), fs::path(model_in_record(folder)), folder / name})
    if (place.filename() == name && is_file_at(place)) return place;
  throw DataError({.where = "workload.find_network",
                   .what = weights.string() + " holds weights, and their network is not here",
                   .seen = config.model,
                   .accepted = "the .pt2 file that they were trained from",
                   .advice = "name it: --graph " + name.string()});
}

}  // namespace

std::string find_network(ModelTexts& texts, const fs::path& weights, const fs::path& graph) {
  settings::Config& config = texts.config;
  if (!models::is_network_file(config.model)) {
    if (graph.empty()) return "";
    throw UsageError({.where = "--graph",
                      .what = "the model of " + weights.string() + " is not of a .pt2 file",
                      .seen = config.model,
                      .accepted = "models that were trained from one",
                      .advice = "leave it out"});
  }
  const std::string trained = fs::path(config.model).filename(),
                    identity = texts.description ? texts.description->identity : "";
  config.model = graph.empty() ? place_of(config, weights) : graph;
  if (graph.empty()) {
    require_same_network(config, identity, weights.string());
    return "";
  }
  if (!is_other_network(config, identity)) return "";
  return fmt::format(
      "{} is another network than the {} that {} was trained in: its weights fit by name and shape "
      "at most, and the answers may mean nothing",
      graph.string(), trained, weights.string());
}

std::string network_identity(const settings::Config& config) {
  if (!models::is_network_file(config.model)) return "";
  return models::imported_file(config.model).summary.identity;
}

void require_same_network(const settings::Config& config, const std::string& identity,
                          const std::string& file) {
  if (!models::is_network_file(config.model) || !is_other_network(config, identity)) return;
  throw DataError(
      {.where = "workload.find_network",
       .what = fmt::format("{} is another network than {} was trained in", config.model, file),
       .seen = network_identity(config),
       .accepted = identity + ", the identity in the weights' file",
       .advice = "put the .pt2 file of the training back, or name it with eval and predict: "
                 "--graph FILE (which takes another one, too, and says so); demi train FILE --from "
                 "WEIGHTS starts another network with these weights"});
}

}  // namespace demi::workload
