// Files as the kernel's documentation has them: cgroup-v1/memory.txt, cgroup-v2.rst, proc(5).
#include "demi/core/control_group.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace demi {
namespace {

namespace fs = std::filesystem;

class ControlGroup : public ::testing::Test {
 protected:
  ControlGroup() {
    std::string name = (fs::temp_directory_path() / "demi-control-group-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    root_ = name;
  }
  ~ControlGroup() override { fs::remove_all(root_); }

  void put(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  ControlGroupLimits limits() const { return control_group_limits(root_); }

  const std::string kMount =
      "26 25 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
  fs::path root_;
};

TEST_F(ControlGroup, WithoutFilesThereIsNoLimit) {
  EXPECT_EQ(limits().free_bytes, std::nullopt);
  EXPECT_EQ(limits().cores, std::nullopt);
}

// A unit with MemoryMax=4G and CPUQuota=250% in a slice without limits.
TEST_F(ControlGroup, OfASystemdUnit) {
  put("proc/self/cgroup", "0::/system.slice/train.service\n");
  put("proc/self/mountinfo", "25 30 0:21 / /proc rw - proc proc rw\n" + kMount);
  put("sys/fs/cgroup/system.slice/memory.max", "max\n");
  put("sys/fs/cgroup/system.slice/memory.current", "9000000000\n");
  put("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/system.slice/train.service/memory.max", "4294967296\n");
  put("sys/fs/cgroup/system.slice/train.service/memory.current", "1294967296\n");
  put("sys/fs/cgroup/system.slice/train.service/cpu.max", "250000 100000\n");
  EXPECT_EQ(limits().free_bytes, 3'000'000'000);
  EXPECT_EQ(limits().cores, 2.5);
  // Files that were read count as used until the kernel drops them.
  put("sys/fs/cgroup/system.slice/train.service/memory.stat",
      "anon 1000\nactive_file 700\ninactive_file 500000000\n");
  EXPECT_EQ(limits().free_bytes, 3'500'000'000);
}

TEST_F(ControlGroup, TheLeastOfNestedOnesCounts) {
  put("proc/self/cgroup", "0::/slice/job/step\n");
  put("proc/self/mountinfo", kMount);
  put("sys/fs/cgroup/slice/memory.max", "1000\n");
  put("sys/fs/cgroup/slice/memory.current", "950\n");
  put("sys/fs/cgroup/slice/job/cpu.max", "50000 100000\n");
  put("sys/fs/cgroup/slice/job/step/memory.max", "800\n");
  put("sys/fs/cgroup/slice/job/step/memory.current", "100\n");
  put("sys/fs/cgroup/slice/job/step/cpu.max", "400000 100000\n");
  put("sys/fs/cgroup/slice/other/memory.max", "1\n");
  put("sys/fs/cgroup/slice/other/memory.current", "1\n");
  EXPECT_EQ(limits().free_bytes, 50);
  EXPECT_EQ(limits().cores, 0.5);
}

TEST_F(ControlGroup, AnUnusedLimitIsReachedAtMost) {
  put("proc/self/cgroup", "0::/\n");  // as a container with a namespace of its own sees it
  put("proc/self/mountinfo", kMount);
  put("sys/fs/cgroup/memory.max", "1000\n");
  put("sys/fs/cgroup/memory.current", "1200\n");
  EXPECT_EQ(limits().free_bytes, 0) << "lowered below what was in use";
  put("sys/fs/cgroup/memory.current", "100\n");
  put("sys/fs/cgroup/memory.stat", "inactive_file 400\n");
  EXPECT_EQ(limits().free_bytes, 1000);
}

// Each controller has its hierarchy; in a container each mount shows the container's group alone.
TEST_F(ControlGroup, OfVersionOneInAContainer) {
  put("proc/self/cgroup", "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n3:cpuset:/\n0::/\n");
  put("proc/self/mountinfo",
      "40 39 0:30 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
      "41 39 0:31 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
  put("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().free_bytes, 1'600'000);
  EXPECT_EQ(limits().cores, 1.5);
}

TEST_F(ControlGroup, OfVersionOneWithoutLimits) {
  put("proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/\n");
  put("proc/self/mountinfo",
      "40 39 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 39 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().free_bytes, std::nullopt);
  EXPECT_EQ(limits().cores, std::nullopt);
}

TEST_F(ControlGroup, OddAndDamagedFilesAreNoLimit) {
  put("proc/self/cgroup", "\nnonsense\n0::/../outside\n");
  put("proc/self/mountinfo",
      " - cgroup\n26 25 0:22 / /sys/with\\040space rw - cgroup2 cgroup2 rw\n");
  put("sys/with space/memory.max", "100\n");
  put("sys/with space/memory.current", "40\n");
  for (const char* odd : {"", "nonsense", "0 100000", "100000 0", "max", "-5 100000"}) {
    put("sys/with space/cpu.max", odd);
    EXPECT_EQ(limits().cores, std::nullopt) << odd;
  }
  EXPECT_EQ(limits().free_bytes, 60) << "of what is mounted, the rest lies outside";
}

TEST(ControlGroupOfThisProcess, HasSensibleLimits) {
  const ControlGroupLimits here = control_group_limits();
  EXPECT_GT(here.cores.value_or(1), 0);
  EXPECT_GE(here.free_bytes.value_or(0), 0);
}

}  // namespace
}  // namespace demi
