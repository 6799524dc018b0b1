#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace demi::distributed {

/// What the process that started the ranks writes when one of them has ended with an error: which,
/// and how. It stands in the store itself, outside of any session.
inline constexpr const char* kEndedRank = "demi/ended-rank";

/// Keys and values that all ranks see: c10d's store behind an interface without its headers. Every
/// function throws what c10d throws if the store is gone.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Nothing if there is no such key. Does not wait for it.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// Adds to a number that begins with 0, and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t value) = 0;
  /// False if a key is still missing after `timeout`.
  virtual bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  /// The same store for another thread: a call that waits holds up others on the same object.
  virtual std::shared_ptr<Store> for_another_thread() = 0;
  /// "the store of rank 0 at node1:29500": for messages.
  virtual std::string name() const = 0;
  /// The rank whose end ends the store; -1 if it outlives all.
  virtual int host_rank() const = 0;
};

}  // namespace demi::distributed
