#include "lab/recipes/run_record.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "demi/core/error.h"
#include "demi/core/json.h"
#include "demi/core/json_value.h"
#include "lab/report/run_folder.h"
#include "lab/settings/config_source.h"
#include "lab/settings/recipe.h"
#include "lab/settings/run_spec.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";

// Its whole path, since "run" and "." name none.
fs::path folder_around(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder / "").lexically_normal();  // ends with a '/'
  return whole.parent_path().parent_path();
}

[[noreturn]] void no_record(const fs::path& folder, const std::string& what,
                            const std::string& seen) {
  throw DataError(
      {.where = "recipes.read_run_record",
       .what = what,
       .seen = seen,
       .accepted = "a folder that `demi train` or `demi compare` made",
       .advice = "look into " + folder_around(folder).string() + " for the runs there are"});
}

std::string text_of(const fs::path& folder) {
  const fs::path file = folder / kConfigFile;
  const auto text = json_text(file);
  const int error = errno;
  if (!text && error != ENOENT && error != ENOTDIR)
    throw DataError({.where = "recipes.read_run_record",
                     .what = "the run's " + file.string() + " cannot be read",
                     .seen = std::strerror(error),
                     .advice = "mend the file or its permissions"});
  if (!text || text->empty()) no_record(folder, "not a run folder", file.string());
  return *text;
}

// A file that may not be looked at is none.
bool can_see(const fs::path& file) {
  std::error_code unreadable;
  return fs::exists(file, unreadable);
}

// "train" of "demi train mlp --lr 0.1".
std::string command_of(const std::string& line) {
  std::istringstream words(line);
  std::string program, command;
  words >> program >> command;
  return command;
}

}  // namespace

std::string to_json(const RunRecord& record) {
  auto json = nlohmann::ordered_json{{"command", record.line}, {"recipe", record.recipe}};
  json["runs"] = record.runs;
  if (record.turn_steps > 0) json["interleave"] = record.turn_steps;
  json.update(settings::json_of(record.config));
  // A path in the line need not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

RunRecord read_run_record(const fs::path& folder) {
  const std::string text = text_of(folder), file = (folder / kConfigFile).string();
  RunRecord record;
  try {
    for (const settings::Assignment& a : settings::read_config_text(text, file))
      settings::set(record.config, a.name, a.text, a.source);
    const nlohmann::json document = read_json(text);
    const JsonValue json(document);
    record.line = json.at("command").get<std::string>();
    record.command = command_of(record.line);
    record.recipe = json.at("recipe").get<std::string>();
    record.runs = json.at("runs").get<std::vector<std::string>>();
    record.turn_steps = json.value("interleave", int64_t{0});
  } catch (const UsageError& error) {
    no_record(folder, "the run's " + file + " is damaged", error.what());
  } catch (const JsonError& error) {
    no_record(folder, "the run's " + file + " is damaged", error.what());
  }
  return record;
}

bool can_resume(const fs::path& folder) {
  return !checkpoint_folders(folder).empty() || !can_see(folder / "report.html");
}

fs::path checkpoints_of(const fs::path& run_folder, const RunRecord& record,
                        std::string_view label) {
  const fs::path all = run_folder / kCheckpoints;
  return record.runs.size() > 1 ? all / settings::file_name(label) : all;
}

std::vector<fs::path> checkpoint_folders(const fs::path& run_folder) {
  const fs::path folder = run_folder / kCheckpoints;
  std::vector<fs::path> found;
  std::error_code none;
  if (can_see(folder / "last")) found.push_back(folder);
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end;
       entry.increment(none))
    if (can_see(entry->path() / "last")) found.push_back(entry->path());
  return found;
}

std::vector<fs::path> unfinished(std::string_view command, std::string_view recipe,
                                 const fs::path& root) {
  std::vector<fs::path> folders =
      report::run_folders(std::string(command) + "-" + settings::folder_name(recipe), root);
  std::erase_if(folders, [](const fs::path& folder) {
    return !can_see(folder / kConfigFile) || can_see(folder / kResultFile) || !can_resume(folder);
  });
  return folders;
}

}  // namespace demi::recipes
