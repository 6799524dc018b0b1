// The operator's way over a device, without one: CPU tensors are those of a device whose memory is
// the host's, and the CUDA kernels' own source runs on the host.
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "demi/batch_norm/batch_norm.h"
#include "demi/batch_norm/call.h"
#include "demi/core/error.h"
#include "demi/kernels/testing/emulated_batch_norm.h"

namespace demi {
namespace {

using kernels::BatchNorm;
using kernels::BatchNormPass;

/// Launches run at once, or at synchronize(): with a host that runs ahead. What reads a result
/// earlier gets memory that nothing has been written to.
class EmulatedBatchNorm {
 public:
  EmulatedBatchNorm() { queue().clear(); }

  static batch_norm::Engine engine() { return {.device = &kKernels}; }
  static void defer() { deferred() = true; }
  static void synchronize() {
    for (const auto& work : queue()) work();
    queue().clear();
    deferred() = false;
  }
  static std::int64_t& launches() {
    static std::int64_t count = 0;
    return count;
  }

 private:
  static bool& deferred() {
    static bool is = false;
    return is;
  }
  static std::vector<std::function<void()>>& queue() {
    static std::vector<std::function<void()>> all;
    return all;
  }
  static const char* put(std::function<void()> work) {
    ++launches();
    deferred() ? queue().push_back(std::move(work)) : work();
    return nullptr;
  }
  static const char* pass(const BatchNorm& norm, BatchNormPass one, std::int64_t pieces, void*) {
    EXPECT_EQ(pieces, kernels::pieces_of(norm, one));
    return put([norm, one] { kernels::cuda::run_batch_norm(norm, one); });
  }
  template <class Join>
  static const char* join(const BatchNorm& norm, const typename Join::Arguments& to, void*) {
    return put([norm, to] { kernels::cuda::run_join<Join>(norm, to); });
  }

  static constexpr kernels::CudaKernels kKernels = {
      .layout = kernels::kStepLayout,
      .batch_norm = pass,
      .batch_norm_statistics = join<kernels::cuda::JoinStatistics>,
      .batch_norm_gradients = join<kernels::cuda::JoinGradients>};
};

/// Memory that lives until the scope ends, as a stream's allocator keeps it for the launches,
/// filled with NaN.
class KeptMemory final : public c10::Allocator {
 public:
  KeptMemory() : before_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  ~KeptMemory() override { c10::SetAllocator(c10::kCPU, before_, kPriority); }

