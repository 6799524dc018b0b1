#pragma once

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

/// A store of which every call ends. c10d waits without end for an answer that the network has lost
/// without an end of the connection. After such a call all others throw at once.
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
