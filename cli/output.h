#pragma once

#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/table.h"
#include "lab/settings/run_spec.h"

namespace demi::cli {

/// A name and lines about it, each wrapped to the terminal.
struct Entry {
  std::string name;
  std::vector<std::string> lines;
};

/// Prints a command's results on stdout: text for people, or with --json one value for scripts.
/// Text knows the terminal's width, colours and character set (report::Terminal).
class Output {
 public:
  /// Adds --json.
  void add_to(CLI::App& command);

  bool is_json() const { return json_; }

  /// Prints the one or the other. An empty line separates tables.
  void show(const std::vector<report::Table>& tables, const nlohmann::ordered_json& json) const;
  void show(const std::vector<Entry>& entries, const nlohmann::ordered_json& json) const;
  void show(std::string_view sentence, const nlohmann::ordered_json& json) const;

  /// The value on several lines, without the last line's end. A path need not be UTF-8.
  static std::string text_of(const nlohmann::ordered_json& json);

  /// The parts of `show`, for results that have only one form.
  static void print(const nlohmann::ordered_json& json);
  static void print(const std::vector<report::Table>& tables);
  static void print(std::string_view sentence);
  static void print_lines(std::string_view lines);  // as they are

 private:
  bool json_ = false;
};

/// A line on stderr: "note: ...".
void note(std::string_view text);

/// Notes for runs whose precision does not pay on the device. `runs` empty: the device's mixed
/// precision.
void note_slow_precisions(const std::vector<settings::RunSpec>& runs, c10::Device device);

/// Prints on stderr the last checkpoints in a run's folder, and the line that resumes them; nothing
/// if there are none. `when` names what has to be done first.
void say_how_to_resume(const std::string& command, const std::filesystem::path& run_folder,
                       std::string_view when = {});

/// Prints the tables about a network before it runs (Workload::about), on stderr.
void show_network(const std::vector<report::Table>& about);

/// Prints no results and notes from now on: of several ranks one prints them.
void keep_quiet();

}  // namespace demi::cli
