#pragma once

#include <c10/core/Device.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

// The method of every benchmark here.
//
// Results are checked before anything is timed. Then contenders take turns: a round times each of
// them once, so that another program on the machine slows all of them and not one. The first calls
// are not counted: they make kernels, caches and memory that later ones reuse. A device works
// asynchronously, so a time runs from an idle device to an idle device.
//
// The least time of the rounds is what the code costs on this machine if nothing disturbs it; the
// median is what a user sees; its distance from the least shows how quiet the machine was.
namespace demi::bench {

/// Times of one contender, one a round, in any unit. Ask for figures only after one was added.
class Times {
 public:
  void add(double time) { sorted_.insert(std::ranges::upper_bound(sorted_, time), time); }
  bool empty() const { return sorted_.empty(); }

  double least() const { return sorted_.front(); }
  double most() const { return sorted_.back(); }
  double median() const {
    const std::size_t half = sorted_.size() / 2;
    return sorted_.size() % 2 == 1 ? sorted_[half] : (sorted_[half - 1] + sorted_[half]) / 2;
  }
  /// The excess of the median over the least, as a share of the least; 0.1: 10 %.
  double spread() const { return median() / least() - 1; }

 private:
  std::vector<double> sorted_;
};

/// Milliseconds of `work`, the device's part included.
inline double milliseconds(const c10::Device& device, const std::function<void()>& work) {
  const auto wait = [&] {
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
  };
  wait();
  const auto start = std::chrono::steady_clock::now();
  work();
  wait();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Nanoseconds a call on the host, over many calls, after a tenth of them that are not counted.
inline double nanoseconds(int calls, const std::function<void()>& call) {
  for (int i = 0; i < calls / 10 + 1; ++i) call();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
             .count() /
         calls;
}

/// Work that takes turns. `before` is called before each `work`, and is not timed.
struct TimedWork {
  std::function<void()> work;
  std::function<void()> before = {};
};

/// Milliseconds of each contender, after `warmup` rounds that are not counted.
inline std::vector<Times> take_turns(const c10::Device& device, int warmup, int rounds,
                                     const std::vector<TimedWork>& contenders) {
  std::vector<Times> all(contenders.size());
  for (int round = -warmup; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      if (contenders[i].before) contenders[i].before();
      const double ms = milliseconds(device, contenders[i].work);
      if (round >= 0) all[i].add(ms);
    }
  }
  return all;
}

}  // namespace demi::bench
