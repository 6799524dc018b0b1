#include "demi/distributed/store.h"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "demi/core/error.h"

namespace demi::distributed {

PrefixedStore::PrefixedStore(std::shared_ptr<Store> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {}

void PrefixedStore::set(const std::string& key, const std::string& value) {
  store_->set(prefix_ + key, value);
}

std::optional<std::string> PrefixedStore::get(const std::string& key) {
  return store_->get(prefix_ + key);
}

std::int64_t PrefixedStore::add(const std::string& key, std::int64_t value) {
  return store_->add(prefix_ + key, value);
}

bool PrefixedStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  std::vector<std::string> named;
  for (const std::string& key : keys) named.push_back(prefix_ + key);
  return store_->wait(named, timeout);
}

std::shared_ptr<Store> PrefixedStore::for_another_thread() {
  return std::make_shared<PrefixedStore>(store_->for_another_thread(), prefix_);
}

struct StoreWithTimeout::Worker {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> request;
  bool has_ended = false;  // the request
  std::exception_ptr error;
  bool is_over = false, is_lost = false;

  static void serve(const std::shared_ptr<Worker>& self) {
    std::unique_lock lock(self->mutex);
    for (;;) {
      self->changed.wait(lock, [&] { return self->is_over || self->request; });
      if (self->is_over) return;
      const std::function<void()> request = std::exchange(self->request, nullptr);
      lock.unlock();
      std::exception_ptr error;
      try {
        request();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      self->error = error;
      self->has_ended = true;
      self->changed.notify_all();
    }
  }
};

StoreWithTimeout::StoreWithTimeout(std::shared_ptr<Store> store, std::chrono::milliseconds timeout)
    : store_(std::move(store)), timeout_(timeout), worker_(std::make_shared<Worker>()) {
  std::thread([worker = worker_] { Worker::serve(worker); }).detach();
}

StoreWithTimeout::~StoreWithTimeout() {
  const std::lock_guard lock(worker_->mutex);
  worker_->is_over = true;
  worker_->changed.notify_all();
}

void StoreWithTimeout::call(std::function<void()> request, std::chrono::milliseconds more) {
  const std::chrono::milliseconds longest = timeout_ + more;
  std::unique_lock lock(worker_->mutex);
  if (!worker_->is_lost) {
    worker_->has_ended = false;
    worker_->request = std::move(request);
    worker_->changed.notify_all();
    worker_->is_lost =
        !worker_->changed.wait_for(lock, longest, [&] { return worker_->has_ended; });
  }
  if (worker_->is_lost)
    throw DeviceError(
        {"distributed.store", "the store does not answer", store_->name(),
         fmt::format("an answer within {:.1f} s", static_cast<double>(longest.count()) / 1e3),
         "see whether the network to it is whole"});
  if (worker_->error) std::rethrow_exception(std::exchange(worker_->error, nullptr));
}

// A request that is lost may write its answer when nobody waits any more: the answer is its own.
void StoreWithTimeout::set(const std::string& key, const std::string& value) {
  call([store = store_, key, value] { store->set(key, value); });
}

std::optional<std::string> StoreWithTimeout::get(const std::string& key) {
  auto answer = std::make_shared<std::optional<std::string>>();
  call([store = store_, key, answer] { *answer = store->get(key); });
  return std::move(*answer);
}

std::int64_t StoreWithTimeout::add(const std::string& key, std::int64_t value) {
  auto answer = std::make_shared<std::int64_t>(0);
  call([store = store_, key, value, answer] { *answer = store->add(key, value); });
  return *answer;
}

bool StoreWithTimeout::wait(const std::vector<std::string>& keys,
                            std::chrono::milliseconds timeout) {
  auto answer = std::make_shared<bool>(false);
  call([store = store_, keys, timeout, answer] { *answer = store->wait(keys, timeout); }, timeout);
  return *answer;
}

std::shared_ptr<Store> StoreWithTimeout::for_another_thread() {
  auto answer = std::make_shared<std::shared_ptr<Store>>();
  call([store = store_, answer] { *answer = store->for_another_thread(); });
  return std::make_shared<StoreWithTimeout>(std::move(*answer), timeout_);
}

}  // namespace demi::distributed
