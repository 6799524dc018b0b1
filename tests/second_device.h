#pragma once

// A device that is not the CPU and needs no hardware: LibTorch's XPU, of which a build without it
// has the names alone, with the host's memory and the CPU's operations. (PrivateUse1 would not do:
// Module::to refuses to move weights there.) As on a GPU an operation refuses operands of two
// devices (a CPU scalar excepted), so that a batch that nobody has moved shows. For one test
// program: the registrations hold for the process, and this device is then LibTorch's accelerator.
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
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <utility>
#include <vector>

namespace second_device {

inline const c10::Device kDevice(c10::DeviceType::XPU, 0);

// How many tensors have come over from the CPU, and for how many another stream was recorded.
inline std::atomic<int64_t> arrivals{0}, recorded{0};

class Memory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return {size_t{1} << 30, size_t{1} << 30};
  }
};

inline Memory memory;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::XPU> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  void synchronizeDevice(c10::DeviceIndex) const override {}
};

// The same memory as a tensor of the CPU.
inline at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU).requires_grad(false));
}

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

// LibTorch has a fused cell for every device but the CPU, and no such kernel for this one: autograd
// goes over the CPU.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input, at::TensorList hx, at::TensorList weights, bool biases, int64_t layers,
    double dropout, bool train, bool bidirectional, bool batch_first) {
  TORCH_CHECK(input.device() == kDevice, "lstm: the input is on ", input.device());
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

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (argument.isTensor()) require_here(op, argument.toTensor());
    if (argument.isTensorList())
      for (const at::Tensor& tensor : argument.toTensorVector()) require_here(op, tensor);
  }
  at::native::cpu_fallback(op, stack);
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

C10_REGISTER_GUARD_IMPL(XPU, ::second_device::Guard)

TORCH_LIBRARY_IMPL(_, XPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&::second_device::fallback>());
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  library.impl("empty.memory_format", ::second_device::empty);
  library.impl("empty_strided", ::second_device::empty_strided);
  library.impl("copy_", ::second_device::copy);
  library.impl("_copy_from", ::second_device::copy_from);
  library.impl("_copy_from_and_resize", ::second_device::copy_from_and_resize);
  library.impl("resize_", ::second_device::resize);
  library.impl("record_stream", ::second_device::record_stream);
  library.impl("_local_scalar_dense", ::second_device::local_scalar);
  library.impl("convolution_overrideable", ::second_device::convolution);
  library.impl("convolution_backward_overrideable", ::second_device::convolution_backward);
  library.impl("view", at::native::view);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

TORCH_LIBRARY_IMPL(aten, AutogradXPU, library) {
  library.impl("lstm.input", ::second_device::lstm);
}

REGISTER_XPU_HOOKS(XPUHooks)
}  // namespace at

namespace second_device {
inline const bool kRegistered = [] {
  c10::SetAllocator(c10::DeviceType::XPU, &memory);
  return true;
}();
}  // namespace second_device
