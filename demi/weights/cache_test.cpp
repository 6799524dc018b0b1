// What the weight cache keeps for each thread.
#include <gtest/gtest.h>
#include <link.h>

#include <string_view>
#include <thread>

#include "demi/weights/weights.h"

namespace demi::weights {
namespace {

// Libraries that are loaded by dlopen share what glibc keeps free of static TLS, 1,664 bytes unless
// told otherwise (glibc.rtld.optional_static_tls).
TEST(StaticTls, OfTheLibraryIsSmallEnoughToBeLoadedAtRunTime) {
  std::size_t bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* result) {
        if (std::string_view(library->dlpi_name).find("libdemi.so") == std::string_view::npos)
          return 0;
        for (int i = 0; i < library->dlpi_phnum; ++i)
          if (library->dlpi_phdr[i].p_type == PT_TLS)
            *static_cast<std::size_t*>(result) = library->dlpi_phdr[i].p_memsz;
        return 1;
      },
      &bytes);
  EXPECT_GT(bytes, 0);
  EXPECT_LT(bytes, 512);
}

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
