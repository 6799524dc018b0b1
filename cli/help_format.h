#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>

namespace demi::cli {

/// --help in lines of `width` columns, the same by every version of CLI11: names in the first 34
/// columns, what they do behind them. Lines of a footer that begin with two blanks are commands and
/// options to be copied, and stay whole.
class HelpFormat : public CLI::Formatter {
 public:
  explicit HelpFormat(std::size_t width) : width_(width) {}

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;

 private:
  std::string entry(std::string names, const std::string& text) const;
  std::string paragraphs(const std::string& text) const;

  std::size_t width_;
};

}  // namespace demi::cli
