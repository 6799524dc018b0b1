#pragma once

#include <chrono>
#include <thread>

namespace demi {

/// For tests: waits until `is_so()`. False if it is not so after `limit`, by default longer than
/// any loaded machine needs.
template <class Condition>
bool wait_until(const Condition& is_so, std::chrono::milliseconds limit = std::chrono::minutes(2)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace demi
