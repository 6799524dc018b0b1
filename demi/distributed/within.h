#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace demi::distributed {

/// What `work` returns or throws, on a thread of its own; nothing if it takes longer than
/// `timeout`. It then goes on alone, so it owns what it uses.
template <class T>
std::optional<T> within(std::chrono::milliseconds timeout, std::function<T()> work) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(work));
  std::future<T> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(timeout) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace demi::distributed
