#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/say.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "lab/recipes/machine.h"
#include "lab/recipes/run_record.h"
#include "lab/report/terminal.h"
#include "lab/report/wrap.h"
#include "lab/shell_word.h"

namespace demi::cli {
namespace {

report::Terminal out() { return report::Terminal::of(STDOUT_FILENO); }

void print_entries(const std::vector<Entry>& entries) {
  const report::Terminal terminal = out();
  std::size_t widest = 0;
  for (const Entry& entry : entries) widest = std::max(widest, report::display_width(entry.name));
  const std::size_t indent = widest + 2;
  for (const Entry& entry : entries) {
    std::string left = report::printable(entry.name, terminal.utf8);
    left += std::string(indent - report::display_width(left), ' ');
    for (const std::string& line : entry.lines) {
      std::cout << left
                << report::wrapped(report::printable(line, terminal.utf8), indent, terminal.width);
      left = std::string(indent, ' ');
    }
  }
  std::cout << std::flush;
}

bool is_quiet = false;
}  // namespace

void keep_quiet() { is_quiet = true; }

void Output::add_to(CLI::App& command) {
  command.add_flag("--json", json_, "Print JSON on stdout instead of text");
}

void Output::show(const std::vector<report::Table>& tables,
                  const nlohmann::ordered_json& json) const {
  json_ ? print(json) : print(tables);
}

void Output::show(const std::vector<Entry>& entries, const nlohmann::ordered_json& json) const {
  if (is_quiet) return;
  json_ ? print(json) : print_entries(entries);
}

void Output::show(std::string_view sentence, const nlohmann::ordered_json& json) const {
  json_ ? print(json) : print(sentence);
}

std::string Output::text_of(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void Output::print(const nlohmann::ordered_json& json) {
  if (!is_quiet) std::cout << text_of(json) << "\n" << std::flush;
}

void Output::print(const std::vector<report::Table>& tables) {
  if (is_quiet) return;
  for (std::size_t i = 0; i < tables.size(); ++i)
    std::cout << (i == 0 ? "" : "\n") << report::to_text(tables[i], out());
  std::cout << std::flush;
}

void Output::print(std::string_view sentence) {
  if (is_quiet) return;
  const report::Terminal terminal = out();
  std::cout << report::wrapped(report::printable(sentence, terminal.utf8), 0, terminal.width)
            << std::flush;
}

void Output::print_lines(std::string_view lines) {
  if (!is_quiet) std::cout << lines << std::flush;
}

void note(std::string_view text) {
  if (is_quiet) return;
  const report::Terminal terminal = report::Terminal::of(STDERR_FILENO);
  say("note: ", report::printable(text, terminal.utf8));
}

void note_slow_precisions(const std::vector<settings::RunSpec>& runs, c10::Device device) {
  std::vector<Precision> used;
  if (runs.empty()) used.push_back(mixed_precision_of(device.type()));
  for (const settings::RunSpec& run : runs) used.push_back(run.precision);
  std::set<std::string> said{""};
  for (const Precision& precision : used) {
    const std::string warning = recipes::slow_precision_warning(precision, device);
    if (said.insert(warning).second) note(warning);
  }
}

void show_network(const std::vector<report::Table>& about) {
  if (is_quiet) return;
  for (const report::Table& table : about)
    std::cerr << report::to_text(table, report::Terminal::of(STDERR_FILENO)) << "\n";
}

void say_how_to_resume(const std::string& command, const std::filesystem::path& run_folder,
                       std::string_view when) {
  const auto folders = recipes::checkpoint_folders(run_folder);
  if (folders.empty()) return;
  for (const std::filesystem::path& folder : folders) {
    try {
      std::cerr << "kept: " << checkpoint::find(folder).string() << "\n";
    } catch (const DataError& damaged) {
      note(damaged.what());
    }
  }
  std::cerr << "go on" << when << ": demi " << command << " --resume "
            << lab::shell_word(run_folder.string()) << "\n";
}

}  // namespace demi::cli
