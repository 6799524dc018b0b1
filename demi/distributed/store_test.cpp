#include "demi/distributed/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>

#include "demi/core/error.h"
#include "demi/distributed/c10d.h"

namespace demi::distributed {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Answers "slow" when the test lets it, and fails for "wrong".
class StoreThatWaits final : public Store {
 public:
  explicit StoreThatWaits(std::shared_future<void> until) : until_(std::move(until)) {}
  void set(const std::string&, const std::string&) override { until_.wait(); }
  std::optional<std::string> get(const std::string& key) override {
    if (key == "slow") until_.wait();
    if (key == "wrong") throw std::runtime_error("of the store");
    return key == "missing" ? std::nullopt : std::optional(key + "'s value");
  }
  std::int64_t add(const std::string&, std::int64_t value) override { return value + 1; }
  bool wait(const std::vector<std::string>&, milliseconds timeout) override {
    std::this_thread::sleep_for(timeout);  // nothing comes meanwhile
    return false;
  }
  std::shared_ptr<Store> for_another_thread() override {
    return std::make_shared<StoreThatWaits>(until_);
  }
  std::string name() const override { return "the store of the test"; }
  int host_rank() const override { return 3; }

 private:
  std::shared_future<void> until_;
};

TEST(StoreWithTimeout, IsTheStoreIfThatAnswers) {
  const auto store = thread_store();
  StoreWithTimeout timed(store, seconds(60));
  EXPECT_EQ(timed.get("a"), std::nullopt);
  timed.set("a", "1");
  EXPECT_EQ(store->get("a"), "1");
  EXPECT_EQ(timed.get("a"), "1");
  EXPECT_EQ(timed.add("n", 3), 3);
  EXPECT_EQ(timed.add("n", -1), 2);
  EXPECT_TRUE(timed.wait({"a", "n"}, milliseconds(1)));
  EXPECT_FALSE(timed.wait({"b"}, milliseconds(1)));
  EXPECT_EQ(timed.for_another_thread()->get("a"), "1");
  EXPECT_EQ(timed.name(), store->name());
  EXPECT_EQ(timed.host_rank(), store->host_rank());
}

TEST(StoreWithTimeout, EndsWhereTheStoreDoesNot) {
  std::promise<void> until;
  StoreWithTimeout timed(std::make_shared<StoreThatWaits>(until.get_future().share()),
                         milliseconds(500));
  EXPECT_EQ(timed.get("key"), "key's value");
  EXPECT_THROW(timed.get("wrong"), std::runtime_error);
  EXPECT_EQ(timed.get("missing"), std::nullopt);         // an error is one call's
  EXPECT_FALSE(timed.wait({"key"}, milliseconds(600)));  // its own time counts apart
  const auto other = timed.for_another_thread();
  try {
    timed.get("slow");
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("does not answer"), HasSubstr("store of the test"),
                                    HasSubstr("0.5 s")));
  }
  EXPECT_THROW(timed.get("key"), DeviceError);  // the answer to another question might come
  EXPECT_EQ(other->get("key"), "key's value");
  EXPECT_THROW(other->set("key", "value"), DeviceError);
  until.set_value();
}

}  // namespace
}  // namespace demi::distributed
