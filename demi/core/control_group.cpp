#include "demi/core/control_group.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace demi {
namespace {

namespace fs = std::filesystem;

// A hierarchy's controllers, empty for version 2, and a path in it.
struct Group {
  std::string controllers, path;
};

// A line of /proc/self/cgroup: "4:cpu,cpuacct:/user.slice", "0::/system.slice/train.service".
std::vector<Group> groups_of(const fs::path& root) {
  std::vector<Group> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    groups.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return groups;
}

// The folder in which a hierarchy is mounted, and the group that is seen there: maybe a container's
// own.
struct Mount {
  std::string controllers;  // with commas around each; empty: version 2
  std::string group;
  fs::path folder;
};

// Space, tab, line break and backslash are written as octal numbers: "\040".
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = std::string_view(text).substr(i + 1, 3);
    const bool escape = text[i] == '\\' && digits.size() == 3 &&
                        digits.find_first_not_of("01234567") == std::string_view::npos;
    plain += escape ? static_cast<char>(std::stoi(std::string(digits), nullptr, 8)) : text[i];
    if (escape) i += 3;
  }
  return plain;
}

// proc(5): "36 35 98:0 /group /folder rw,noatime shared:1 - cgroup cgroup rw,memory".
std::vector<Mount> mounts_of(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - cgroup");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string number, group, folder, type, source, options;
    before >> number >> number >> number >> group >> folder;
    after >> type >> source >> options;
    const fs::path inside = fs::path(unescaped(folder)).relative_path();
    mounts.push_back(
        {type == "cgroup2" ? "" : "," + options + ",", unescaped(group), root / inside});
  }
  return mounts;
}

// The group's folder and those around it, up to the mount.
std::vector<fs::path> folders_of(const Group& group, const Mount& mount) {
  std::string below = group.path;
  if (mount.group != "/") {
    const bool is_below = below == mount.group || below.starts_with(mount.group + "/");
    below = is_below ? below.substr(mount.group.size()) : "";
  }
  std::vector<fs::path> folders{mount.folder};
  for (const fs::path& part : fs::path(below).relative_path()) {
    if (part == "..") return {mount.folder};  // the group is outside of the mounted part
    folders.push_back(folders.back() / part);
  }
  return folders;
}

std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value && value >= 0) return value;
  return std::nullopt;  // "max", -1, no file
}

std::int64_t named_number(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string key;
  for (std::int64_t value = 0; file >> key >> value;)
    if (key == name) return value;
  return 0;
}

// Version 1 without a limit has the greatest whole number of pages.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 62;

std::optional<std::int64_t> free_bytes(const fs::path& folder, bool version_2) {
  const auto limit = number_in(folder / (version_2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = number_in(folder / (version_2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  const std::int64_t droppable =
      named_number(folder / "memory.stat", version_2 ? "inactive_file" : "total_inactive_file");
  return std::clamp<std::int64_t>(*limit - *used + droppable, 0, *limit);
}

std::optional<double> cores(const fs::path& folder, bool version_2) {
  double quota = 0, period = 0;
  if (version_2) {
    std::ifstream file(folder / "cpu.max");
    file >> quota >> period;  // "max 100000": quota stays 0
  } else {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  if (quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

template <class Number>
void lower(std::optional<Number>& least, const std::optional<Number>& limit) {
  if (limit && (!least || *limit < *least)) least = limit;
}

}  // namespace

ControlGroupLimits control_group_limits(const fs::path& root) {
  ControlGroupLimits limits;
  const std::vector<Mount> mounts = mounts_of(root);
  for (const Group& group : groups_of(root))
    for (const Mount& mount : mounts) {
      const bool version_2 = mount.controllers.empty();
      if (version_2 != group.controllers.empty()) continue;
      if (!version_2 && mount.controllers.find("," + group.controllers + ",") == std::string::npos)
        continue;
      for (const fs::path& folder : folders_of(group, mount)) {
        lower(limits.free_bytes, free_bytes(folder, version_2));
        lower(limits.cores, cores(folder, version_2));
      }
    }
  return limits;
}

}  // namespace demi
