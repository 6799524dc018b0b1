#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/table.h"

namespace demi::cli {

/// A name and what there is to say about it, each line wrapped to the terminal.
struct Entry {
  std::string name;
  std::vector<std::string> lines;
};

/// Where a command's results go: text for people, or with --json one value for scripts, to stdout.
/// Text knows the terminal's width, colours and character set (report::Terminal).
class Output {
 public:
  /// Adds --json.
  void add_to(CLI::App& command);

  bool is_json() const { return json_; }

  /// One of the two. Between tables stands an empty line.
  void show(const std::vector<report::Table>& tables, const nlohmann::ordered_json& json) const;
  void show(const std::vector<Entry>& entries, const nlohmann::ordered_json& json) const;
  void show(std::string_view sentence, const nlohmann::ordered_json& json) const;

  /// One half of `show`, for what has only that half.
  static void print(const nlohmann::ordered_json& json);
  static void print(const std::vector<report::Table>& tables);
  static void print(std::string_view sentence);
  static void print_lines(std::string_view lines);  // as they are

 private:
  bool json_ = false;
};

/// A line on stderr: "note: ...".
void note(std::string_view text);

}  // namespace demi::cli
