#include "cli/prompt.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "demi/core/error.h"

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
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::error_code code;
  const bool is_folder = std::filesystem::is_directory(file, code);
  if (!in || is_folder)
    throw DataError({.where = "generate",
                     .what = "the prompt cannot be read: " + file,
                     .seen = is_folder ? "a folder" : std::strerror(errno),
                     .accepted = "a text file",
                     .advice = "@ in front means a file; a prompt that begins with @ comes by "
                               "standard input (--prompt -)"});
  return all_of(in);
}

}  // namespace demi::cli
