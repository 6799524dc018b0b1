#include "demi/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <utility>

#include "demi/checkpoint/input_file.h"
#include "demi/core/atomic_file.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".tmp";
constexpr uint64_t kLongestNames = uint64_t{16} << 20;

/// Removes the number from the front of the text, and returns it; nullopt if there is none.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || text.starts_with('-')) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// NAME.NUMBER.tmp of a checkpoint, `last` or `best`.
bool is_leftover(std::string_view name) {
  if (!name.ends_with(kTemporary)) return false;
  name.remove_suffix(kTemporary.size());
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  std::string_view process = name.substr(dot + 1);
  name = name.substr(0, dot);
  return take_number(process) && process.empty() &&
         (name == "last" || name == "best" || parse_checkpoint_name(name));
}

std::optional<RemovalFailure> remove_tree(const fs::path& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) return RemovalFailure{path, code.value()};
  return std::nullopt;
}

std::string names_closing(std::string_view lines) {
  return fmt::format("crc32c {:08x}\n", crc32c(lines));
}

}  // namespace

std::string checkpoint_name(int64_t step, int64_t copy) {
  return copy == 1 ? fmt::format("{}{:08}", kStep, step)
                   : fmt::format("{}{:08}-{}", kStep, step, copy);
}

std::optional<StepName> parse_checkpoint_name(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  std::string_view rest = name.substr(kStep.size());
  const auto step = take_number(rest);
  int64_t copy = 1;
  if (step && rest.starts_with('-')) {
    rest.remove_prefix(1);
    copy = take_number(rest).value_or(0);
  }
  // Each name has one spelling.
  if (!step || copy < 1 || !rest.empty() || checkpoint_name(*step, copy) != name)
    return std::nullopt;
  return StepName{*step, copy};
}

bool is_single_file(const fs::path& path) {
  std::error_code code;
  return fs::is_regular_file(path, code) && path.filename() != "last" && path.filename() != "best";
}

std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

std::vector<std::string> checkpoints_in(const fs::path& folder, std::error_code& error) {
  std::vector<std::string> names;
  for (const fs::path& entry : entries_of(folder, error))
    if (std::string name = entry.filename(); parse_checkpoint_name(name))
      names.push_back(std::move(name));
  std::ranges::sort(names, {},
                    [](const std::string& name) { return *parse_checkpoint_name(name); });
  return names;
}

std::string names_to_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text.append(name).append("\n");
  return text + names_closing(text);
}

std::vector<std::string> read_names(const fs::path& file) {
  constexpr std::string_view kExpected = "names of checkpoints, one a line, then their checksum";
  std::error_code code;
  const fs::file_status status = fs::symlink_status(file, code);
  if (status.type() == fs::file_type::not_found) return {};
  if (code)
    throw DataError({.where = "checkpoint.find",
                     .what = file.string() + " cannot be read",
                     .seen = code.message(),
                     .accepted = kExpected});
  const InputFile input(file, "checkpoint.find", kExpected);
  if (input.bytes() > kLongestNames)
    input.fault()("the file is too long", 0, fmt::format("{} bytes", input.bytes()), kExpected);
  std::string text(input.bytes(), '\0');
  input.read(text.data(), 0, text.size());
  std::vector<std::string> names;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (!parse_checkpoint_name(line)) break;
    names.emplace_back(line);
  }
  const std::string_view rest = std::string_view(text).substr(begin);
  if (names.empty() || rest != names_closing(text.substr(0, begin)))
    input.fault()("the file is damaged", begin, rest, names_closing(text.substr(0, begin)));
  return names;
}

std::vector<std::string> kept_names(const std::string& saved,
                                    const std::vector<std::string>& before,
                                    const std::vector<std::string>& standing, int64_t keep_last) {
  std::vector<std::string> order{saved};
  const auto add = [&order](const std::string& name) {
    if (std::ranges::find(order, name) == order.end()) order.push_back(name);
  };
  for (const std::string& name : before)
    if (std::ranges::find(standing, name) != standing.end()) add(name);
  // Adds those that no file names: `last` was lost, or the process was killed before it was
  // replaced.
  std::for_each(standing.rbegin(), standing.rend(), add);
  // Keeps only the newest checkpoint of each step.
  std::vector<int64_t> steps;
  std::erase_if(order, [&steps](const std::string& name) {
    const int64_t step = parse_checkpoint_name(name)->step;
    const bool again = std::ranges::find(steps, step) != steps.end();
    steps.push_back(step);
    return again;
  });
  const auto most = static_cast<std::size_t>(keep_last);
  if (keep_last > 0 && order.size() > most) order.resize(most);
  return order;
}

std::optional<RemovalFailure> remove_leftovers(const fs::path& folder) {
  std::optional<RemovalFailure> result;
  std::error_code code;
  for (const fs::path& entry : entries_of(folder, code))
    if (is_leftover(entry.filename().string()))
      if (auto failure = remove_tree(entry)) result = std::move(failure);
  if (code) result = RemovalFailure{folder, code.value()};
  return result;
}

std::optional<RemovalFailure> remove_checkpoint(const fs::path& checkpoint) {
  const fs::path away = temporary_name(checkpoint);
  if (std::rename(checkpoint.c_str(), away.c_str()) != 0) return RemovalFailure{checkpoint, errno};
  return remove_tree(away);
}

}  // namespace demi::checkpoint
