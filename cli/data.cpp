// demi data list|get|check: lists data sets and their folders, fetches them, checks them and data
// of the user's own.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/status_line.h"
#include "demi/core/error.h"
#include "lab/data/check.h"
#include "lab/data/get.h"
#include "lab/data/registry.h"

namespace demi::cli {
namespace {

struct DataOptions {
  std::string name;
  std::string data_dir;
  std::string test_file;
  Output output;
};

std::string folder_of(const data::DataSet& set, const std::string& data_dir) {
  try {
    return data::find_data_set(set.name, data_dir).string();
  } catch (const DataError&) {
    return {};
  }
}

void list_sets(const DataOptions& options) {
  std::error_code unreadable;
  require(options.data_dir.empty() || fs::is_directory(options.data_dir, unreadable),
          {.where = "--data-dir",
           .what = "there is no such folder",
           .seen = options.data_dir,
           .accepted = "a folder of data sets",
           .advice = "leave it out for the places where sets are looked for"});
  std::vector<Entry> entries;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const data::DataSet& set : data::data_sets()) {
    if (!set.is_published()) continue;
    const std::string folder = folder_of(set, options.data_dir);
    entries.push_back({set.name, {set.title, folder.empty() ? "not here: " + set.advice : folder}});
    all.push_back(
        {{"name", set.name},
         {"title", set.title},
         {"train_examples", set.train_examples},
         {"test_examples", set.test_examples},
         {"classes", set.classes.size()},
         {"folder", folder.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(folder)}});
  }
  options.output.show(entries, nlohmann::ordered_json{{"data_sets", all}});
}

/// Shows each thousandth on a terminal, elsewhere a line for each tenth.
class DownloadProgress {
 public:
  void operator()(const std::string& file, int64_t have, int64_t total) {
    if (total == 0) return;
    const int64_t step = have * (line_.is_interactive() ? 1000 : 10) / total;
    if (file == file_ && step == step_) return;
    file_ = file;
    step_ = step;
    line_.show(fmt::format("{}  {:.1f} of {:.1f} MB", file, static_cast<double>(have) / 1e6,
                           static_cast<double>(total) / 1e6),
               have == total);
  }

 private:
  StatusLine line_;
  std::string file_;
  int64_t step_ = -1;
};

/// Shows progress ten times a second on a terminal, elsewhere every ten seconds; nothing if reading
/// takes less.
class ReadingProgress {
 public:
  void operator()(int64_t done, int64_t all) {
    const auto now = std::chrono::steady_clock::now();
    const bool is_last = done == all && shown_any_;
    if (now - shown_ < (line_.is_interactive() ? std::chrono::milliseconds(100) : kPause) &&
        !is_last)
      return;
    shown_ = now;
    shown_any_ = true;
    line_.show(fmt::format("{} of {} pictures read", done, all), is_last);
  }

