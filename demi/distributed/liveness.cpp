#include "demi/distributed/liveness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "demi/core/error.h"

namespace demi::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kLeft = "left_count";
std::string left_key(int rank) { return fmt::format("left/{}", rank); }
constexpr const char* kFinding = "finding";
constexpr const char* kSuspicion = "suspicion";
std::string suspicion_key(int rank) { return fmt::format("suspicion/{}", rank); }

std::vector<std::string> keys(int world_size, std::string (*key)(int)) {
  std::vector<std::string> all;
  for (int rank = 0; rank < world_size; ++rank) all.push_back(key(rank));
  return all;
}

std::string process_key(int rank) { return fmt::format("process/{}", rank); }

// The start of the process, in the kernel's ticks. "" if there is no such process, or if it has
// ended and nobody has waited for it. (proc(5): the name may hold any character, so the last
// parenthesis counts.)
std::string start_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream words(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
  constexpr std::size_t kState = 0, kStart = 19;
  if (fields.size() <= kStart || fields[kState] == "Z" || fields[kState] == "X") return "";
  return fields[kStart];
}

// "MACHINE PID START"; the first word is the same for processes that see each other in /proc.
std::string this_process() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  const std::string pids = std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
  const std::string pid = std::to_string(::getpid());
  return fmt::format("{}{} {} {}", boot, pids, pid, start_of(pid));
}

// False of one that this process does not see.
bool has_ended(const std::string& process, const std::string& own) {
  std::istringstream words(process), own_words(own);
  std::string machine, pid, start, here;
  words >> machine >> pid >> start;
  own_words >> here;
  return machine == here && !start.empty() && start_of(pid) != start;
}

double seconds(milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

}  // namespace

std::string sign_key(int rank) { return fmt::format("sign/{}", rank); }

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const bool run = ranks.size() > 2 && ranks.back() - ranks.front() + 1 == std::ssize(ranks);
  return run ? fmt::format("ranks {} to {}", ranks.front(), ranks.back())
             : fmt::format("ranks {}", fmt::join(ranks, ", "));
}

std::string Sign::text() const {
  return fmt::format("{} {} {}", has_left ? "left" : "here", count, collectives);
}

Sign Sign::parse(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  std::int64_t count = 0, collectives = 0;
  if (!(words >> word >> count >> collectives)) return {};
  return {word == "left", count, collectives};
}

std::optional<std::string> find_culprits(const std::vector<RankState>& seen,
                                         milliseconds gone_after) {
  std::vector<int> gone, left, behind;
  std::int64_t first = 0, last = std::numeric_limits<std::int64_t>::max();
  milliseconds silence{0};
  for (int rank = 0; rank < std::ssize(seen); ++rank) {
    const RankState& one = seen[static_cast<size_t>(rank)];
    first = std::max(first, one.last.collectives);
    last = std::min(last, one.last.collectives);
    if (one.last.has_left) {
      left.push_back(rank);
    } else if (one.silence >= gone_after) {
      gone.push_back(rank);
      silence = std::max(silence, one.silence);
    }
  }
  if (!gone.empty())
    return fmt::format(
        "{}: no sign of life for {:.1f} s, so the process was killed, has crashed or hangs, or the "
        "network to it fails",
        ranks_text(gone), seconds(silence));
  if (!left.empty())
    return fmt::format("{} left the group: the program there ended or threw an exception",
                       ranks_text(left));
  for (int rank = 0; rank < std::ssize(seen); ++rank)
    if (seen[static_cast<size_t>(rank)].last.collectives == last) behind.push_back(rank);
  if (first == last) return std::nullopt;
  return fmt::format("{} alive but behind: collective {} has begun there, {} elsewhere",
                     ranks_text(behind) + (behind.size() == 1 ? " is" : " are"), last, first);
}

/// Shared with the thread, which may outlive the Liveness if the store does not answer.
struct Liveness::State {
  std::shared_ptr<Store> store;
  int rank = 0, world_size = 1;
  WatchTimes times;
  std::function<void()> on_finding;

  std::atomic<std::int64_t> collectives{0};
  std::atomic<bool> has_met{false};
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool leaves = false, ended = false;
  std::optional<std::string> suspicion;         // a collective of this rank failed: its error
  std::optional<Clock::time_point> look_began;  // while the thread looks
  std::optional<std::string> reported, finding;

