#include "lab/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>

#include "demi/core/error.h"
#include "demi/core/instruction_set.h"

namespace demi::doctor {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// The value of a variable until the end of the scope.
class Variables {
 public:
  Variables(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~Variables() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// As `demi compare` marks a run that got less than nine tenths of its cores.
TEST(Doctor, MarksFiguresOfABusyMachine) {
  EXPECT_EQ(disturbance(std::nullopt), "");
  EXPECT_EQ(disturbance(0.9), "");
  EXPECT_THAT(disturbance(0.61), HasSubstr("* The measurements got 61 % of the cores"));
}

TEST(Doctor, SaysWhatIsThereWithoutAnyMeasurement) {
  const Diagnosis d = diagnose({.seconds = 0});
  ASSERT_FALSE(d.devices.empty());
  EXPECT_EQ(d.devices[0].device, "cpu");
  EXPECT_EQ(d.devices[0].name, processor_name());
  EXPECT_EQ(d.devices[0].copy_gb_per_s, 0);
  for (const Format& format : d.devices[0].formats) EXPECT_EQ(format.tflops, 0);
  EXPECT_EQ(d.paths.size(), 5U);
  EXPECT_EQ(d.backends.size(), 10U);
  EXPECT_FALSE(d.data_sets.empty());
  EXPECT_GE(d.variables.size(), 18U);
  EXPECT_FALSE(d.model);
  EXPECT_FALSE(d.cores_share);
  EXPECT_EQ(d.libraries[1].first, "LibTorch");
  for (const auto& [name, version] : d.libraries) EXPECT_FALSE(version.empty()) << name;
  for (const BackendSetting& setting : d.backends) {
    EXPECT_FALSE(setting.gain.empty()) << setting.name;
    EXPECT_FALSE(setting.cost.empty()) << setting.name;
    EXPECT_FALSE(setting.value.empty()) << setting.name;
  }
}

TEST(Doctor, WithoutCudaSaysWhyAndGivesTheRest) {
  const Diagnosis d = diagnose({.seconds = 0});
  if (d.no_cuda.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_FALSE(d.no_graphs.empty());
  EXPECT_EQ(d.devices.size(), 1U);
  EXPECT_EQ(d.cuda_path, "");
  EXPECT_FALSE(d.cpu_path.empty());
  const auto cuda = std::ranges::find_if(d.paths, [](const auto& p) { return p.name == "cuda"; });
  EXPECT_FALSE(cuda->usable);
  EXPECT_FALSE(cuda->reason.empty());
}

TEST(Doctor, AForcedPathThatDoesNotExistIsAFault) {
  const Variables forced("DEMI_KERNELS", "avx1024");
  const Diagnosis d = diagnose({.seconds = 0});
  EXPECT_EQ(d.cpu_path, "");
  EXPECT_THAT(d.faults, Contains(HasSubstr("avx1024")));
}

TEST(Doctor, AForcedPathIsTheOneInUse) {
  const Variables forced("DEMI_KERNELS", "reference");
  EXPECT_EQ(diagnose({.seconds = 0}).cpu_path, "reference");
}

TEST(Doctor, AMisspeltVariableIsAFault) {
  const Variables misspelt("DEMI_WEIGHT_CACH", "off");
  EXPECT_THAT(diagnose({.seconds = 0}).faults,
              Contains(HasSubstr("did you mean DEMI_WEIGHT_CACHE?")));
}

TEST(Doctor, MeasuresEachFormatAndTheCopy) {
  const Diagnosis d = diagnose({.recipe = "fashion-cnn", .seconds = 0.02});
  EXPECT_GT(d.devices[0].copy_gb_per_s, 0);
  for (const Format& format : d.devices[0].formats) EXPECT_GT(format.tflops, 0) << format.dtype;
  EXPECT_THAT(d.faults, Not(Contains(HasSubstr("cannot be measured"))));
  ASSERT_TRUE(d.model);
  ASSERT_EQ(d.model->dimensions.size(), 1U) << "10 classes";
  EXPECT_EQ(d.model->dimensions[0].next, 16);
  EXPECT_GT(d.model->dimensions[0].speedup, 0);
}

TEST(Doctor, RefusesBeforeAnythingIsMeasured) {
  EXPECT_THROW(diagnose({.recipe = "mlpp"}), UsageError);
  for (const double seconds : {-1.0, 1.5, std::nan("")})
    EXPECT_THROW(diagnose({.seconds = seconds}), UsageError) << seconds;
}

}  // namespace
}  // namespace demi::doctor
