#pragma once

// A device that is not the CPU and needs no hardware: LibTorch's XPU, of which a build without it
// has the names alone, with the host's memory and the CPU's operations. (PrivateUse1 would not do:
// Module::to refuses to move weights there.) As on a GPU an operation refuses operands of two
// devices (a CPU scalar excepted), so that a batch that nobody has moved shows. It has streams and
// graphs (recorded_graph.h). For one test program: the registrations hold for the process, and this
// device is then LibTorch's accelerator.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "tests/second_device_capture.h"
#include "tests/second_device_memory.h"

namespace second_device {

// How many tensors have come over from the CPU, and for how many another stream was recorded.
inline std::atomic<int64_t> arrivals{0}, recorded{0};

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto capture = UnderWay::on(current_stream().id());
    void* data = Blocks::all().allocate(bytes, capture ? capture->pool() : nullptr);
    return {data, data, &Blocks::release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Blocks::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const Blocks::Counts counts = Blocks::all().counts();
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.requested_bytes[kAll].current = static_cast<int64_t>(counts.in_use);
    stats.requested_bytes[kAll].peak = static_cast<int64_t>(counts.peak);
    stats.reserved_bytes[kAll].current = static_cast<int64_t>(counts.reserved);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { Blocks::all().reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return {size_t{1} << 30, size_t{1} << 30};
  }
};

inline Memory memory;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::XPU> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return current_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return std::exchange(current_stream(), stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream_of_pool(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream_of_pool(); }
  bool isStreamCapturing(const c10::Stream& stream) const {  // LibTorch 2.11 has none to override
    return UnderWay::on(stream.id()) != nullptr;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = Event::of(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) static_cast<Event*>(event)->block(stream.id());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void synchronizeStream(const c10::Stream&) const override { require_no_capture("synchronize"); }
  void synchronizeDevice(c10::DeviceIndex) const override { require_no_capture("synchronize"); }
};

inline at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                        std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::XPU),
                                   c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::XPU),
                                           c10::dtype_or_default(dtype));
}

inline at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  if (self.is_cpu()) ++arrivals;
  to.mutable_data_ptr();  // whoever watches for writes sees this one
  at::Tensor host = on_host(to);
  host.copy_(on_host(self));
  return to;
}

// Of this device LibTorch takes its own kernel for granted.
inline at::Tensor& copy(at::Tensor& to, const at::Tensor& self, bool) {
  const bool here = to.device() == kDevice;
  if (here && self.is_cpu()) ++arrivals;
  if (here) to.mutable_data_ptr();
  at::Tensor host = on_host(to);
  host.copy_(on_host(self));
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (self.sizes() != to.sizes()) {
    const at::Tensor fresh = at::empty(self.sizes(), to.options());
    to.set_(fresh.storage(), 0, fresh.sizes(), fresh.strides());
  }
  return copy_from(self, to, false);
}

inline const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                                std::optional<at::MemoryFormat>) {
  const at::Tensor fresh = at::empty(size, self.options());
  self.set_(fresh.storage(), 0, fresh.sizes(), fresh.strides());
  return self;
}

inline void record_stream(at::Tensor&, at::Stream) { ++recorded; }

inline at::Scalar local_scalar(const at::Tensor& self) { return on_host(self).item(); }

inline at::Tensor convolution(const at::Tensor& x, const at::Tensor& w,
                              const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                              at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                              at::IntArrayRef output_padding, int64_t groups) {
  const auto b = bias ? std::optional(on_host(*bias)) : std::nullopt;
  return at::convolution(on_host(x), on_host(w), b, stride, padding, dilation, transposed,
                         output_padding, groups)
      .to(kDevice);
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& w, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  auto [dx, dw, db] =
      at::convolution_backward(on_host(gradient), on_host(x), on_host(w), {{w.size(0)}}, stride,
                               padding, dilation, transposed, output_padding, groups, mask);
  for (at::Tensor* result : {&dx, &dw, &db})
    if (result->defined()) *result = result->to(kDevice);
  return {dx, dw, db};
}

// Its schema does not say that it writes to the running statistics.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& x, const std::optional<at::Tensor>& w, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool train,
    double momentum, double eps) {
  const auto host = [](const std::optional<at::Tensor>& tensor) {
    return tensor ? std::optional(on_host(*tensor)) : std::nullopt;
  };
  auto [y, saved_mean, saved_rstd] = at::native_batch_norm(
      on_host(x), host(w), host(bias), host(mean), host(variance), train, momentum, eps);
  return {y.to(kDevice), saved_mean.to(kDevice), saved_rstd.to(kDevice)};
}

