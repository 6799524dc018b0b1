#include "demi/weights/streams.h"

#include <utility>

#include "demi/tensor/capture.h"

namespace demi::weights {

constinit std::atomic<const Streams*> emulated_streams = nullptr;

void emulate_streams(const Streams* streams) { emulated_streams = streams; }

bool CurrentStream::is_captured() const {
  return streams_ && !is_default(stream_) && tensor::is_capturing(*streams_, stream_);
}

Event::Event(const Streams& streams, const c10::Stream& on)
    : streams_(&streams), device_(on.device_index()) {
  streams.record(&event_, on, device_, c10::EventFlag::PYTORCH_DEFAULT);
}

Event::~Event() {
  if (event_) streams_->destroyEvent(event_, device_);
}

Event::Event(Event&& other) noexcept
    : streams_(other.streams_),
      event_(std::exchange(other.event_, nullptr)),
      device_(other.device_) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(streams_, other.streams_);
  std::swap(event_, other.event_);
  std::swap(device_, other.device_);
  return *this;
}

ReadyOn::ReadyOn(const CurrentStream& current) {
  if (!current) return;
  streams_.push_back(current.stream());
  if (!is_default(current.stream())) cast_ = Event(current.streams(), current.stream());
}

void ReadyOn::include(const CurrentStream& current, const at::TensorBase& memory) {
  if (includes(current)) return;
  const bool captured = current.is_captured();
  if (!captured && !cast_ && !streams_.empty()) cast_ = Event(current.streams(), streams_.front());
  if (!captured && cast_) cast_.block(current.stream());
  current.streams().recordDataPtrOnStream(memory.storage().data_ptr(), current.stream());
  if (!captured) streams_.push_back(current.stream());
}

}  // namespace demi::weights
