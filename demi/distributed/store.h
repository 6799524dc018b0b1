#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::distributed {

/// The key under which the process that started the ranks writes which of them has ended with an
/// error, and how. It belongs to the store itself, not to a session.
inline constexpr const char* kEndedRank = "demi/ended-rank";

/// Keys and values that all ranks see: c10d's store behind an interface without its headers. Every
/// function throws what c10d throws if the store is gone.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The value; none if there is no such key, for which it does not wait.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// Adds to a number that begins with 0, and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t value) = 0;
  /// False if a key is still missing after `timeout`.
  virtual bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  /// Another object of this store, for another thread: a call that waits holds up others on the
  /// same object.
  virtual std::shared_ptr<Store> for_another_thread() = 0;
  /// "the store of rank 0 at node1:29500": for messages.
  virtual std::string name() const = 0;
  /// The rank whose end ends the store; -1 if it outlives all.
  virtual int host_rank() const = 0;
};

/// The keys of another store that begin with a prefix, which callers leave out.
class PrefixedStore final : public Store {
 public:
  PrefixedStore(std::shared_ptr<Store> store, std::string prefix);

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  std::shared_ptr<Store> for_another_thread() override;
  std::string name() const override { return store_->name(); }
  int host_rank() const override { return store_->host_rank(); }

 private:
  std::shared_ptr<Store> store_;
  std::string prefix_;
};

/// A store whose calls all end. c10d waits without end for an answer if the network drops out but
/// the connection does not close. After such a call all others throw at once.
class DEMI_API StoreWithTimeout final : public Store {
 public:
  /// `timeout`: of each call, for wait() beyond its own. Calls throw DeviceError after it.
  StoreWithTimeout(std::shared_ptr<Store> store, std::chrono::milliseconds timeout);
  ~StoreWithTimeout() override;
  StoreWithTimeout(const StoreWithTimeout&) = delete;
  StoreWithTimeout& operator=(const StoreWithTimeout&) = delete;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  std::shared_ptr<Store> for_another_thread() override;
  std::string name() const override { return store_->name(); }
  int host_rank() const override { return store_->host_rank(); }

 private:
  struct Worker;
  void call(std::function<void()> request, std::chrono::milliseconds more = {});

  std::shared_ptr<Store> store_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Worker> worker_;  // shared with its thread, which a lost answer keeps for ever
};

}  // namespace demi::distributed
