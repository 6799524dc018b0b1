#pragma once

// CUDA graphs without a GPU: graphs that record the work of second_device.h and replay it. What
// holds for a CUDA graph holds for these:
//   - a replay runs the same operations on the same addresses; what the host held, numbers of the
//     CPU and arguments of kernels, is as it was when it was recorded. Random numbers are new.
//   - nothing has run when the recording is over: memory and random numbers are as before, and what
//     it allocated holds no numbers. (LibTorch's operations do run meanwhile, for their shapes.
//     Kernels of EmulatedDevice do not.)
//   - memory of the recording is the graph's. What nobody holds any more reads as NaN after each
//     replay. So does memory that was there before and has been freed since: a replay that reads it
//     computes with NaN, and one that writes to it throws. (Kernels of EmulatedDevice do not say
//     what they write to: it throws once the bytes have changed, which those of a NaN may not.)
//   - what would wait for the device throws, and so does the end of the recording.
// A replay has run when it returns. Stricter than CUDA: one recording at a time, no pinned memory.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/graph/device_graph.h"
#include "demi/step/emulated_device_testing.h"
#include "tests/second_device.h"

namespace second_device {

/// Kernels of EmulatedDevice, which are recorded in the order of the program.
class Kernels final : public demi::optim::testing::Recorder {
 public:
  static void listen() {
    static auto* kernels = new Kernels;  // never destroyed: any thread may launch
    demi::optim::testing::EmulatedDevice::record_by(kernels);
  }
  bool records(void* stream) const override { return UnderWay::on(id(stream)) != nullptr; }
  const char* put(void* stream, std::function<void()> work) override {
    const auto capture = UnderWay::on(id(stream));
    return capture && capture->put(id(stream), std::move(work))
               ? nullptr
               : "operation failed due to a previous error during capture";
  }

 private:
  static c10::StreamId id(void* stream) { return reinterpret_cast<c10::StreamId>(stream); }
};

class Graph final : public demi::graph::DeviceGraph {
 public:
  explicit Graph(std::shared_ptr<Pool> pool) : pool_(std::move(pool)), memory_(pool_) {}
  ~Graph() override { abandon(); }

  void begin() override {
    const c10::StreamId stream = current_stream().id();
    require("graph.begin", state_ == State::fresh, "this graph has been recorded before");
    require("graph.begin", stream != 0, "operation not permitted on the default stream");
    Kernels::listen();
    auto capture = std::make_shared<Capture>(stream, pool_);
    require("graph.begin", UnderWay::begin(capture), "another graph is being recorded");
    memory_->begin();
    capture_ = std::move(capture);
    state_ = State::recording;
  }

  void end() override {
    require("graph.end", state_ == State::recording, "no recording is under way");
    const bool here = current_stream().id() == capture_->origin();
    const std::string failure = finish();
    require("graph.end", here, "capture must end on the same stream it began on");
    require("graph.end", failure.empty(), failure);
    state_ = State::ready;
  }

  void abandon() noexcept override {
    if (state_ == State::recording) finish();
    if (state_ == State::useless) memory_.reset();
  }

  void replay() override {
    require("graph.replay", state_ == State::ready, "nothing has been recorded");
    require("graph.replay", !UnderWay::on(current_stream().id()),
            "operation not permitted when stream is capturing");
    require_none_freed(memory_->freed_among(written_));
    memory_->lose_what_is_freed();
    for (const auto& work : work_) work();
    memory_->lose_what_is_freed();
    require_none_freed(memory_->changed_after_free());
  }

  /// Number of operations and kernels in it.
  std::size_t size() const { return work_.size(); }
  const std::shared_ptr<Pool>& pool() const { return pool_; }

 private:
  enum class State { fresh, recording, ready, useless };

  static void require(std::string_view where, bool accepted, std::string_view what,
                      std::string_view seen = "") {
    demi::require<demi::DeviceError>(accepted, {.where = where, .what = what, .seen = seen});
  }

  static void require_none_freed(std::size_t bytes) {
    require("graph.replay", bytes == 0, "the graph writes to memory that was freed before",
            std::to_string(bytes) + " bytes");
  }

  std::string finish() {
    UnderWay::end();
    state_ = State::useless;
    work_ = capture_->finish();
    written_ = capture_->written();
    if (!capture_->failure().empty()) work_.clear();
    memory_->end();
    return std::exchange(capture_, nullptr)->failure();
  }

  std::shared_ptr<Pool> pool_;
  std::optional<MemoryOfGraph> memory_;  // none once it is given back
  State state_ = State::fresh;
  std::shared_ptr<Capture> capture_;  // null but while it records
  std::vector<Capture::Work> work_;
  std::vector<std::byte*> written_;  // blocks of memory from before the recording
};

class Graphs final : public demi::graph::GraphSource {
 public:
  std::string obstacle(c10::Device device) const override {
    return device.type() == kDevice.type() ? "" : "recorded_graph.h records XPU alone";
  }
  std::unique_ptr<demi::graph::DeviceGraph> make(
      c10::Device device, const demi::graph::DeviceGraph* beside) const override {
    const std::string reason = obstacle(device);
    demi::require(reason.empty(), {.where = "graph.make", .what = reason, .seen = device.str()});
    const auto* other = dynamic_cast<const Graph*>(beside);
    demi::require(!beside || other, {.where = "graph.make", .what = "a graph of another source"});
    return std::make_unique<Graph>(other ? other->pool() : std::make_shared<Pool>());
  }
};

}  // namespace second_device
