// LibTorch's part for a device registers kernels when it is loaded, which may be after the first
// region on the device. Played by XPU, which no LibTorch here has, in a process of its own.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/autocast/custom.h"
#include "demi/core/cuda_library.h"

namespace demi {
namespace {

constexpr auto kLate = c10::DeviceType::XPU;

at::Tensor late_input() {
  static std::int64_t value = 1;
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof(value),
                       at::DataPtr(&value, c10::Device(kLate, 0)), nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::XPU),
                                                         caffe2::TypeMeta::Make<std::int64_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({1});
  return tensor;
}

bool late_kernel_ran = false;
at::Tensor late_kernel(const at::Tensor& x) {
  late_kernel_ran = true;
  return x;
}

at::Tensor late_op(const at::Tensor& x) { return x.alias(); }

bool demis_kernel_runs() {
  late_kernel_ran = false;
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("demi_late::op", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  try {
    op.call(late_input());
  } catch (const c10::Error&) {  // below it the device has no kernels
  }
  return !late_kernel_ran;
}

[[noreturn]] void load_late() {
  register_autocast("demi_late::op", OpCategory::unchanged, kLate);
  { const Autocast early(kLate, torch::kHalf); }
  torch::Library library(torch::Library::IMPL, "demi_late", c10::DispatchKey::AutocastXPU, __FILE__,
                         __LINE__);
  library.impl("op", TORCH_FN(late_kernel));
  static c10::impl::NoOpDeviceGuardImpl<kLate> guard;
  const c10::impl::DeviceGuardImplRegistrar registered(kLate, &guard);
  const Autocast region(kLate, torch::kHalf);
  std::exit(demis_kernel_runs() ? 0 : 1);
}

TEST(LateLoading, OfADevicesPartLeavesDemisKernelsInFront) {
  if (c10::impl::hasDeviceGuardImpl(kLate)) GTEST_SKIP() << "this LibTorch has XPU";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(load_late(), testing::ExitedWithCode(0), "");
}

TEST(LateLoading, ARegionOnCudaLoadsItsPartFirst) {
  const Autocast region(torch::kCUDA, torch::kHalf);
  EXPECT_EQ(load_cuda().loaded, c10::impl::hasDeviceGuardImpl(torch::kCUDA));
}

}  // namespace

TORCH_LIBRARY(demi_late, library) { library.def("op(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(demi_late, CompositeImplicitAutograd, library) { library.impl("op", late_op); }

}  // namespace demi
