#include "demi/checkpoint/writer.h"

#include <gmock/gmock.h>
#include <pthread.h>

#include <optional>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/snapshot.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using WriterTest = CheckpointFolder;

TEST_F(WriterTest, SavesWhatStoodThereWhenItWasAsked) {
  Writer writer(folder_ / "a");
  for (int step = 1; step <= 5; ++step) {
    Checkpoint training = ten_tensors(step);
    writer.save(step, training, {.keep_last = 0});
    for (auto& [name, tensor] : training.model) tensor.fill_(99);
    for (auto& [name, tensor] : training.state) tensor.fill_(99);
  }
  writer.wait();
  for (int step = 1; step <= 5; ++step)
    EXPECT_TRUE(
        same(load(folder_ / "a" / ("step-0000000" + std::to_string(step))), ten_tensors(step)));
}

TEST_F(WriterTest, CopiesViewsAndTensorsWithGradients) {
  const at::Tensor base = at::arange(6, at::kFloat).view({2, 3}).requires_grad_();
  Checkpoint views;
  views.model = {{"t", base.t()}, {"base", base}};
  const Snapshot snapshot(views);
  for (const auto& [name, tensor] : snapshot.finish().model) {
    EXPECT_TRUE(tensor.is_contiguous()) << name;
    EXPECT_FALSE(tensor.requires_grad()) << name;
    EXPECT_FALSE(tensor.is_alias_of(base)) << name;
    EXPECT_TRUE(at::equal(tensor, views.model.at(name))) << name;
  }
}

TEST_F(WriterTest, TheDestructorWaits) {
  {
    Writer writer(folder_);
    writer.save(1, ten_tensors(1));
  }
  EXPECT_TRUE(same(load(folder_), ten_tensors(1)));
}

TEST_F(WriterTest, AnErrorSurfacesOnceAtTheNextCall) {
  Writer writer(folder_);
  writer.save(1, ten_tensors(1));
  writer.wait();
  // A folder that cannot be replaced by the small file.
  fs::remove(folder_ / "last");
  fs::create_directories(folder_ / "last" / "inside");
  const auto said = [&](auto&& call) -> std::string {
    try {
      call();
    } catch (const TrainingError& error) {
      return error.what();
    }
    return "no error";
  };
  writer.save(2, ten_tensors(2));
  EXPECT_THAT(said([&] { writer.save(3, ten_tensors(3)); }), HasSubstr("last cannot be replaced"));
  EXPECT_EQ(said([&] { writer.wait(); }), "no error");
  EXPECT_FALSE(fs::exists(folder_ / "step-00000003"));
  fs::remove_all(folder_ / "last");
  writer.save(4, ten_tensors(4));
  writer.wait();
  EXPECT_TRUE(same(load(folder_), ten_tensors(4)));
}

TEST_F(WriterTest, WritesByItselfWhereThereIsNoThread) {
  Writer writer(folder_);
  pthread_attr_t before, huge;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(::pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 46), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);  // no machine has so large a stack
  writer.save(1, ten_tensors(1));
  EXPECT_FALSE(writer.is_writing());
  EXPECT_EQ(::pthread_setattr_default_np(&before), 0);
  ::pthread_attr_destroy(&before);
  ::pthread_attr_destroy(&huge);
  writer.wait();
  EXPECT_TRUE(same(load(folder_), ten_tensors(1)));
}

TEST_F(WriterTest, RefusesAtOnceWhatCannotBeSaved) {
  Writer writer(folder_);
  Checkpoint sparse;
  sparse.state["a"] = at::ones({2, 2}).to_sparse();
  EXPECT_THROW(writer.save(1, sparse), UsageError);
  EXPECT_THROW(writer.save(-1, {}), UsageError);
  EXPECT_THROW(writer.save(1, {}, {.keep_last = -1}), UsageError);
  writer.wait();
}

TEST_F(WriterTest, HoldsItsFolder) {
  std::optional<Writer> writer(folder_);
  EXPECT_THROW(Writer second(folder_), UsageError);
  save(folder_, 1, ten_tensors(1));
  writer.reset();
  Writer second(folder_);
}

}  // namespace
}  // namespace demi::checkpoint
