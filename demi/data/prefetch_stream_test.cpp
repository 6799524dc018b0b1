// The order in which a device would do the work of PrefetchLoader, by streams and events that only
// keep the books: a device of its own (PrivateUse1) without memory.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "demi/core/wait_until_testing.h"
#include "demi/data/prefetch_loader.h"

namespace demi::data {
namespace {

constexpr c10::DeviceType kBooks = c10::DeviceType::PrivateUse1;

using Work = std::set<int64_t>;  // numbers of pieces of work

/// The work before the next piece, by stream.
struct StreamBooks {
  std::mutex mutex;
  std::map<c10::StreamId, Work> before;
  c10::StreamId last_from_pool = 100;

  void enqueue(c10::StreamId stream, int64_t work) {
    const std::lock_guard lock(mutex);
    before[stream].insert(work);
  }
  bool stands_before(c10::StreamId stream, int64_t work) {
    const std::lock_guard lock(mutex);
    return before[stream].contains(work);
  }
};

StreamBooks& books() {
  static StreamBooks all;
  return all;
}

thread_local c10::StreamId current_stream = 0;

struct BookGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kBooks;
  explicit BookGuard(c10::DeviceType = kBooks) {}
  c10::DeviceType type() const override { return kBooks; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kBooks, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream stream(c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, getDevice(), id);
  }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    const std::lock_guard lock(books().mutex);
    return stream(++books().last_from_pool);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, next.id()));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    const std::lock_guard lock(books().mutex);
    if (!*event) *event = new Work;
    *static_cast<Work*>(*event) = books().before[stream.id()];
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::lock_guard lock(books().mutex);
    const Work& work = *static_cast<Work*>(event);
    books().before[stream.id()].insert(work.begin(), work.end());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Work*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, BookGuard)

constexpr int64_t kUpload = -1;

/// Puts one piece of work for each batch on the current stream, and looks whether what it reads is
/// there. Its tensors are undefined: the device has no memory.
class Enqueues : public Loader {
 public:
  int64_t examples() const override { return 8; }
  int64_t batches() const override { return 8; }
  Batch batch(int64_t epoch, int64_t position) const override {
    EXPECT_TRUE(books().stands_before(current_stream, kUpload));
    books().enqueue(current_stream, 8 * epoch + position);
    ++made_;
    return {};
  }
  /// Waits for the workers: batches that they have not begun are made by the thread that asks for
  /// them.
  void wait_for(int64_t batches) const {
    EXPECT_TRUE(wait_until([&] { return made_ >= batches; }));
  }

 private:
  mutable std::atomic<int64_t> made_ = 0;
};

c10::StreamGuard on(c10::StreamId id) { return c10::StreamGuard(BookGuard().stream(id)); }

class PrefetchStream : public testing::Test {
 protected:
  void SetUp() override { books().before.clear(); }
};

// A step on a side stream (a warm-up for a graph, say) read pictures that were not there yet: the
// event stood on another stream than the worker's work.
TEST_F(PrefetchStream, ABatchIsThereForTheStreamThatAskedForIt) {
  for (const c10::StreamId consumer : {0, 7}) {
    books().before.clear();
    const c10::StreamGuard here = on(consumer);
    books().enqueue(consumer, kUpload);
    const auto inner = std::make_shared<Enqueues>();
    const PrefetchLoader loader(inner, {.workers = 2, .depth = 3, .device = {kBooks, 0}});
    for (int64_t epoch = 0; epoch < 2; ++epoch)
      for (int64_t position = 0; position < 8; ++position) {
        loader.batch(epoch, position);
        inner->wait_for(8 * epoch + position + 1 + 3);
        EXPECT_TRUE(books().stands_before(consumer, 8 * epoch + position))
            << "stream " << consumer << ", batch " << position;
      }
  }
}

TEST_F(PrefetchStream, BatchesAreMadeBesideTheStepsOfOtherStreams) {
  books().enqueue(0, kUpload);
  const PrefetchLoader loader(std::make_shared<Enqueues>(), {.device = {kBooks, 0}});
  loader.batch(0, 0);
  constexpr int64_t kStep = 1000;
  books().enqueue(0, kStep);
  loader.batch(0, 1);
  loader.batch(0, 2);
  for (c10::StreamId side = 101; side <= books().last_from_pool; ++side)
    EXPECT_FALSE(books().stands_before(side, kStep)) << "batches wait for the step";
}

// The inner loader's memory may be given to others then.
TEST_F(PrefetchStream, WorkOfBatchesThatNobodyTookStandsBeforeTheEnd) {
  const c10::StreamGuard here = on(9);
  books().enqueue(9, kUpload);
  {
    const auto inner = std::make_shared<Enqueues>();
    const PrefetchLoader loader(inner, {.depth = 4, .device = {kBooks, 0}});
    loader.batch(0, 0);
    inner->wait_for(1 + 4);
  }
  Work all;
  for (const auto& [stream, work] : books().before) all.insert(work.begin(), work.end());
  EXPECT_EQ(books().before[9], all);
}

}  // namespace
}  // namespace demi::data
