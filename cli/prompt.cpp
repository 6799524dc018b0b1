#include "cli/prompt.h"

#include <fstream>
#include <iterator>

#include "lab/open_text.h"

namespace demi::cli {
namespace {

std::string all_of(std::istream& in) {
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

std::string text_of_prompt(const std::string& argument, std::istream& standard_input) {
  if (argument == "-") return all_of(standard_input);
  if (!argument.starts_with('@') || argument.size() == 1) return argument;
  const std::string file = argument.substr(1);
  std::ifstream in =
      lab::open_text(file, {.where = "generate",
                            .what = "the prompt cannot be read: " + file,
                            .accepted = "a text file",
                            .advice = "@ in front means a file; a prompt that begins with @ comes "
                                      "by standard input (--prompt -)"});
  return all_of(in);
}

}  // namespace demi::cli
