#include "lab/data/locate.h"

#include <cstdlib>

#include "demi/core/error.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

fs::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

}  // namespace

fs::path cache_folder() {
  if (const fs::path cache = from_environment("DEMI_CACHE"); !cache.empty()) {
    if (cache.is_absolute()) return cache;
    throw UsageError({.where = "DEMI_CACHE",
                      .what = "a relative path is another folder wherever one stands",
                      .seen = cache.string(),
                      .accepted = "an absolute path"});
  }
  // A relative one does not count, as its specification says.
  if (const fs::path cache = from_environment("XDG_CACHE_HOME"); cache.is_absolute())
    return cache / "demi";
  return from_environment("HOME") / ".cache" / "demi";
}

fs::path data_dir_of_environment() { return from_environment("DEMI_DATA_DIR"); }

std::vector<fs::path> places(const fs::path& data_dir, std::span<const std::string> subfolders) {
  std::vector<fs::path> found;
  const auto below = [&](const fs::path& root) {
    for (const std::string& subfolder : subfolders) found.push_back(root / subfolder);
  };
  if (const fs::path given = data_dir.empty() ? data_dir_of_environment() : data_dir;
      !given.empty()) {
    below(given);
    found.push_back(given);
    return found;
  }
  below(cache_folder() / "data");
  below("/usr/share/datasets");
  return found;
}

}  // namespace demi::data
