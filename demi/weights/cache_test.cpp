// The part of the weight cache that is each thread's own.
#include <gtest/gtest.h>

#include <thread>

#include "demi/weights/weights.h"

namespace demi::weights {
namespace {

struct LeavesLate {
  bool entered = false;
  ~LeavesLate() {
    if (entered) leave_region();
  }
};

TEST(Region, IsLeftAfterItsThreadHasTornDownItsOwn) {
  std::thread([] {
    static thread_local LeavesLate late;  // made before the thread's region, so it goes after it
    late.entered = true;
    enter_region();
  }).join();
  std::thread([] {
    static thread_local LeavesLate first, second;
    first.entered = second.entered = true;
    enter_region();
    enter_region();
  }).join();
  EXPECT_EQ(stats().copies, 0);
}

}  // namespace
}  // namespace demi::weights
