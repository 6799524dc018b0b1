// demi data list|get|check: lists data sets and their folders, fetches them, checks them.
#include <fmt/format.h>
#include <unistd.h>

#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/output.h"
#include "demi/core/error.h"
#include "lab/data/get.h"
#include "lab/data/registry.h"
#include "lab/report/terminal.h"

namespace demi::cli {
namespace {

struct DataOptions {
  std::string name;
  std::string data_dir;
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

/// How far a download is. On a terminal one line that is written over; elsewhere a line for each
/// tenth.
class DownloadProgress {
 public:
  void operator()(const std::string& file, int64_t have, int64_t total) {
    if (total == 0) return;
    const int64_t step = have * (terminal_.interactive ? 1000 : 10) / total;
    if (file == file_ && step == step_) return;
    file_ = file;
    step_ = step;
    const std::string text = report::printable(
        fmt::format("{}  {:.1f} of {:.1f} MB", file, static_cast<double>(have) / 1e6,
                    static_cast<double>(total) / 1e6),
        terminal_.utf8);
    if (!terminal_.interactive) {
      std::cerr << text << "\n" << std::flush;
      return;
    }
    // One column stays free: a full row would wrap on some terminals.
    const std::size_t width = std::max<std::size_t>(terminal_.current_width(), 2) - 1;
    std::cerr << "\r" << report::cut_to_width(text, width) << "\x1b[K" << (have < total ? "" : "\n")
              << std::flush;
  }

 private:
  report::Terminal terminal_ = report::Terminal::of(STDERR_FILENO);
  std::string file_;
  int64_t step_ = -1;
};

void get_set(const DataOptions& options) {
  DownloadProgress progress;
  const auto folder = data::get_data_set(options.name, options.data_dir, std::ref(progress));
  options.output.show(fmt::format("{} is in {}", options.name, folder.string()),
                      {{"name", options.name}, {"folder", folder.string()}});
}

void check_set(const DataOptions& options) {
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

CLI::App* add_one(CLI::App* data, const std::string& name, const std::string& title,
                  void (*work)(const DataOptions&)) {
  CLI::App* command = data->add_subcommand(name, title);
  const auto options = std::make_shared<DataOptions>();
  if (name != "list")
    command->add_option("NAME", options->name, "Data set: a name from `demi data list`")
        ->required();
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
  add_one(data, "check", "Read a whole set and check every file of it", check_set);
}

}  // namespace demi::cli
