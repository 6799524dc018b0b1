#include "demi/checkpoint/run_id.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): each bit depends on all bits.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// The runs that this process has begun or taken over. Never destroyed: threads may outlive static
/// objects.
struct Runs {
  std::mutex mutex;
  pid_t process = 0;  // a forked one is another run
  std::string own;
  std::set<std::string> taken_over;
  std::set<fs::path> warned;  // folders

  static Runs& get() {
    static auto* const runs = new Runs;
    return *runs;
  }

  void begin() {
    if (process == ::getpid()) return;
    process = ::getpid();
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    own = fmt::format("{:016x}",
                      mixed(static_cast<uint64_t>(now) + mixed(static_cast<uint64_t>(process))));
    taken_over = {own};
    warned.clear();
  }
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// The run of a checkpoint in the folder; empty without a readable manifest.
const std::string& run_of(const fs::path& folder, HeldFolder& held, const std::string& name) {
  const auto [known, is_new] = held.marks.try_emplace(name);
  if (!is_new) return known->second.run;
  try {
    Manifest manifest = read_manifest(folder / name);
    known->second = {std::move(manifest.run), manifest.keep, std::move(manifest.scores)};
  } catch (const DataError&) {  // NOLINT(bugprone-empty-catch): damaged, or the user's own
  }
  return known->second.run;
}

/// The names in `last` whose checkpoints are there. A damaged one is no reason not to save: it is
/// replaced.
std::vector<std::string> named_in_last(const fs::path& folder,
                                       const std::vector<std::string>& standing) {
  std::vector<std::string> names;
  try {
    names = read_names(folder / "last");
  } catch (const DataError&) {
    return {};
  }
  std::erase_if(names, [&](const std::string& name) { return !contains(standing, name); });
  return names;
}

}  // namespace

void take_over_run(const std::string& run) {
  if (run.empty()) return;
  Runs& runs = Runs::get();
  const std::lock_guard guard(runs.mutex);
  runs.begin();
  runs.taken_over.insert(run);
}

OwnCheckpoints own_checkpoints(const fs::path& folder, HeldFolder& held,
                               const std::vector<std::string>& standing, const std::string& run) {
  Runs& runs = Runs::get();
  const std::lock_guard guard(runs.mutex);
  runs.begin();
  std::erase_if(held.marks, [&](const auto& known) { return !contains(standing, known.first); });
  const auto of = [&](const std::string& name) { return run_of(folder, held, name); };
  OwnCheckpoints own{.run = run, .named = named_in_last(folder, standing)};
  if (!own.named.empty() && !runs.taken_over.contains(of(own.named.front()))) own.named.clear();
  // The newest checkpoint that was taken over names the run that continues here.
  std::vector<std::string> newest_first = own.named;
  newest_first.insert(newest_first.end(), standing.rbegin(), standing.rend());
  for (const std::string& name : newest_first)
    if (own.run.empty() && of(name) != kNoRunId && runs.taken_over.contains(of(name)))
      own.run = of(name);
  if (own.run.empty()) own.run = runs.own;
  for (const std::string& name : standing)
    if (contains(own.named, name) || of(name) == own.run)
      own.standing.push_back(name);
    else if (!of(name).empty())
      own.others.push_back(name);
  return own;
}

void warn_of_other_runs(const fs::path& folder, const OwnCheckpoints& own) {
  if (own.others.empty()) return;
  {
    Runs& runs = Runs::get();
    const std::lock_guard guard(runs.mutex);
    if (!runs.warned.insert(folder).second) return;
  }
  TORCH_WARN("[checkpoint.save] ", folder.string(), " holds checkpoints of another run, ",
             own.others.back(), own.others.size() > 1 ? " among them" : "",
             ", which stay; `last` names this run's from now on. To resume that run, load its "
             "checkpoint before saving; else save to another folder");
}

}  // namespace demi::checkpoint
