#include "cli/prompt.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "lab/open_text.h"

namespace demi::cli {
namespace {

std::string all_of(std::istream& in, const std::string& name) {
  std::optional<std::string> text = lab::rest_of(in);
  if (!text)
    throw DataError({.where = "generate",
                     .what = "the prompt cannot be read: " + name,
                     .seen = std::strerror(errno),
                     .accepted = "a text file"});
  return *std::move(text);
}

}  // namespace

std::string text_of_prompt(const std::string& argument, std::istream& standard_input) {
  if (argument == "-") return all_of(standard_input, "standard input");
  if (!argument.starts_with('@') || argument.size() == 1) return argument;
  const std::string file = argument.substr(1);
  std::ifstream in =
      lab::open_text(file, {.where = "generate",
                            .what = "the prompt cannot be read: " + file,
                            .accepted = "a text file",
                            .advice = "@ in front means a file; a prompt that begins with @ comes "
                                      "by standard input (--prompt -)"});
  return all_of(in, file);
}

}  // namespace demi::cli
