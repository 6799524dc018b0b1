#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace demi::distributed {

/// The end of a wait.
enum class WaitEnd { kOver, kRankLost, kTooLong };

/// Asks until one of the three is true, `is_over` first: what is over is over, even if a rank died.
inline WaitEnd poll(const std::function<bool()>& is_over, const std::function<bool()>& is_rank_lost,
                    std::chrono::steady_clock::time_point deadline) {
  while (true) {
    if (is_over()) return WaitEnd::kOver;
    if (is_rank_lost()) return WaitEnd::kRankLost;
    if (std::chrono::steady_clock::now() >= deadline) return WaitEnd::kTooLong;
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // of a step of milliseconds
  }
}

/// The result, or the exception, of `work` in a thread of its own. The thread continues alone if
/// nobody waits for it, so `work` owns what it uses.
template <class T>
std::shared_future<T> on_a_thread(std::function<T()> work) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(work));
  std::shared_future<T> result = task->get_future().share();
  std::thread([task] { (*task)(); }).detach();
  return result;
}

/// The result of `work` in a thread of its own; nullopt if it takes longer than `timeout`.
template <class T>
std::optional<T> within(std::chrono::milliseconds timeout, std::function<T()> work) {
  const std::shared_future<T> result = on_a_thread<T>(std::move(work));
  if (result.wait_for(timeout) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace demi::distributed
