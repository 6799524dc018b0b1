// Batches on a real GPU; skipped where there is none (prefetch_stream_test.cpp then has to do).
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "demi/core/cuda_library.h"
#include "demi/data/prefetch_loader.h"
#include "lab/data/image_loader.h"

namespace demi::data {
namespace {

class GpuLoader : public testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!at::hasCUDA() || c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() == 0)
      GTEST_SKIP() << "LibTorch finds no CUDA device";
  }
  static c10::Device device() { return {c10::kCUDA, 0}; }
};

/// A number that the device has only after milliseconds of products.
class SlowOnTheDevice : public Loader {
 public:
  explicit SlowOnTheDevice(c10::Device device) : factor_(at::eye(2048, at::kFloat).to(device)) {}
  int64_t examples() const override { return 8; }
  int64_t batches() const override { return 8; }
  Batch batch(int64_t, int64_t position) const override {
    at::Tensor x = factor_ * static_cast<double>(position + 1);
    for (int i = 0; i < 30; ++i) x = at::mm(x, factor_);
    return {.input = x, .target = x.diagonal().clone(), .lengths = {}};
  }

 private:
  at::Tensor factor_;
};

// The step may run on any stream: the one that a graph is captured on, say.
TEST_F(GpuLoader, BatchesAreThereForTheStreamThatAskedForThem) {
  for (const bool side : {false, true}) {
    std::optional<c10::StreamGuard> guard;
    if (side)
      guard.emplace(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device()));
    const PrefetchLoader loader(std::make_shared<SlowOnTheDevice>(device()),
                                {.workers = 2, .depth = 3, .device = device()});
    for (int64_t position = 0; position < 8; ++position) {
      const Batch batch = loader.batch(0, position);
      EXPECT_EQ(batch.target.sum().item<double>(), 2048.0 * static_cast<double>(position + 1));
      EXPECT_EQ(batch.input.sum().item<double>(), 2048.0 * static_cast<double>(position + 1));
    }
  }
}

TEST_F(GpuLoader, PicturesAreThoseOfTheCpu) {
  const ImageSet set{.images = at::arange(64 * 3 * 8 * 8).to(at::kByte).view({64, 3, 8, 8}),
                     .labels = at::arange(64).remainder(10),
                     .classes = {},
                     .name = "numbered"};
  ImageLoaderOptions options{.order = {.batch_size = 10, .shuffle = true, .seed = 3},
                             .mean = {0.5, 0.5, 0.5},
                             .std = {0.25, 0.25, 0.25},
                             .crop_padding = 1,
                             .horizontal_flip = true};
  const ImageLoader expected(set, options);
  options.device = device();
  const PrefetchLoader seen(std::make_shared<ImageLoader>(set, options),
                            {.workers = 2, .depth = 4, .device = device()});
  const c10::StreamGuard side(
      c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device()));
  for (int64_t epoch = 0; epoch < 3; ++epoch)
    for (int64_t position = 0; position < expected.batches(); ++position) {
      const Batch a = seen.batch(epoch, position), b = expected.batch(epoch, position);
      EXPECT_TRUE(at::allclose(a.input.cpu(), b.input, 1e-6, 1e-6)) << position;
      EXPECT_TRUE(at::equal(a.target.cpu(), b.target)) << position;
    }
}

}  // namespace
}  // namespace demi::data
