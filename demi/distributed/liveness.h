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

/// The interval of a rank's signs of life, and the silence after which it counts as gone.
struct WatchTimes {
  std::chrono::milliseconds interval{500};
  /// The silence after which a rank counts as gone, if nothing else went wrong.
  std::chrono::milliseconds dead_after{60'000};
  /// The silence after which a rank counts as gone once a collective has failed on some rank.
  std::chrono::milliseconds suspect_after{1'500};
  /// The silence after which a rank counts as gone until the ranks have met: those that have come
  /// wait for each other then.
  std::chrono::milliseconds meeting_dead_after{2'500};
};

/// The last sign of life that a rank gave.
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

/// The state of a rank as another rank sees it.
struct RankState {
  Sign last;                             // 0 signs: it has not come
  std::chrono::milliseconds silence{0};  // since `last` was new
};

/// The cause of a failed collective: the ranks that are gone, have left, or lag behind. nullopt if
/// all are alive and equally far. `seen` is by rank.
DEMI_API std::optional<std::string> find_culprits(const std::vector<RankState>& seen,
                                                  std::chrono::milliseconds gone_after);

/// Whether the ranks of a session are alive. A thread gives this rank's signs of life; that of rank
/// 0 reads those of all, and all others read rank 0's. The end of a process of the same machine is
/// noticed without signs. The first finding is written to the store, so that all ranks report the
/// same.
class DEMI_API Liveness {
 public:
  /// `on_finding`: called at most once, from the thread, maybe after the destructor.
  Liveness(std::shared_ptr<Store> store, int rank, int world_size, WatchTimes times,
           std::function<void()> on_finding);
  /// Says that this rank leaves. Returns within seconds, also if the store does not answer.
  ~Liveness();

  /// Notes that all ranks have met: from here on they wait for each other in collectives alone. A
  /// rank that is silent or that has left then counts only if a collective fails, or after
  /// `dead_after`.
  void set_met();
  /// Reports a finding of this rank to all ranks.
  void report(const std::string& what);

  /// Whether some rank has left, as each does at its end. One request to the store.
  static bool has_any_left(Store& store);

  /// Counts a collective that has begun on this rank.
  void count_collective();
  /// The finding, if there is one.
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
