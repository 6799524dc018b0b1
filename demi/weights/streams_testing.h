#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "demi/weights/streams.h"

namespace demi::weights::testing {

/// While this object lives, CPU tensors count as tensors of a device with streams, and every
/// request is recorded. Stream 0 is the default one.
class FakeStreams final : public c10::impl::DeviceGuardImplInterface {
 public:
  using Id = c10::StreamId;
  FakeStreams() { emulate_streams(this); }
  ~FakeStreams() override { emulate_streams(nullptr); }

  void use(Id stream) { current_ = stream; }
  void capture(Id stream) { captured_ = stream; }  // -1: none

  /// Pairs of a waiting stream and the one it waits for, in order. Each call forgets them.
  std::vector<std::pair<Id, Id>> waits() const { return std::exchange(waits_, {}); }
  int events_made() const { return made_; }
  int events_alive() const { return static_cast<int>(events_.size()); }
  int questions() const { return questions_; }  // whether a stream is captured
  /// Streams that the allocator waits for before it reuses this memory.
  std::set<Id> users_of(const void* memory) const { return users_[memory]; }

  c10::DeviceType type() const override { return c10::kCPU; }
  c10::Device exchangeDevice(c10::Device) const override { return c10::kCPU; }
  c10::Device getDevice() const override { return c10::kCPU; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    must_not_be_captured(stream);
    *event = reinterpret_cast<void*>(static_cast<std::intptr_t>(++made_));
    events_[*event] = stream.id();
  }
  void block(void* event, const c10::Stream& stream) const override {
    must_not_be_captured(stream);
    waits_.emplace_back(stream.id(), events_.at(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { events_.erase(event); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    users_[memory.get()].insert(stream.id());
  }
  // Overrides where LibTorch has it. NOLINTNEXTLINE(modernize-use-override)
  bool isStreamCapturing(const c10::Stream& stream) const {
    ++questions_;
    return stream.id() == captured_;
  }

 private:
  void must_not_be_captured(const c10::Stream& stream) const {
    if (stream.id() == captured_) throw std::logic_error("an event crosses a capture's boundary");
  }

  Id current_ = 0, captured_ = -1;
  mutable int made_ = 0, questions_ = 0;
  mutable std::map<void*, Id> events_;
  mutable std::vector<std::pair<Id, Id>> waits_;
  mutable std::map<const void*, std::set<Id>> users_;
};

}  // namespace demi::weights::testing
