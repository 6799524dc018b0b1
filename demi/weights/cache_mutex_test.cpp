#include "demi/weights/cache_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace demi::weights {
namespace {

// Two numbers that a writer changes one after the other and that are equal unless a thread writes.
TEST(CacheMutex, AReaderNeverSeesHalfAWrite) {
  volatile int a = 0, b = 0;
  std::atomic<int> writers = 2;
  const auto read = [&] {
    while (writers > 0) {
      const Reading lock;
      ASSERT_EQ(a, b);
    }
  };
  const auto write = [&] {
    for (int i = 0; i < 2000; ++i) {
      const std::unique_lock lock(cache_mutex());
      a = a + 1;
      if (i % 50 == 0) std::this_thread::yield();
      b = b + 1;
    }
    --writers;
  };
  std::thread threads[] = {std::thread(read), std::thread(read), std::thread(write),
                           std::thread(write)};
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(a, 4000);
  EXPECT_EQ(b, 4000);
}

TEST(CacheMutex, ANewThreadWaitsForTheWriterAndAnEndedOneIsForgotten) {
  for (int round = 0; round < 100; ++round) {
    int value = 0;
    std::unique_lock writing(cache_mutex());
    std::thread reader([&] {
      const Reading lock;
      EXPECT_EQ(value, 1);
    });
    std::this_thread::yield();
    value = 1;
    writing.unlock();
    reader.join();
  }
}

TEST(CacheMutex, ReadersDoNotWaitForEachOther) {
  std::promise<void> reading;
  std::thread other;
  {
    const Reading mine;
    other = std::thread([&] {
      const Reading theirs;
      reading.set_value();
    });
    EXPECT_EQ(reading.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  }
  other.join();
}

}  // namespace
}  // namespace demi::weights
