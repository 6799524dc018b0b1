// The rules for several streams, on a device type that stands for a GPU: its streams
// are numbers, its memory is the host's, and what is asked of it is written down.
#include "demi/step/streams.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "demi/step/backend.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/step/step_result.h"

namespace demi::optim {
namespace {

constexpr c10::DeviceType kFake = c10::DeviceType::PrivateUse1;

struct FakeDevices {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  std::string asked;
};

FakeDevices& fake() {
  static FakeDevices all;
  return all;
}

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  FakeGuard() = default;
  explicit FakeGuard(c10::DeviceType) {}
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(kFake, fake().device);
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kFake, fake().device}; }
  void setDevice(c10::Device device) const override {
    if (device.index() != fake().device)
      fake().asked += c10::str("device ", int{device.index()}, ";");
    fake().device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    fake().device = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, fake().stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    const c10::Stream before = getStream(stream.device());
    if (stream.id() != fake().stream) fake().asked += c10::str("stream ", stream.id(), ";");
    fake().stream = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    fake().asked += c10::str("record ", stream.id(), ";");
    *event = &fake();
  }
  void block(void*, const c10::Stream& stream) const override {
    fake().asked += c10::str("wait ", stream.id(), ";");
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

void register_fake() {
  static const c10::impl::DeviceGuardImplRegistrar registered(kFake, new FakeGuard);
  fake() = {};
}

c10::Stream stream_number(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kFake, 0), id);
}

TEST(Streams, AResultIsReadOnTheStreamThatWroteIt) {
  register_fake();
  const StepResult result(nullptr, torch::tensor({1.F, 3.F, 8.F, 0.F}), {}, stream_number(7));
  EXPECT_TRUE(result.skipped());
  EXPECT_EQ(fake().asked, "stream 7;stream 0;");  // there, and back
  EXPECT_EQ(fake().stream, 0);
}

TEST(Streams, AFlagIsWaitedForByTheStreamThatTakesIt) {
  register_fake();
  const StepResult result(nullptr, torch::tensor({1.F, 3.F, 8.F, 0.F}), {}, stream_number(7));
  fake().stream = 5;
  EXPECT_EQ(result.found_inf().item<float>(), 1);
  EXPECT_EQ(fake().asked, "record 7;wait 5;");
  fake() = {};
  fake().stream = 7;  // its own
  EXPECT_EQ(result.found_inf().item<float>(), 1);
  EXPECT_EQ(fake().asked, "");
}

TEST(Streams, AResultOfAGraphIsOrderedByItsReader) {
  register_fake();
  const StepResult result(nullptr, torch::tensor({1.F, 3.F, 8.F, 0.F}), {});
  EXPECT_TRUE(result.skipped());
  EXPECT_EQ(fake().asked, "");
}

TEST(Streams, TheKernelsAreLookedForOnTheParametersDevice) {
  register_fake();
  const c10::Device second(kFake, 1);
  const at::Tensor memory = torch::zeros(4);
  const at::Tensor there = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), 16, c10::DataPtr(memory.data_ptr(), second)),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), caffe2::TypeMeta::Make<float>());
  EXPECT_FALSE(machine_backend().kernels_for(there, std::nullopt));
  EXPECT_EQ(fake().asked, "device 1;");
  EXPECT_EQ(fake().device, 0);
}

TEST(Streams, EachIsNewOnce) {
  StreamUse use;
  EXPECT_TRUE(use.is_new(stream_number(1)));
  EXPECT_FALSE(use.is_new(stream_number(1)));
  EXPECT_TRUE(use.is_new(stream_number(2)));
  EXPECT_FALSE(use.is_new(stream_number(1)));
}

TEST(Streams, OnTheCpuThereAreNone) {
  EXPECT_FALSE(current_stream(at::kCPU).has_value());
  EXPECT_FALSE(ordered_stream(at::kCPU).has_value());
  EXPECT_FALSE(is_capturing(at::kCPU));
  testing::EmulatedDevice device;
  device.begin_capture();
  EXPECT_TRUE(device.is_capturing(at::kCPU));
  device.end_capture();
}

TEST(Streams, WhatAGraphWritesIsKept) {
  at::Tensor scale = torch::ones({});
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(scale.getIntrusivePtr());
  const std::size_t before = kept_for_graphs();
  keep_for_graphs(scale);
  keep_for_graphs(scale);
  keep_for_graphs(at::Tensor());
  EXPECT_EQ(kept_for_graphs(), before + 1);
  scale.reset();
  EXPECT_FALSE(watched.expired());
}

}  // namespace
}  // namespace demi::optim
