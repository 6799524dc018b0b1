#include "lab/bench/memory_trace.h"

#include <gtest/gtest.h>

namespace demi::bench {
namespace {

constexpr int64_t kNever = profile::Allocation::kNever;

TracedBlock block(int64_t bytes, int64_t made, int64_t freed, MemoryKind kind) {
  return {{.bytes = bytes, .made = made, .freed = freed}, kind};
}

// Parameters of 100 bytes for ever, activations of 30 and 50, a gradient of 70 that comes after the
// first of them has gone.
MemoryTrace trace() {
  return {
      .blocks = {block(100, 0, kNever, MemoryKind::parameters),
                 block(30, 1, 3, MemoryKind::activations), block(50, 2, 5, MemoryKind::activations),
                 block(70, 4, 6, MemoryKind::gradients)},
      .begin = 0,
      .end = 6};
}

TEST(MemoryTrace, TellsTheKindsOfAMoment) {
  EXPECT_EQ(memory_at(trace(), 2), (MemoryByKind{.parameters = 100, .activations = 80}));
  EXPECT_EQ(memory_at(trace(), 6), (MemoryByKind{.parameters = 100}));
}

TEST(MemoryTrace, ThePeakIsTheMomentWithTheGreatestSum) {
  EXPECT_EQ(memory_at_peak(trace()),
            (MemoryByKind{.parameters = 100, .gradients = 70, .activations = 50}));
  MemoryTrace ends_before = trace();
  ends_before.end = 3;
  EXPECT_EQ(memory_at_peak(ends_before), (MemoryByKind{.parameters = 100, .activations = 80}));
  MemoryTrace begins_after = trace();
  begins_after.begin = 6;
  EXPECT_EQ(memory_at_peak(begins_after), (MemoryByKind{.parameters = 100}));
}

// With 2 examples the peak is in backward, with 20 it is where all activations are alive.
TEST(MemoryTrace, WhatGrewWithTheBatchGoesOnSoThatThePeakMoves) {
  MemoryTrace large = trace();
  large.blocks[1].block.bytes = 60;
  large.blocks[2].block.bytes = 100;
  const MemoryTrace at_20 = extrapolated(trace(), 2, large, 4, 20);
  EXPECT_EQ(memory_at_peak(at_20),
            (MemoryByKind{.parameters = 100, .activations = 15 * 20 + 25 * 20}));
  EXPECT_EQ(memory_at_peak(extrapolated(trace(), 2, large, 4, 1)),
            (MemoryByKind{.parameters = 100, .gradients = 70, .activations = 25}));
}

// For the larger batch an op needs a block more, and another one grows by less than in
// proportion: 60 bytes and 5 an example.
TEST(MemoryTrace, ABlockMoreHidesNothing) {
  MemoryTrace large = trace();
  large.blocks[1].block.bytes = 60;
  large.blocks[2].block.bytes = 100;
  large.blocks.insert(large.blocks.begin() + 2, block(8, 2, 3, MemoryKind::other));
  large.blocks.back().block.bytes = 80;
  const MemoryTrace at_40 = extrapolated(trace(), 2, large, 4, 40);
  ASSERT_EQ(at_40.blocks.size(), 5U);
  EXPECT_EQ(at_40.blocks[1].block.bytes, 15 * 40);
  EXPECT_EQ(at_40.blocks[2].block.bytes, 8);
  EXPECT_EQ(at_40.blocks[3].block.bytes, 25 * 40);
  EXPECT_EQ(at_40.blocks[4].block.bytes, 60 + 5 * 40);
}

}  // namespace
}  // namespace demi::bench
