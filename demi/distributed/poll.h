#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace demi::distributed {

/// How a wait has ended.
enum class Waited { kOver, kRankLost, kTooLong };

/// Asks until one of the three is true, `is_over` first: what is over is over, whoever died.
inline Waited poll(const std::function<bool()>& is_over, const std::function<bool()>& is_rank_lost,
                   std::chrono::steady_clock::time_point deadline) {
  while (true) {
    if (is_over()) return Waited::kOver;
    if (is_rank_lost()) return Waited::kRankLost;
    if (std::chrono::steady_clock::now() >= deadline) return Waited::kTooLong;
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // of a step of milliseconds
  }
}

}  // namespace demi::distributed
