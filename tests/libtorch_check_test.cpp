// A process with two LibTorches, or with one of another minor version, is refused by whatever a
// program begins with.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "demi/core/libtorch.h"
#include "demi/demi.h"

namespace demi {
namespace {

constexpr int kRefused = 7;

std::string stand_in() {
  const char* file = std::getenv("DEMI_STAND_IN_LIBTORCH");
  return file ? file : "";
}

// In a process of its own: loads the second library, and begins with it.
template <class Begin>
[[noreturn]] void begin_with_two(const Begin& begin) {
  if (!dlopen(stand_in().c_str(), RTLD_NOW)) {
    std::fputs(dlerror(), stderr);
    std::_Exit(1);
  }
  for (int call = 0; call < 2; ++call) {  // the second call is refused, too
    try {
      begin();
      std::_Exit(0);
    } catch (const UsageError& error) {
      std::fputs(error.what(), stderr);
    }
  }
  std::_Exit(kRefused);
}

class TwoLibTorches : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style,
                   "threadsafe");  // started anew, so that nothing has been checked before
    if (stand_in().empty()) GTEST_SKIP() << "DEMI_STAND_IN_LIBTORCH names no library";
  }

  // Both files, twice.
  static std::string both() {
    const std::string once = "two LibTorches are loaded.*libtorch_cpu\\.so.*" + stand_in();
    return once + ".*" + once;
  }
};

#define EXPECT_REFUSED(...) \
  EXPECT_EXIT(begin_with_two([] { __VA_ARGS__; }), testing::ExitedWithCode(kRefused), both())

std::vector<at::Tensor> parameters() { return {torch::ones({2}, torch::requires_grad())}; }

TEST_F(TwoLibTorches, AreRefusedByARegion) { EXPECT_REFUSED(Autocast region(torch::kCPU)); }

TEST_F(TwoLibTorches, AreRefusedByAnOptimizer) {
  EXPECT_REFUSED(optim::SGD optimizer(parameters(), optim::SGDOptions(0.1)));
}

TEST_F(TwoLibTorches, AreRefusedByAScaler) { EXPECT_REFUSED(GradScaler scaler); }

TEST_F(TwoLibTorches, AreRefusedByAStep) {
  EXPECT_REFUSED(torch::nn::Linear model(2, 2);
                 torch::optim::SGD optimizer(model->parameters(), 0.1);
                 loop::Step step({.models = {model.get()}, .optimizers = {&optimizer}}));
}

TEST_F(TwoLibTorches, AreRefusedByACheckpoint) {
  EXPECT_REFUSED(checkpoint::load("nowhere"));
  EXPECT_REFUSED(checkpoint::save("nowhere", 1, checkpoint::Checkpoint()));
}

TEST_F(TwoLibTorches, AreRefusedByAnImportedModel) { EXPECT_REFUSED(ImportedModel("nowhere.pt2")); }

TEST_F(TwoLibTorches, AreRefusedByAProcessGroup) {
  EXPECT_REFUSED(distributed::ProcessGroup group(distributed::ProcessGroupOptions{}));
}

// Of this process, whose library the linker chose: the file that holds LibTorch's functions.
TEST(LoadedLibTorch, IsTheOneThatThisProgramLinks) {
  const LoadedLibTorch loaded = loaded_libtorch();
  Dl_info origin{};
  ASSERT_TRUE(dladdr(reinterpret_cast<const void*>(&at::globalContext), &origin));
  EXPECT_EQ(loaded.file, origin.dli_fname);
  ASSERT_EQ(loaded.files.size(), 1U);
  EXPECT_TRUE(std::ifstream(loaded.files[0]).good());
  EXPECT_EQ(loaded.version, TORCH_VERSION);  // what the headers say
  EXPECT_EQ(compiled_libtorch(), TORCH_VERSION);
}

}  // namespace
}  // namespace demi
