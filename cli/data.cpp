// demi data list|get|check: data sets, where they are looked for, fetched only when asked, checked.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "demi/core/error.h"
#include "lab/data/get.h"
#include "lab/data/registry.h"

namespace demi::cli {
namespace {

struct DataOptions {
  std::string name;
  std::string data_dir;
  bool json = false;
};

std::string folder_of(const data::DataSet& set, const std::string& data_dir) {
  try {
    return data::find_data_set(set.name, data_dir).string();
  } catch (const DataError&) {
    return {};
  }
}

void list(const DataOptions& options) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const data::DataSet& set : data::data_sets()) {
    const std::string folder = folder_of(set, options.data_dir);
    if (options.json) {
      all.push_back(
          {{"name", set.name},
           {"title", set.title},
           {"train_examples", set.train_examples},
           {"test_examples", set.test_examples},
           {"classes", set.classes.size()},
           {"folder", folder.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(folder)}});
    } else {
      fmt::print("{:<14} {}\n{:<14} {}\n", set.name, set.title, "",
                 folder.empty() ? "not here: " + set.advice : folder);
    }
  }
  if (options.json) fmt::print("{}\n", nlohmann::ordered_json{{"data_sets", all}}.dump(2));
}

/// On a terminal one line that is written over; elsewhere a line for each tenth.
class Progress {
 public:
  void operator()(const std::string& file, int64_t have, int64_t total) {
    if (total == 0) return;
    const int64_t step = have * (terminal_ ? 1000 : 10) / total;
    if (file == file_ && step == step_) return;
    file_ = file;
    step_ = step;
    fmt::print(stderr, "{}{}  {:.1f} of {:.1f} MB{}", terminal_ ? "\r" : "", file, have / 1e6,
               total / 1e6, terminal_ && have < total ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::string file_;
  int64_t step_ = -1;
};

void get(const DataOptions& options) {
  Progress progress;
  const auto folder = data::get_data_set(options.name, options.data_dir, std::ref(progress));
  if (options.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{{"name", options.name}, {"folder", folder.string()}}.dump(2));
  } else {
    fmt::print("{} is in {}\n", options.name, folder.string());
  }
}

void check(const DataOptions& options) {
  const data::DataCheck found = data::check_data_set(options.name, options.data_dir);
  if (options.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"name", found.name},
                                              {"folder", found.folder.string()},
                                              {"train_examples", found.train_examples},
                                              {"test_examples", found.test_examples},
                                              {"classes", found.classes}}
                           .dump(2));
  } else {
    fmt::print("{} in {} is whole: {} training and {} test examples, {} classes\n", found.name,
               found.folder.string(), found.train_examples, found.test_examples,
               found.classes.size());
  }
}

CLI::App* add_one(CLI::App* data, const std::string& name, const std::string& title,
                  void (*work)(const DataOptions&)) {
  CLI::App* command = data->add_subcommand(name, title);
  const auto options = std::make_shared<DataOptions>();
  if (name != "list")
    command->add_option("NAME", options->name, "a name out of `demi data list`")->required();
  command->add_option("--data-dir", options->data_dir,
                      "the folder to use, nothing else; default: DEMI_DATA_DIR, else the cache and "
                      "/usr/share/datasets");
  command->add_flag("--json", options->json, "one JSON object instead of text");
  command->callback([options, work] { work(*options); });
  return command;
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* data =
      app.add_subcommand("data", "Data sets: where they are, fetched only when asked, checked");
  require_one_of(*data);
  add_one(data, "list", "Every set that demi knows, and where it lies on this machine", list);
  add_one(data, "get", "Fetch a set from its authors, check its sum, unpack it", get);
  add_one(data, "check", "Read a whole set and check every file of it", check);
}

}  // namespace demi::cli