  // The rest is for the thread alone.
  std::int64_t beats = 0;
  std::vector<RankState> seen;
  std::vector<Clock::time_point> since;
  std::optional<Clock::time_point> suspicious_since;
  bool has_said_suspicion = false;
  std::string process;                   // this one
  std::map<int, std::string> processes;  // of the ranks whose end this one would see
  std::set<int> ended_ranks;             // of them, after they had left

  void say(bool has_left) {
    store->set(sign_key(rank), Sign{has_left, ++beats, collectives}.text());
  }
  bool is_watched(int other) const { return other != rank && (rank == 0 || other == 0); }
  void observe() {
    for (int other = 0; other < world_size; ++other) {
      auto& one = seen[static_cast<size_t>(other)];
      auto& since_then = since[static_cast<size_t>(other)];
      if (is_watched(other)) {
        const std::optional<std::string> text = store->get(sign_key(other));
        const Sign sign = text ? Sign::parse(*text) : Sign();
        if (sign.count != one.last.count || sign.has_left) since_then = Clock::now();
        one.last = sign;
      } else {
        since_then = Clock::now();
        one.last.collectives = collectives;
      }
      one.silence = std::chrono::duration_cast<milliseconds>(Clock::now() - since_then);
    }
  }
  void find(const std::string& what) {
    {
      const std::lock_guard lock(mutex);
      if (finding) return;
      finding = what;
    }
    changed.notify_all();
    on_finding();
  }
  // The first rank to write counts.
  void publish(const std::string& what) {
    if (store->add("findings", 1) == 1) store->set(kFinding, what);
    find(what);
  }
  // The ranks that are gone though nothing has failed. Until all have met, ranks that have left
  // count as gone, too: before the collective in which they meet, since a rank that returns from it
  // may be the first to leave.
  std::optional<std::string> without_a_failure() const {
    const bool met = has_met;
    std::vector<RankState> gone = seen;
    for (RankState& one : gone) {
      one.last.has_left = one.last.has_left && !met && one.last.collectives == 0;
      one.last.collectives = 0;
      if (one.last.count == 0) one.silence = milliseconds(0);
    }
    return find_culprits(gone, met ? times.dead_after : times.meeting_dead_after);
  }
  std::optional<std::string> ended_process();
  /// The store has not answered for longer than a failed collective waits. Call it with the lock
  /// held.
  bool is_stuck() const {
    return look_began && Clock::now() - *look_began > times.suspect_after + times.interval;
  }
  std::string of_store(bool host_has_left) const;
  std::string of_network() const;
  void look();
};

// A connection that breaks is noticed by ranks that wait for data on it alone. Rank 0 sees the ends
// of all processes of its machine, each other rank those of rank 0 and of its neighbours.
std::optional<std::string> Liveness::State::ended_process() {
  if (process.empty()) store->set(process_key(rank), process = this_process());
  for (int other = 0; other < world_size; ++other) {
    const bool sees = rank == 0 || other == 0 || std::abs(other - rank) == 1;
    if (!sees || other == rank || ended_ranks.contains(other)) continue;
    auto known = processes.find(other);
    if (known == processes.end()) {
      const auto said = store->get(process_key(other));
      if (!said) continue;
      known = processes.emplace(other, *said).first;
    }
    if (!has_ended(known->second, process)) continue;
    const auto sign = store->get(sign_key(other));
    if (!sign || !Sign::parse(*sign).has_left)
      return fmt::format(
          "rank {}: no sign of life, as its process has ended: it was killed or has "
          "crashed",
          other);
    ended_ranks.insert(other);
  }
  return std::nullopt;
}

std::string Liveness::State::of_store(bool host_has_left) const {
  const int host = store->host_rank();
  if (host < 0 || host == rank)
    return fmt::format("{} does not answer rank {} any more", store->name(), rank);
  if (host_has_left)
    return fmt::format("rank {} left the group, and with it {}", host, store->name());
  return fmt::format(
      "rank {}: {} does not answer rank {} any more, so the process was killed or has crashed, or "
      "the network between them fails",
      host, store->name(), rank);
}

// Every rank is alive, and all have begun the same collectives.
std::string Liveness::State::of_network() const {
  std::vector<int> by;
  std::string error;
  for (int other = 0; other < world_size; ++other) {
    const auto said = store->get(suspicion_key(other));
    if (!said) continue;
    by.push_back(other);
    if (error.empty()) error = *said;
  }
  return fmt::format(
      "the network between the ranks fails, all of which are alive, or they do not call the same "
      "collectives: seen by {} ({})",
      ranks_text(by), error);
}

