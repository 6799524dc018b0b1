#include "demi/kernels/step_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "demi/core/error.h"
#include "demi/kernels/traffic.h"

namespace demi::kernels {
namespace {

struct Arrays {
  std::vector<float> values = std::vector<float>(40000);
  std::int64_t step = 0;

  TensorEntry entry(std::int64_t length, Storage gradient, Storage copy) {
    TensorEntry tensor;
    tensor.parameter = tensor.moment[0] = tensor.moment[1] = tensor.moment[2] = values.data();
    tensor.gradient = values.data();
    tensor.gradient_storage = gradient;
    tensor.copy[0] = copy == Storage::none ? nullptr : values.data();
    tensor.copy_storage[0] = copy;
    tensor.step = &step;
    tensor.length = length;
    return tensor;
  }
};

TEST(StepPlan, CutsTensorsIntoBlocks) {
  Arrays arrays;
  StepPlan plan(UpdateRule::sgd,
                {arrays.entry(0, Storage::fp32, Storage::none),
                 arrays.entry(kBlock, Storage::fp32, Storage::none),
                 arrays.entry(kBlock + 1, Storage::fp32, Storage::none)},
                {Group{}});
  const StepTable table = plan.table();
  ASSERT_EQ(table.block_count, 3);
  EXPECT_EQ(table.blocks[0].tensor, 1);
  EXPECT_EQ(table.blocks[1].tensor, 2);
  EXPECT_EQ(table.blocks[2].tensor, 2);
  EXPECT_EQ(table.blocks[2].index, 1);
  EXPECT_EQ(table.first_block[0], 0);
  EXPECT_EQ(table.first_block[1], 0);
  EXPECT_EQ(table.first_block[3], 3);
}

TEST(StepPlan, RefusesWhatNoPassCouldWorkOn) {
  Arrays arrays;
  const TensorEntry good = arrays.entry(7, Storage::bf16, Storage::bf16);
  const auto expect_refused = [&](auto spoil, UpdateRule rule = UpdateRule::adamw) {
    TensorEntry bad = good;
    spoil(bad);
    EXPECT_THROW(StepPlan(rule, {bad}, {Group{}}), UsageError);
  };
  EXPECT_NO_THROW(StepPlan(UpdateRule::adamw, {good}, {Group{}}));
  expect_refused([](TensorEntry& t) { t.length = -1; });
  expect_refused([](TensorEntry& t) { t.group = 1; });
  expect_refused([](TensorEntry& t) { t.group = -1; });
  expect_refused([](TensorEntry& t) { t.step = nullptr; });
  expect_refused([](TensorEntry& t) { t.parameter = nullptr; });
  expect_refused([](TensorEntry& t) { t.moment[1] = nullptr; });
  expect_refused([](TensorEntry& t) { t.copy_storage[0] = Storage::none; });
  expect_refused([](TensorEntry& t) { t.gradient_storage = Storage::none; });
}

// What a step reads and writes: 14 / 22 / 30 bytes a parameter for 0 / 1 / 2 moments, LAMB 42; 4
// more after accumulation into FP32 gradients.
TEST(Traffic, BytesPerParameter) {
  Arrays arrays;
  Group plain, momentum;
  momentum.momentum = 0.9;
  const auto bytes = [&](UpdateRule rule, const Group& group, Storage gradient) {
    StepPlan plan(
        rule,
        {arrays.entry(1000, gradient, Storage::bf16), arrays.entry(17000, gradient, Storage::fp16)},
        {group});
    return traffic_of(plan.table()).bytes_per_element();
  };
  EXPECT_EQ(bytes(UpdateRule::sgd, plain, Storage::bf16), 14);
  EXPECT_EQ(bytes(UpdateRule::sgd, momentum, Storage::fp16), 22);
  EXPECT_EQ(bytes(UpdateRule::adamw, plain, Storage::bf16), 30);
  EXPECT_EQ(bytes(UpdateRule::lamb, plain, Storage::bf16), 42);
  EXPECT_EQ(bytes(UpdateRule::sgd, plain, Storage::fp32), 18);
  EXPECT_EQ(bytes(UpdateRule::sgd, momentum, Storage::fp32), 26);
  EXPECT_EQ(bytes(UpdateRule::adamw, plain, Storage::fp32), 34);
  // The gradient twice, momentum, direction; direction, weight, copy. MuSGD: the gradient once more
  // and the velocity.
  EXPECT_EQ(bytes(UpdateRule::muon, plain, Storage::bf16), 2 * 2 + 8 + 2 + 2 + 8 + 2);
  Group with_sgd;
  with_sgd.own[1] = 1;
  EXPECT_EQ(bytes(UpdateRule::muon, with_sgd, Storage::bf16), 26 + 2 + 8);
}

TEST(StepPlan, PackedTableHoldsTheSame) {
  Arrays arrays;
  StepPlan plan(UpdateRule::lamb, {arrays.entry(20000, Storage::bf16, Storage::bf16)}, {Group{}});
  std::vector<double> staging((plan.upload_bytes() + 7) / 8), device((plan.device_bytes() + 7) / 8);
  StepState state;
  auto* base = reinterpret_cast<std::byte*>(device.data());
  const StepTable table = plan.pack(reinterpret_cast<std::byte*>(staging.data()), base, &state);
  std::copy(staging.begin(), staging.end(), device.begin());
  EXPECT_EQ(table.block_count, 2);
  EXPECT_EQ(table.blocks[1].index, 1);
  EXPECT_EQ(table.tensors[0].length, 20000);
  EXPECT_EQ(table.first_block[1], 2);
  EXPECT_EQ(table.state, &state);
  EXPECT_LE(reinterpret_cast<const std::byte*>(table.trust + table.block_count),
            base + plan.device_bytes());
}

}  // namespace
}  // namespace demi::kernels
