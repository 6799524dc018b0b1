#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace demi::tokens {

/// Calls each(text, tokens) for the lines of a file that Python wrote: a text as the hexadecimal
/// digits of its UTF-8 ("-": empty), then its tokens. Returns how many there are.
inline int for_each_answer(
    const std::filesystem::path& path,
    const std::function<void(const std::string&, const std::vector<int32_t>&)>& each) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream words(line);
    std::string hex, text;
    words >> hex;
    for (std::size_t i = 0; hex != "-" && i < hex.size(); i += 2)
      text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    each(text, {std::istream_iterator<int32_t>(words), {}});
  }
  return lines;
}

}  // namespace demi::tokens