  c10::DataPtr allocate(std::size_t bytes) override {
    kept_.push_back(before_->allocate(bytes));
    void* const data = kept_.back().get();
    if (data) std::memset(data, 0xFF, bytes);
    return {data, c10::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr std::uint8_t kPriority = 10;
  c10::Allocator* before_;
  std::vector<c10::DataPtr> kept_;
};

/// Arguments of a call, and what it gives: output, gradients and running statistics.
struct DeviceCase {
  at::Tensor x, weight, bias, add, mean, variance;
  BatchNormRelu options;

  DeviceCase(at::ScalarType dtype, bool adds, const BatchNormRelu& o) : options(o) {
    torch::manual_seed(4);
    const auto pictures = [&] {
      return (at::randn({3, 37, 12, 11}) + 0.3)
          .to(dtype)
          .contiguous(at::MemoryFormat::ChannelsLast);
    };
    x = pictures();
    weight = at::rand({37}) + 0.5;
    bias = at::randn({37});
    if (adds) add = pictures();
    mean = at::randn({37});
    variance = at::rand({37}) + 0.5;
  }

  std::vector<at::Tensor> run(
      const batch_norm::Engine& engine, const std::function<void()>& before_reading = [] {}) const {
    const auto leaf = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.clone().requires_grad_() : tensor;
    };
    batch_norm::Call call{leaf(x),      leaf(weight),     leaf(bias),
                          mean.clone(), variance.clone(), options};
    call.options.add = leaf(add);
    const at::Tensor y = batch_norm::fused(call, engine);
    std::vector<at::Tensor> of{call.input, call.weight, call.bias};
    if (add.defined()) of.push_back(call.options.add);
    // Values that are made without reading y.
    const at::Tensor above = (at::arange(y.numel(), at::kFloat).remainder(17) - 8)
                                 .view(y.sizes())
                                 .to(y.scalar_type())
                                 .contiguous(at::MemoryFormat::ChannelsLast);
    std::vector<at::Tensor> all = torch::autograd::grad({y}, of, {above});
    before_reading();
    all.insert(all.end(), {y.detach(), call.running_mean, call.running_var});
    return all;
  }
};

const MaxPooling kPoolsOfDevice[] = {{}, {{2, 2}, {2, 2}, {0, 0}}, {{3, 3}, {2, 2}, {1, 1}}};

void expect_same_results(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

class BatchNormOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::cpu_kernels()) GTEST_SKIP() << "DEMI_KERNELS=aten";
  }
  const batch_norm::Engine cpu_{.cpu = kernels::cpu_kernels()};
  EmulatedBatchNorm device_;
};

TEST_F(BatchNormOnDevice, HasTheBitsOfTheCpu) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const bool training : {true, false})
      for (const bool adds : {false, true})
        for (const bool relu : {true, false})
          for (const MaxPooling& pool : kPoolsOfDevice) {
            SCOPED_TRACE(testing::Message()
                         << c10::toString(dtype) << training << adds << relu << pool.size[0]);
            const DeviceCase one(dtype, adds, {.training = training, .relu = relu, .pool = pool});
            expect_same_results(one.run(EmulatedBatchNorm::engine()), one.run(cpu_));
          }
}

TEST_F(BatchNormOnDevice, TakesSixLaunchesAndNothingIsRead) {
  for (const bool training : {true, false})
    for (const MaxPooling& pool : kPoolsOfDevice) {
      const DeviceCase one(at::kBFloat16, true, {.training = training, .pool = pool});
      const auto expected = one.run(cpu_);
      const std::int64_t before = EmulatedBatchNorm::launches();
      std::vector<at::Tensor> seen;
      const KeptMemory memory;
      EmulatedBatchNorm::defer();
      for (const at::Tensor& result :
           one.run(EmulatedBatchNorm::engine(), EmulatedBatchNorm::synchronize))
        seen.push_back(result);
      EXPECT_EQ(EmulatedBatchNorm::launches() - before, training ? 6 : 5);
      expect_same_results(seen, expected);
    }
}

TEST_F(BatchNormOnDevice, WorksWithoutParametersAndRunningStatistics) {
  DeviceCase one(at::kFloat, false, {});
  one.weight = one.bias = one.mean = one.variance = at::Tensor();
  const auto y = [&](const batch_norm::Engine& engine) {
    return batch_norm::fused({one.x, {}, {}, {}, {}, one.options}, engine);
  };
  EXPECT_TRUE(y(EmulatedBatchNorm::engine()).equal(y(cpu_)));
}

// Until a GPU has run the kernels.
TEST(BatchNormKernelsOfCuda, AreOffUnlessAskedFor) {
  const char* const before = std::getenv("DEMI_BATCH_NORM");
  const std::string kept = before ? before : "";
  unsetenv("DEMI_BATCH_NORM");
  EXPECT_FALSE(batch_norm::wants_cuda_kernels());
  setenv("DEMI_BATCH_NORM", "cuda", 1);
  EXPECT_TRUE(batch_norm::wants_cuda_kernels());
  setenv("DEMI_BATCH_NORM", "gpu", 1);
  EXPECT_THROW(batch_norm::wants_cuda_kernels(), UsageError);
  before ? setenv("DEMI_BATCH_NORM", kept.c_str(), 1) : unsetenv("DEMI_BATCH_NORM");
}

}  // namespace
}  // namespace demi
