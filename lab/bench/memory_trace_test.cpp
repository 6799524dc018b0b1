#include "lab/bench/memory_trace.h"

#include <gtest/gtest.h>

#include "demi/profile/memory.h"

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

// Blocks of less than a thousandth of the largest one, before, between and after two of that size.
TEST(MemoryTrace, OfSmallBlocksBesideLargeOnesIsPredictedToo) {
  const auto of = [](int64_t examples) {
    const auto small = block(30 * examples, 0, kNever, MemoryKind::activations),
               large = block(1'000'000, 0, kNever, MemoryKind::parameters);
    MemoryTrace trace{.blocks = {small, large, small, large, small}};
    if (examples > 1)
      trace.blocks.insert(trace.blocks.begin() + 3, block(8, 0, 0, MemoryKind::other));
    return trace;
  };
  EXPECT_EQ(memory_at_peak(extrapolated(of(1), 1, of(2), 2, 10)),
            (MemoryByKind{.parameters = 2'000'000, .activations = 3 * 300}));
}

// An op whose pieces make four blocks each, three times, and a block that grows by less than in
// proportion after each of them: 4,000 pieces of 4 examples and 6,000 of 6. A table of the blocks
// in the middle would take 2.5 GB.
TEST(MemoryTrace, AnOpInManyPiecesTakesLittleMemoryOfItsOwn) {
  const auto in_pieces = [](int64_t examples) {
    MemoryTrace trace;
    for (int round = 0; round < 3; ++round) {
      for (int64_t piece = 0; piece < 1'000 * examples; ++piece)
        for (const int64_t bytes : {64, 65, 100'000, 66}) {
          trace.blocks.push_back(block(bytes, trace.end, trace.end + 1, MemoryKind::other));
          ++trace.end;
        }
      const int64_t bytes = 20'000'000 + 1'000'000 * examples;
      trace.blocks.push_back(block(bytes, trace.end, kNever, MemoryKind::activations));
    }
    return trace;
  };
  const auto resident = [] { return profile::resident_memory().peak_bytes; };
  const MemoryTrace of_small = in_pieces(4), of_large = in_pieces(6);
  profile::reset_peak_resident_memory();
  const int64_t before = resident();
  const MemoryTrace at_10 = extrapolated(of_small, 4, of_large, 6, 10);
  EXPECT_LT(resident() - before, 64 << 20);  // 0 where there is no /proc
  EXPECT_EQ(memory_at_peak(at_10), (MemoryByKind{.activations = 3 * int64_t{30'000'000}}));
}

}  // namespace
}  // namespace demi::bench
