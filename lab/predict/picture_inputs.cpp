#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "lab/data/picture_folder.h"
#include "lab/predict/inputs.h"
#include "lab/predict/lines.h"

namespace demi::predict {
namespace {

namespace fs = std::filesystem;

struct Found {
  std::vector<std::string> pictures, others;
};

// Folders that links lead to are read, too, but none within itself.
void look_through(const fs::path& folder, std::set<fs::path> above, Found& found) {
  std::error_code code, unreadable;
  if (!above.insert(fs::canonical(folder, unreadable)).second || unreadable) return;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const fs::path& path = it->path();
    if (path.filename().native().starts_with('.')) continue;
    if (it->is_directory(unreadable))
      look_through(path, above, found);
    else
      (data::is_picture(path) ? found.pictures : found.others).push_back(path.native());
  }
  if (code) found.others.push_back(folder.native() + " (" + code.message() + ")");
}

void say_others(std::vector<std::string> others, const Sources& sources) {
  constexpr std::size_t kShown = 3;
  if (others.empty()) return;
  std::ranges::sort(others);
  const std::size_t more = others.size() - std::min(others.size(), kShown);
  others.resize(others.size() - more);
  sources.say(fmt::format("not .jpg, .jpeg or .png, and left out: {}{}", fmt::join(others, ", "),
                          more > 0 ? fmt::format(" and {} more", more) : ""));
}

void add_folder(const std::string& folder, const Sources& sources, std::vector<Input>& inputs) {
  Found found;
  look_through(folder, {}, found);
  std::ranges::sort(found.pictures);
  say_others(std::move(found.others), sources);
  if (found.pictures.empty())
    inputs.push_back({.name = folder, .error = folder + ": no .jpg, .jpeg or .png file below it"});
  for (std::string& picture : found.pictures) inputs.push_back({.name = std::move(picture)});
}

void add_path(const std::string& path, const Sources& sources, std::vector<Input>& inputs) {
  std::error_code code;
  if (fs::is_directory(path, code)) return add_folder(path, sources, inputs);
  Input input{.name = path};
  if (!fs::exists(path, code))
    input.error =
        fmt::format("\"{}\": {}", path, code ? code.message() : std::string(std::strerror(ENOENT)));
  else if (!fs::is_regular_file(path, code))
    input.error = path + ": no file that holds a picture";
  inputs.push_back(std::move(input));
}

}  // namespace

std::vector<Input> picture_inputs(std::span<const std::string> arguments, const Sources& sources) {
  std::vector<Input> inputs;
  for (const std::string& argument : arguments) {
    if (!names_lines(argument)) {
      add_path(argument, sources, inputs);
      continue;
    }
    for (Line& line : lines_of(argument, sources.standard_input))
      if (!line.text.empty()) add_path(line.text, sources, inputs);
  }
  return inputs;
}

}  // namespace demi::predict
