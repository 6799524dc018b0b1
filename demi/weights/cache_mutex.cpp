#include "demi/weights/cache_mutex.h"

#include <thread>

namespace demi::weights {

CacheMutex& cache_mutex() {
  static auto* mutex = new CacheMutex();
  return *mutex;
}

void CacheMutex::lock() {
  writers_.lock();
  for (Slot* slot : slots_)
    while (slot->held.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
}

void CacheMutex::unlock() {
  for (Slot* slot : slots_) slot->held.store(false, std::memory_order_release);
  writers_.unlock();
}

void CacheMutex::wait_for_the_writer() { const std::lock_guard until_done(cache_mutex().writers_); }

// A thread that comes back while it is being torn down gets a slot that is never taken away.
CacheMutex::Slot& CacheMutex::make_slot() {
  static thread_local constinit bool is_ending = false;
  struct Owner {
    Slot* slot;
    ~Owner() {
      delete slot;
      slot_ = nullptr;
      is_ending = true;
    }
  };
  slot_ = new Slot();
  if (!is_ending) static thread_local const Owner owner{slot_};
  return *slot_;
}

CacheMutex::Slot::Slot() {
  auto& mutex = cache_mutex();
  const std::lock_guard lock(mutex.writers_);
  mutex.slots_.push_back(this);
}

CacheMutex::Slot::~Slot() {
  auto& mutex = cache_mutex();
  const std::lock_guard lock(mutex.writers_);
  std::erase(mutex.slots_, this);
}

}  // namespace demi::weights
