#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace demi::monitor {

/// Observes the outermost ops of forward passes in this thread: whether what they give holds Inf or
/// NaN. The device is not waited for until it is read.
class ForwardWatch {
 public:
  ForwardWatch() = default;
  ~ForwardWatch() { end(); }
  ForwardWatch(const ForwardWatch&) = delete;
  ForwardWatch& operator=(const ForwardWatch&) = delete;

  /// Ops from now on are those of a forward pass, which ends with end() or with a backward.
  void begin();
  void end();
  /// The ops that gave Inf or NaN, each by its name and how often it had run: "aten::mul 2".
  std::vector<std::string> spoiled();

 private:
  struct Open;
  static thread_local ForwardWatch* current;
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op);
  static void on_end(const at::RecordFunction& op, at::ObserverContext* context);
  void read(const at::RecordFunction& op, const Open& open);

  std::map<std::string, std::int64_t> times_;
  std::vector<std::pair<std::string, at::Tensor>> extremes_;  // (2): least, greatest
  int depth_ = 0;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace demi::monitor