// LibTorch has a fused cell for every device but the CPU, and no such kernel for this one: autograd
// goes over the CPU.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input, at::TensorList hx, at::TensorList weights, bool biases, int64_t layers,
    double dropout, bool train, bool bidirectional, bool batch_first) {
  TORCH_CHECK(input.device() == kDevice, "lstm: the input is on ", input.device());
  require_no_capture("aten::lstm, which goes over the CPU");
  const auto host = [](at::TensorList list) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : list) result.push_back(tensor.to(c10::kCPU));
    return result;
  };
  auto [output, h, c] = at::lstm(input.to(c10::kCPU), host(hx), host(weights), biases, layers,
                                 dropout, train, bidirectional, batch_first);
  return {output.to(kDevice), h.to(kDevice), c.to(kDevice)};
}

inline void require_here(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  TORCH_CHECK(!tensor.defined() || tensor.dim() == 0 || tensor.device() == kDevice,
              op.schema().name(), ": expected all tensors to be on one device, but one of ",
              tensor.sizes(), " is on ", tensor.device());
}

inline void over_the_cpu(const c10::OperatorHandle& op, Stack* stack) {
  bool here = false;
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (argument.isTensor()) require_here(op, argument.toTensor());
    if (argument.isTensorList())
      for (const at::Tensor& tensor : argument.toTensorVector()) require_here(op, tensor);
    each_tensor(argument, [&](const at::Tensor& tensor) { here |= tensor.device() == kDevice; });
  }
  at::native::cpu_fallback(op, stack);
  // LibTorch leaves a result where the first operand is, though that be a CPU scalar.
  const auto& returns = op.schema().returns();
  for (std::size_t i = 0; here && i < returns.size(); ++i) {
    c10::IValue& result = torch::jit::peek(*stack, i, returns.size());
    if (!returns[i].alias_info() && result.isTensor() && result.toTensor().defined())
      result = result.toTensor().to(kDevice);
  }
}

inline void fallback(const c10::OperatorHandle& op, Stack* stack) { run(op, stack, &over_the_cpu); }

template <auto function>
void unboxed(const c10::OperatorHandle& op, Stack* stack) {
  using Function =
      c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(function)>, function>;
  static const auto kernel = c10::KernelFunction::makeFromUnboxedFunction(Function());
  kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::XPU), stack);
}

template <auto function>
void noted(const c10::OperatorHandle& op, Stack* stack) {
  run(op, stack, &unboxed<function>);
}

/// A function of the device's own, in place of the fallback.
template <auto function>
torch::CppFunction own() {
  return torch::CppFunction::makeFromBoxedFunction<&noted<function>>();
}

}  // namespace second_device

namespace at {
// LibTorch looks for hooks of this name.
struct XPUHooks : XPUHooksInterface {
  // LibTorch 2.11 makes hooks with an argument of a type of its own, 2.15 with none.
  template <typename... Arguments>
  explicit XPUHooks(Arguments&&...) {}
  void init() const override {}
  bool hasXPU() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};
}  // namespace at

// Inline, so that several files of a program register it once.
namespace second_device {

inline const c10::impl::DeviceGuardImplRegistrar kGuard(c10::DeviceType::XPU, new Guard);

inline const torch::detail::TorchLibraryInit kFallback(
    torch::Library::IMPL,
    +[](torch::Library& library) {
      library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    },
    "_", c10::DispatchKey::XPU, __FILE__, __LINE__);

inline const torch::detail::TorchLibraryInit kFunctions(
    torch::Library::IMPL,
    +[](torch::Library& library) {
      library.impl("empty.memory_format", empty);
      library.impl("empty_strided", empty_strided);
      library.impl("copy_", own<&copy>());
      library.impl("_copy_from", own<&copy_from>());
      library.impl("_copy_from_and_resize", own<&copy_from_and_resize>());
      library.impl("resize_", resize);
      library.impl("record_stream", record_stream);
      library.impl("_local_scalar_dense", own<&local_scalar>());
      library.impl("convolution_overrideable", own<&convolution>());
      library.impl("convolution_backward_overrideable", own<&convolution_backward>());
      library.impl("native_batch_norm", own<&batch_norm>());
      library.impl("view", at::native::view);
      library.impl("as_strided", at::native::as_strided_tensorimpl);
      library.impl("_reshape_alias", at::native::_reshape_alias);
      library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
    },
    "aten", c10::DispatchKey::XPU, __FILE__, __LINE__);

inline const torch::detail::TorchLibraryInit kAutograd(
    torch::Library::IMPL, +[](torch::Library& library) { library.impl("lstm.input", lstm); },
    "aten", c10::DispatchKey::AutogradXPU, __FILE__, __LINE__);

inline const at::RegistererXPUHooksRegistry kHooks(
    "XPUHooks", at::XPUHooksRegistry(),
    at::RegistererXPUHooksRegistry::DefaultCreator<at::XPUHooks>, "second_device");

inline const bool kAllocator = [] {
  c10::SetAllocator(c10::DeviceType::XPU, &memory);
  return true;
}();

}  // namespace second_device
