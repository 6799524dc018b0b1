#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <vector>

#include "demi/core/export.h"

/// Orders the uses of copies on a device's streams. A copy is cast on the current stream of its
/// first user, which other threads do not know, so the copy itself makes every other stream wait
/// for its cast.
namespace demi::weights {

/// LibTorch's interface to a device's streams and events; it knows whether a stream is captured.
using Streams = c10::impl::DeviceGuardImplInterface;

/// Makes CPU tensors count as tensors of a device with these streams, for tests without a GPU. Null
/// ends that.
DEMI_API void emulate_streams(const Streams* streams);
extern std::atomic<const Streams*> emulated_streams;

/// The stream that this thread's work for a tensor goes to. None on a CPU, where work is done at
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

  /// Whether the stream is being captured. Asks the driver, except for the default stream, which
  /// cannot be captured. Always false before LibTorch 2.15, which does not know.
  bool is_captured() const;

 private:
  const Streams* streams_;
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
};

inline bool is_default(const c10::Stream& stream) { return stream.id() == 0; }

/// A point in a stream's work that another stream can wait for.
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

/// The streams on which a copy may be used: the one on which it was cast, and those that wait for
/// that cast. Changed with the exclusive lock of cache_mutex(), read with the shared one.
class ReadyOn {
 public:
  ReadyOn() = default;  // on a CPU: any
  /// Call after the cast was put on `current`. Makes the event at once only if that may be
  /// impossible later: a stream other than the default one may be captured or destroyed by then.
  explicit ReadyOn(const CurrentStream& current);

  bool includes(const CurrentStream& current) const {
    if (!current) return true;
    for (const c10::Stream& stream : streams_)
      if (stream == current.stream()) return true;
    return false;
  }

  /// Makes further work of `current` wait for the cast, and keeps the allocator from reusing
  /// `memory` before that work is done. A captured stream cannot wait for work outside of its
  /// graph: the caller orders the replays after it, as for the parameter.
  void include(const CurrentStream& current, const at::TensorBase& memory);

 private:
  std::vector<c10::Stream> streams_;  // the first is the stream of the cast
  Event cast_;
};

}  // namespace demi::weights
