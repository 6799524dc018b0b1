#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/distributed/store.h"

namespace demi::distributed {

/// How often a rank gives a sign of life, and when it counts as gone.
struct WatchTimes {
  std::chrono::milliseconds interval{500};
  /// Without a sign of life for this long a rank counts as gone, though nothing else went wrong.
  std::chrono::milliseconds dead_after{60'000};
  /// As dead_after, after a collective failed on some rank.
  std::chrono::milliseconds suspect_after{1'500};
  /// As dead_after, until the ranks have met: those that have come wait for each other then.
  std::chrono::milliseconds meeting_dead_after{2'500};
};

/// What a rank last said of itself.
struct DEMI_API Sign {
  bool has_left = false;         // its ProcessGroup was destroyed
  std::int64_t count = 0;        // one more each interval
  std::int64_t collectives = 0;  // begun so far
  std::string text() const;
  static Sign parse(const std::string& text);
};

/// The key of a rank's sign in the session's part of the store.
std::string sign_key(int rank);
/// "rank 2", "ranks 1, 3", "ranks 0 to 6"
std::string ranks_text(const std::vector<int>& ranks);

/// What a watching rank knows of another one.
struct RankState {
  Sign last;                             // 0 signs: it has not come
  std::chrono::milliseconds silence{0};  // since `last` was new
};

/// What has become of the ranks after a collective failed: which are gone, have left, or lag
/// behind. Nothing if all are alive and equally far. `seen` is by rank.
DEMI_API std::optional<std::string> find_culprits(const std::vector<RankState>& seen,
                                                  std::chrono::milliseconds gone_after);

/// Whether the ranks of a session are alive. A thread gives this rank's signs of life; that of rank
/// 0 reads those of all, and all others read rank 0's. That a process of the same machine has ended
/// is seen without signs. The first finding is written to the store, so that all ranks report the
/// same.
class DEMI_API Liveness {
 public:
  /// `on_finding`: called at most once, from the thread, maybe after the destructor.
  Liveness(std::shared_ptr<Store> store, int rank, int world_size, WatchTimes times,
           std::function<void()> on_finding);
  /// Says that this rank leaves. Returns within seconds, also if the store does not answer.
  ~Liveness();

  /// All ranks have met: from here on they wait for each other in collectives alone, and one that
  /// is silent or that has left counts only where a collective fails, or after `dead_after`.
  void set_met();
  /// What this rank has found by itself. All ranks learn of it.
  void report(const std::string& what);

  /// Whether some rank has left, as each does at its end. One request to the store.
  static bool has_any_left(Store& store);

  /// One more collective has begun on this rank.
  void count_collective();
  /// What was found, if anything was.
  std::optional<std::string> finding() const;
  /// A collective of this rank has failed with this error. Waits, a few intervals, for the watch to
  /// find out why.
  std::optional<std::string> diagnose(const std::string& error);

 private:
  struct State;
  static void watch(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace demi::distributed
