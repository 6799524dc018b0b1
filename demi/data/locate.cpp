#include "demi/data/locate.h"

#include <cstdlib>

namespace demi::data {
namespace {

namespace fs = std::filesystem;

fs::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

}  // namespace

fs::path cache_folder() {
  if (const fs::path cache = from_environment("DEMI_CACHE"); !cache.empty()) return cache;
  if (const fs::path cache = from_environment("XDG_CACHE_HOME"); !cache.empty())
    return cache / "demi";
  return from_environment("HOME") / ".cache" / "demi";
}

std::vector<fs::path> places(const fs::path& data_dir, std::span<const std::string> subfolders) {
  std::vector<fs::path> found;
  const auto below = [&](const fs::path& root) {
    for (const std::string& subfolder : subfolders) found.push_back(root / subfolder);
  };
  if (!data_dir.empty()) {
    below(data_dir);
    found.push_back(data_dir);
    return found;
  }
  if (const fs::path given = from_environment("DEMI_DATA"); !given.empty()) {
    below(given);
    found.push_back(given);
  }
  below(cache_folder() / "data");
  below("/usr/share/datasets");
  return found;
}

}  // namespace demi::data
