#include "lab/profiler/trace_header.h"

#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>

namespace demi::profiler {
namespace {

constexpr std::string_view kKey = "\"host_name\"";
constexpr std::size_t kHeader = std::size_t{1} << 16U;  // a device's properties take some 500

struct Span {
  std::size_t begin = 0, size = 0;
};

// The text between the quotes of the key's value; empty if there is no such key before the events,
// whose own texts are not searched.
Span host_name_in(const std::string& header) {
  const std::size_t key = header.find(kKey);
  if (key == header.npos || key > header.find("\"traceEvents\"")) return {};
  const std::size_t open = header.find_first_not_of(": \t", key + kKey.size());
  if (open == header.npos || header[open] != '"') return {};
  std::size_t close = open + 1;
  while (close < header.size() && header[close] != '"') close += header[close] == '\\' ? 2 : 1;
  if (close >= header.size()) return {};
  return {open + 1, close - open - 1};
}

}  // namespace

bool blank_host_name(const std::filesystem::path& trace) {
  std::fstream file(trace, std::ios::in | std::ios::out | std::ios::binary);
  if (!file) return false;
  std::string header(kHeader, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  header.resize(static_cast<std::size_t>(file.gcount()));
  const Span name = host_name_in(header);
  if (name.size == 0) return true;
  file.clear();  // the end of a short file
  file.seekp(static_cast<std::streamoff>(name.begin));
  file << std::string(name.size, ' ') << std::flush;
  return file.good();
}

}  // namespace demi::profiler