 private:
  static constexpr std::chrono::milliseconds kPause = std::chrono::seconds(10);
  StatusLine line_;
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
  bool shown_any_ = false;
};

void get_set(const DataOptions& options) {
  DownloadProgress progress;
  const auto folder = data::get_data_set(options.name, options.data_dir, std::ref(progress));
  options.output.show(fmt::format("{} is in {}", options.name, folder.string()),
                      {{"name", options.name}, {"folder", folder.string()}});
}

void check_published(const DataOptions& options) {
  const data::DataCheck found = data::check_data_set(options.name, options.data_dir);
  options.output.show(fmt::format("{} in {} is whole: {} training and {} test examples, {} classes",
                                  found.name, found.folder.string(), found.train_examples,
                                  found.test_examples, found.classes.size()),
                      {{"name", found.name},
                       {"folder", found.folder.string()},
                       {"train_examples", found.train_examples},
                       {"test_examples", found.test_examples},
                       {"classes", found.classes}});
}

nlohmann::ordered_json json_of(const data::FilesCheck& check) {
  const bool tested = check.parts.size() > 1;
  nlohmann::ordered_json json{
      {"train", check.parts[0].place},
      {"test", tested ? nlohmann::ordered_json(check.parts[1].place) : nlohmann::ordered_json()},
      {"kind", name_of(check.kind)},
      {"train_examples", check.parts[0].examples()},
      {"test_examples", tested ? check.parts[1].examples() : 0},
      {"classes", nlohmann::ordered_json::array()},
      {"damaged", nlohmann::ordered_json::array()},
      {"repeated", nlohmann::ordered_json::array()},
      {"notes", check.notes}};
  for (std::size_t c = 0; c < check.classes.size(); ++c)
    json["classes"].push_back({{"name", check.classes[c]},
                               {"train_examples", check.parts[0].of_class[c]},
                               {"test_examples", tested ? check.parts[1].of_class[c] : 0}});
  for (const data::Finding& one : check.damaged)
    json["damaged"].push_back(
        {{"place", one.place}, {"what", one.what}, {"seen", one.seen}, {"advice", one.advice}});
  for (const data::Repeated& one : check.repeated)
    json["repeated"].push_back({{"places", one.places},
                                {"in_both_parts", one.in_both_parts},
                                {"of_several_classes", one.of_several_classes}});
  return json;
}

std::string words_of(const data::Finding& finding) {
  return fmt::format("{}: {}{}{}; {}", finding.place, finding.what,
                     finding.seen.empty() ? "" : "; seen: ", finding.seen, finding.advice);
}

std::string words_of(const data::Repeated& repeated) {
  constexpr std::size_t kNamed = 4;
  const std::size_t count = repeated.places.size(), named = std::min(count, kNamed);
  return fmt::format("{}{}{}{}",
                     fmt::join(repeated.places.begin(),
                               repeated.places.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                     count > named ? fmt::format(" and {} more", count - named) : "",
                     repeated.in_both_parts ? ": trained on and tested on" : "",
                     repeated.of_several_classes ? ": under different classes" : "");
}

std::vector<Entry> entries_of(const data::FilesCheck& check) {
  std::vector<Entry> entries;
  for (std::size_t part = 0; part < check.parts.size(); ++part) {
    std::vector<std::string> classes;
    for (std::size_t c = 0; c < check.classes.size(); ++c)
      classes.push_back(fmt::format("{} {}", check.classes[c], check.parts[part].of_class[c]));
    entries.push_back({part == 0 ? "train" : "test",
                       {fmt::format("{}: {} {}{}{}", check.parts[part].place,
                                    check.parts[part].examples(), name_of(check.kind),
                                    classes.empty() ? "" : ": ", fmt::join(classes, ", "))}});
  }
  const auto add = [&](const char* name, const auto& found) {
    if (found.empty()) return;
    Entry& entry = entries.emplace_back(Entry{.name = name, .lines = {}});
    for (const auto& one : found) entry.lines.push_back(words_of(one));
  };
  add("damaged", check.damaged);
  add("repeated", check.repeated);
  if (!check.notes.empty()) entries.push_back({"note", check.notes});
  return entries;
}

int64_t examples_of(const data::FilesCheck& check) {
  int64_t count = 0;
  for (const auto& part : check.parts) count += part.examples();
  return count;
}

/// A published set by its name, or a folder of pictures or a file of texts of the user's own.
void check_set(const DataOptions& options) {
  namespace fs = std::filesystem;
  std::error_code unreadable;
  const bool published = std::ranges::any_of(data::data_sets(), [&](const data::DataSet& set) {
    return set.is_published() && set.name == options.name;
  });
  const bool own = !published && (fs::exists(options.name, unreadable) ||
                                  options.name.find_first_of("/.") != std::string::npos);
  const bool folder = own && fs::is_directory(options.name, unreadable);
  const auto refuse = [&](bool given, std::string_view what, std::string_view advice) {
    if (given)
      throw UsageError(
          {.where = "data check", .what = what, .seen = options.name, .advice = advice});
  };
  refuse(!options.test_file.empty() && (folder || !own), "--test-file is for a file of texts",
         "of a folder val is checked with train, of a published set both parts");
  refuse(own && !options.data_dir.empty(), "--data-dir is for published sets",
         "name the folder or file itself");
  if (!own) return check_published(options);
  const data::FilesCheck check = folder ? data::check_pictures(options.name, ReadingProgress())
                                        : data::check_texts(options.name, options.test_file);
  options.output.show(entries_of(check), json_of(check));
  if (!check.damaged.empty())
    throw DataError(
        {.where = "data check",
         .what = fmt::format(
             "{} is damaged: {} in {} {}", options.name,
             check.damaged.size() == 1 ? "1 place" : fmt::format("{} places", check.damaged.size()),
             examples_of(check), name_of(check.kind)),
         .advice = "training would end there: mend what is damaged, or take it out"});
}

CLI::App* add_one(CLI::App* data, const std::string& name, const std::string& title,
                  void (*work)(const DataOptions&)) {
  CLI::App* command = data->add_subcommand(name, title);
  const auto options = std::make_shared<DataOptions>();
  if (name == "get")
    command->add_option("NAME", options->name, "Data set: a name from `demi data list`")
        ->required();
  if (name == "check") {
    command
        ->add_option("NAME", options->name,
                     "A name from `demi data list`, or data of your own: a folder of pictures, or "
                     "a CSV or TSV file of texts")
        ->required();
    command->add_option("--test-file", options->test_file,
                        "With a file of texts: the file that is tested on");
  }
  command->add_option(
      "--data-dir", options->data_dir,
      "Folder of data sets, the only one that is used [DEMI_DATA_DIR, else the cache "
      "and /usr/share/datasets]");
  options->output.add_to(*command);
  command->callback([options, work] { work(*options); });
  return command;
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data =
      app.add_subcommand("data", "Data sets: where they are, fetched only when asked, checked");
  require_one_of(*data);
  add_one(data, "list", "Every set that demi knows, and where it lies on this machine", list_sets);
  add_one(data, "get", "Fetch a set from its authors, check its sum, unpack it", get_set);
  add_one(data, "check",
          "Read a whole set, or a folder or file of your own, and list all that is damaged or "
          "repeated; exit code 3 if something is damaged",
          check_set);
}

}  // namespace demi::cli
