#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "demi/distributed/c10d.h"
#include "demi/distributed/process_group.h"

namespace demi::testing {

class GroupOn : public distributed::ProcessGroup {
 public:
  GroupOn(std::shared_ptr<distributed::Store> store, int rank, int world_size,
          const distributed::ProcessGroupOptions& options)
      : ProcessGroup(std::move(store), rank, world_size, options) {}
};

inline distributed::ProcessGroupOptions short_timeouts() {
  distributed::ProcessGroupOptions options;
  options.start_timeout = std::chrono::seconds(20);
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// Runs `body` on each rank, all of them threads of this process. Returns by rank what the body
/// threw; empty if it did not.
inline std::vector<std::string> on_ranks(
    int world_size, const std::function<void(distributed::ProcessGroup&)>& body,
    const distributed::ProcessGroupOptions& options = short_timeouts()) {
  const auto store = distributed::thread_store();
  std::vector<std::string> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        GroupOn group(store, rank, world_size, options);
        body(group);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace demi::testing
