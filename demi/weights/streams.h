#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <vector>

#include "demi/core/export.h"

/// Streams of a device, as far as copies depend on them: a copy is cast on the stream of whoever
/// needs it first, which no other thread can know of, so that the copy itself has to order every
/// other stream behind its cast.
namespace demi::weights {

/// What hands out a device's streams and events, and knows whether a stream is being captured.
using Streams = c10::impl::DeviceGuardImplInterface;

/// For tests without a GPU: CPU tensors count as a device's, with these streams. Null: no longer.
DEMI_API void emulate_streams(const Streams* streams);
extern std::atomic<const Streams*> emulated_streams;

/// The stream on which this thread's work for a tensor is put. None on a CPU, where work is done at
/// once.
class CurrentStream {
 public:
  explicit CurrentStream(const at::TensorBase& tensor)
      : streams_(tensor.is_cuda() ? c10::impl::getDeviceGuardImpl(c10::kCUDA)
                                  : emulated_streams.load(std::memory_order_relaxed)) {
    if (streams_) stream_ = streams_->getStream(tensor.device());
  }

  explicit operator bool() const { return streams_; }
  const Streams& streams() const { return *streams_; }
  const c10::Stream& stream() const { return stream_; }

  /// Asks the driver, but not for the default stream, which cannot be captured. False where
  /// LibTorch cannot tell (before 2.15).
  bool is_captured() const;

 private:
  const Streams* streams_;
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
};

inline bool is_default(const c10::Stream& stream) { return stream.id() == 0; }

/// A place in a stream that another stream can wait for.
class Event {
 public:
  Event() = default;  // nothing to wait for
  Event(const Streams& streams, const c10::Stream& on);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  explicit operator bool() const { return event_; }
  void block(const c10::Stream& stream) const { streams_->block(event_, stream); }

 private:
  const Streams* streams_ = nullptr;
  void* event_ = nullptr;
  c10::DeviceIndex device_ = -1;
};

/// The streams on which a copy may be used: the one that it was cast on, and those that wait for
/// that. Changed under the exclusive cache_mutex(), read under the shared one.
class ReadyOn {
 public:
  ReadyOn() = default;  // on a CPU: everywhere
  /// After the cast was put on `current`. The event is made at once only where it may be too late
  /// later: a stream other than the default one may be captured or destroyed by then.
  explicit ReadyOn(const CurrentStream& current);

  bool includes(const CurrentStream& current) const {
    if (!current) return true;
    for (const c10::Stream& stream : streams_)
      if (stream == current.stream()) return true;
    return false;
  }

  /// Orders what `current` does from now on behind the cast, and keeps the allocator from handing
  /// out `memory` again before that is done. A stream that is being captured cannot wait for what
  /// lies outside of its graph: there the caller orders the replays, as for the parameter.
  void include(const CurrentStream& current, const at::TensorBase& memory);

 private:
  std::vector<c10::Stream> streams_;  // the first is the one that it was cast on
  Event cast_;
};

}  // namespace demi::weights
