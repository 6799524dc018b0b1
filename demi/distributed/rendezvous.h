#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "demi/core/error.h"
#include "demi/core/export.h"
#include "demi/distributed/store.h"

namespace demi::distributed {

class Liveness;

/// Lets the ranks of one start find each other in a store that may hold what earlier starts left:
/// torchrun's agents keep one store for all restarts, and each agent counts the restarts for
/// itself. Each rank writes a number of its own, drawn at random, and rank 0 answers it with the id
/// of this session. Nobody asks for the answer to a number of an earlier start. All other keys
/// begin with the id.
class DEMI_API Rendezvous {
 public:
  /// `lost`: asked now and then; why waiting has no sense any more. `timeout`: of both calls
  /// together.
  Rendezvous(std::shared_ptr<Store> store, int rank, int world_size,
             std::chrono::milliseconds timeout, std::function<std::optional<std::string>()> lost);

  /// The id: rank 0 makes one, the others wait for it. Throws DeviceError if rank 0 does not come,
  /// and for a rank that is there twice.
  std::string session();

  /// Waits until all ranks are in the session. Throws DeviceError on all of them that names those
  /// that are not, that disagree on the world size, or that `liveness`, which is the session's,
  /// has found gone.
  void gather(const std::string& session, Liveness& liveness);

 private:
  using Clock = std::chrono::steady_clock;

  std::string find_session();
  void wait_for_all(const std::string& session, Liveness& liveness);
  void check_no_other_session();
  bool is_alive(const std::string& session, int rank);
  void check_lost() const;
  void check_lost(Liveness& liveness) const;
  void let_all_in(const std::string& session, Liveness& liveness);
  [[noreturn]] void refuse_second(int rank) const;
  /// Throws it, and reports it to the other ranks.
  [[noreturn]] void end_all(Liveness& liveness, const Complaint& why) const;

  std::shared_ptr<Store> store_;
  int rank_, world_size_;
  std::chrono::milliseconds timeout_, pause_;
  Clock::time_point deadline_;
  std::function<std::optional<std::string>()> lost_;
  std::string number_;
  std::map<std::string, std::string> signs_;  // as they were seen last
};

}  // namespace demi::distributed