void Liveness::State::look() {
  say(false);
  if (const auto other = store->get(kFinding)) return find(*other);
  observe();
  std::optional<std::string> error, own;
  {
    const std::lock_guard lock(mutex);
    error = suspicion;
    own = reported;
  }
  if (own) return publish(*own);
  if (const auto ended = ended_process()) return publish(*ended);
  // A rank that has left is not silent.
  if (const auto gone = without_a_failure()) return publish(*gone);
  if (error && !has_said_suspicion) {
    store->set(suspicion_key(rank), *error);
    store->set(kSuspicion, "yes");
    has_said_suspicion = true;
  }
  if (!error && (rank != 0 || !store->get(kSuspicion))) return;
  // Silence is counted from the suspicion on: a machine under load is late now and then.
  if (!suspicious_since) suspicious_since = Clock::now();
  const bool is_time = Clock::now() - *suspicious_since > times.suspect_after + times.interval;
  std::vector<RankState> others = seen;
  if (rank != 0) others.resize(1);  // it knows of rank 0 alone
  const auto culprits = find_culprits(others, times.suspect_after);
  const bool left = std::any_of(others.begin(), others.end(),
                                [](const RankState& one) { return one.last.has_left; });
  if (culprits && (is_time || left)) return publish(*culprits);
  if (is_time && rank == 0) publish(of_network());
}

void Liveness::watch(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  // A report of this rank is sent before it leaves.
  while ((!state->leaves || state->reported) && !state->finding) {
    state->look_began = Clock::now();
    lock.unlock();
    try {
      state->look();
    } catch (const std::exception&) {
      const int host = state->store->host_rank();
      state->find(
          state->of_store(host >= 0 && state->seen[static_cast<size_t>(host)].last.has_left));
    }
    lock.lock();
    state->look_began.reset();
    // After a failure the ranks learn the finding without delay.
    const bool suspects = state->suspicion.has_value();
    state->changed.wait_for(
        lock, suspects ? state->times.interval / 5 : state->times.interval, [&] {
          return state->leaves || state->reported.has_value() || state->finding.has_value() ||
                 state->suspicion.has_value() != suspects;
        });
  }
  // The rank that has the store stays until the others have read its finding.
  const bool found = state->finding.has_value();
  lock.unlock();
  try {
    state->say(/*has_left=*/!found);
    state->store->set(left_key(state->rank), "1");
    state->store->add(kLeft, 1);
    if (state->store->host_rank() == state->rank)
      state->store->wait(keys(state->world_size, left_key), 3 * state->times.interval);
  } catch (const std::exception&) {
    // The store is gone: nobody can be notified.
  }
  lock.lock();
  state->ended = true;
  state->changed.notify_all();
}

Liveness::Liveness(std::shared_ptr<Store> store, int rank, int world_size, WatchTimes times,
                   std::function<void()> on_finding)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
  state_->world_size = world_size;
  state_->times = times;
  state_->on_finding = std::move(on_finding);
  state_->seen.resize(static_cast<size_t>(world_size));
  state_->since.assign(static_cast<size_t>(world_size), Clock::now());
  std::thread([state = state_] { watch(state); }).detach();
}

Liveness::~Liveness() {
  std::unique_lock lock(state_->mutex);
  state_->leaves = true;
  state_->changed.notify_all();
  if (state_->is_stuck()) return;
  state_->changed.wait_for(lock, 6 * state_->times.interval, [&] { return state_->ended; });
}

void Liveness::set_met() { state_->has_met = true; }

void Liveness::report(const std::string& what) {
  const std::lock_guard lock(state_->mutex);
  state_->reported = what;
  state_->changed.notify_all();
}

bool Liveness::has_any_left(Store& store) { return store.get(kLeft).has_value(); }

void Liveness::count_collective() { ++state_->collectives; }

std::optional<std::string> Liveness::finding() const {
  const std::lock_guard lock(state_->mutex);
  return state_->finding;
}

std::optional<std::string> Liveness::diagnose(const std::string& error) {
  const WatchTimes& times = state_->times;
  std::unique_lock lock(state_->mutex);
  if (!state_->suspicion) state_->suspicion = error;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, times.suspect_after + 5 * times.interval,
                           [&] { return state_->finding.has_value(); });
  if (!state_->finding && state_->is_stuck()) state_->finding = state_->of_store(false);
  return state_->finding;
}

}  // namespace demi::distributed
