#include "demi/monitor/step_graph.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

namespace demi::monitor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = Cure::Kind;

FormatLoss sound() { return {.elements = 4, .greatest = 1, .energy = 4}; }
FormatLoss overflow() { return {.elements = 4, .overflowed = 1, .greatest = 1e5, .energy = 4}; }
FormatLoss flushed(double lost) {
  return {.elements = 4, .flushed = 3, .energy = 1, .flushed_energy = lost * lost};
}

// Built op by op: value 0 is the batch's input.
struct Builder {
  StepGraph graph;

  Builder() { graph.values.push_back({.name = "batch input", .forward = sound()}); }
  int add(StepGraph::Op op) {
    if (op.outer.empty()) op.outer = op.name;
    const int output = static_cast<int>(graph.values.size());
    op.outputs = {output};
    graph.values.push_back({.producer = static_cast<int>(graph.ops.size()), .forward = sound()});
    graph.ops.push_back(std::move(op));
    return output;
  }
  int parameter() {
    graph.values.push_back(
        {.name = "parameter", .is_parameter = true, .size = 4, .forward = sound()});
    return static_cast<int>(graph.values.size()) - 1;
  }
  int linear(const std::string& layer, int input) {
    const int weight = parameter();
    return add({.layer = layer,
                .name = "linear",
                .category = OpCategory::lower_precision,
                .reads_weights = true,
                .inputs = {input, weight}});
  }
  int plain(const std::string& name, std::vector<int> inputs) {
    return add({.name = name, .inputs = std::move(inputs)});
  }
  StepGraph::Value& value(int i) { return graph.values[static_cast<std::size_t>(i)]; }
  std::vector<std::pair<Kind, std::string>> cures(const KeptInFp32& kept = {}) const {
    std::vector<std::pair<Kind, std::string>> names;
    for (const Cure& cure : find_cures(graph, kept)) names.emplace_back(cure.kind, cure.name);
    return names;
  }
};

TEST(StepGraph, OpsGiveWhatTheirCategorySays) {
  Builder b;
  const int low = b.linear("a", 0), weight = b.parameter();
  const int exact = b.add({.name = "loss", .category = OpCategory::fp32, .inputs = {low}});
  const int summed = b.add({.name = "sum", .category = OpCategory::fp32_output, .inputs = {low}});
  const int banned = b.add({.name = "bce", .category = OpCategory::banned, .inputs = {low}});
  const int wide = b.add({.name = "cat", .category = OpCategory::promote, .inputs = {low, exact}});
  const int both = b.add({.name = "cat", .category = OpCategory::promote, .inputs = {low, low}});
  const int relu = b.plain("relu", {low}), scaled = b.plain("mul", {low, weight});
  const int norm =
      b.add({.name = "batch_norm", .follows = StepGraph::Follows::first, .inputs = {low, weight}});
  const int made = b.plain("ones", {});
  const auto is_low = values_in_16_bits(b.graph, {});
  for (const int v : {low, both, relu, norm}) EXPECT_TRUE(is_low[static_cast<std::size_t>(v)]) << v;
  for (const int v : {0, weight, exact, summed, banned, wide, scaled, made})
    EXPECT_FALSE(is_low[static_cast<std::size_t>(v)]) << v;
}

// As a region has shown, where the model casts by hand.
TEST(StepGraph, WhatARegionGaveCountsWhileNothingIsKeptInFp32) {
  using Follows = StepGraph::Follows;
  Builder b;
  const int low = b.linear("a", 0);
  const int mask = b.add({.name = "to.dtype", .follows = Follows::always});
  const int product = b.add({.name = "mul", .follows = Follows::any, .inputs = {low, 0}});
  const int wide = b.add({.name = "square", .follows = Follows::never, .inputs = {low}});
  const auto in_16_bits = [&](const KeptInFp32& kept) {
    const auto is_low = values_in_16_bits(b.graph, kept);
    std::vector<int> values;
    for (const int v : {mask, product, wide})
      if (is_low[static_cast<std::size_t>(v)]) values.push_back(v);
    return values;
  };
  EXPECT_THAT(in_16_bits({}), ElementsAre(mask, product));
  EXPECT_THAT(in_16_bits({.layers = {"a"}, .ops = {}}), ElementsAre(mask));
  EXPECT_THAT(in_16_bits({.layers = {}, .ops = {"mul"}}), ElementsAre(mask));
  EXPECT_FALSE(cure_of_op(b.graph, {}, 1)) << "no argument could be cast";
  EXPECT_EQ(cure_of_op(b.graph, {}, 2)->name, "mul");
  EXPECT_FALSE(cure_of_op(b.graph, {.layers = {}, .ops = {"mul"}}, 2)) << "it is in FP32";
}

// In front of a BatchNorm the gradient of a bias is 0: what is left of its sum is rounding.
TEST(StepGraph, AGradientBelowTheRoundingOfItsTermsIsNoise) {
  for (const bool is_noise : {true, false}) {
    Builder b;
    const int output = b.linear("a", 0), weight = output - 1;
    b.value(output).gradient = sound();
    b.value(weight).gradient = flushed(1);
    b.value(weight).gradient.energy = 4 * (is_noise ? 0x1p-24 : 0x1p-18);  // 2^-11 squared: 2^-22
    EXPECT_EQ(b.cures().empty(), is_noise);
  }
}

TEST(StepGraph, WeightsThatChangeNoDigitOfTheOutputAreNoise) {
  for (const double inputs : {1.0, 0x1p20}) {
    Builder b;
    const int output = b.linear("a", 0), weight = output - 1;
    b.value(0).forward.energy = 4 * inputs;
    b.value(weight).forward = flushed(1);
    b.value(weight).forward.energy = 0x1p-30;
    EXPECT_EQ(b.cures().empty(), inputs == 1) << "times large inputs they do";
  }
}

// Sums over batches grow with their number, what is noise does not: just below the limit and just
// above it, of a weight and of its gradient.
TEST(StepGraph, WhatIsNoiseDoesNotDependOnTheNumberOfBatches) {
  constexpr double kLimit = 0x1p-22;
  for (const std::int64_t batches : {1, 2, 1000, 1'000'000}) {
    const auto times = [&](FormatLoss loss, double energy) {
      loss.elements *= batches;
      loss.energy = energy * static_cast<double>(batches);
      loss.flushed_energy *= loss.energy;
      return loss;
    };
    for (const bool is_noise : {true, false}) {
      const double share = kLimit * (is_noise ? 0.9 : 1.1);
      Builder weights;
      const int output = weights.linear("a", 0), weight = output - 1;
      weights.value(0).forward = times(sound(), 4);
      weights.value(output).forward = times(sound(), 4);
      weights.value(weight).forward = times(flushed(1), share);  // |weights|^2, the output's is 1
      EXPECT_EQ(weights.cures().empty(), is_noise) << batches;
      Builder gradients;
      gradients.linear("a", 0);
      gradients.value(output).gradient = times(sound(), 4);
      gradients.value(weight).gradient = times(flushed(1), 4 * share);
      EXPECT_EQ(gradients.cures().empty(), is_noise) << batches;
    }
  }
}

TEST(StepGraph, ASoundStepNeedsNothing) {
  Builder b;
  b.linear("b", b.plain("relu", {b.linear("a", 0)}));
  EXPECT_THAT(b.cures(), IsEmpty());
}

TEST(StepGraph, TheLayerWhoseOutputOverflows) {
  Builder b;
  const int first = b.linear("a", 0), second = b.linear("b", first);
  b.linear("c", second);
  b.value(second).forward = overflow();
  // c casts what b gives to 16 bits: it overflows there, too.
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "b"), std::pair(Kind::part, "c")));
}

TEST(StepGraph, WhatHandsAnOverflowOnIsNotTheCause) {
  Builder b;
  const int big = b.linear("a", 0), relu = b.plain("relu", {big});
  const int small = b.plain("mul", {relu});
  b.linear("b", small);
  b.value(big).forward = b.value(relu).forward = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "a")));
}

TEST(StepGraph, AnOpWithoutWeightsIsNamedItself) {
  Builder b;
  const int square = b.plain("square", {b.linear("a", 0)});
  b.plain("mean", {square});
  b.value(square).forward = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::op, "square")));
  EXPECT_THAT(b.cures({.ops = {"square"}}), IsEmpty());
}

TEST(StepGraph, OfAnOpInsideAnotherOneTheOuterIsNamed) {
  Builder b;
  const int inner = b.add({.name = "pow", .outer = "rms_norm", .inputs = {b.linear("a", 0)}});
  b.value(inner).forward = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::op, "rms_norm")));
}

// It has its argument's dtype: the layer that made the argument is kept in FP32.
TEST(StepGraph, AnOpThatWritesToItsArgumentIsCuredWhereThatWasMade) {
  Builder b;
  const int output = b.linear("a", 0);
  const int doubled = b.add({.name = "mul_",
                             .has_rule = false,
                             .follows = StepGraph::Follows::first,
                             .inputs = {output}});
  b.value(doubled).forward = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "a")));
}

TEST(StepGraph, WhatNothingCuresIsLeftOut) {
  Builder b;
  const int low = b.add(
      {.name = "odd_", .category = OpCategory::lower_precision, .has_rule = false, .inputs = {0}});
  b.value(low).forward = overflow();
  EXPECT_THAT(b.cures(), IsEmpty());
  const int next = b.linear("b", low);
  b.value(next).forward = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "b")));
}

// Of a part that is kept in FP32, the ops of the lists that read its weights: a mul_ with one of
// them has the dtype of its argument, and a product of other tensors has its own list.
TEST(StepGraph, APartInFp32HasTheOpsThatReadItsWeights) {
  Builder b;
  const int low = b.linear("a", 0);
  const int scaled = b.add({.layer = "b",
                            .name = "mul_",
                            .reads_weights = true,
                            .follows = StepGraph::Follows::first,
                            .inputs = {low, b.parameter()}});
  const int product = b.add(
      {.layer = "b", .name = "mm", .category = OpCategory::lower_precision, .inputs = {0, 0}});
  const int linear = b.linear("b", 0);
  const auto is_low = values_in_16_bits(b.graph, {.layers = {"b"}});
  EXPECT_TRUE(is_low[static_cast<std::size_t>(scaled)]);
  EXPECT_TRUE(is_low[static_cast<std::size_t>(product)]);
  EXPECT_FALSE(is_low[static_cast<std::size_t>(linear)]);
}

TEST(StepGraph, AnOpIsKeptInFp32ByItsOwnNameOrThatOfTheOpAround) {
  Builder b;
  const int low = b.linear("a", 0);
  const int inner = b.add({.name = "pow", .outer = "rms_norm", .inputs = {low}});
  for (const char* name : {"pow", "rms_norm"})
    EXPECT_FALSE(values_in_16_bits(b.graph, {.ops = {name}})[static_cast<std::size_t>(inner)])
        << name;
  EXPECT_TRUE(values_in_16_bits(b.graph, {.ops = {"relu"}})[static_cast<std::size_t>(inner)]);
}

// The model itself has no name that --fp32-part could have.
TEST(StepGraph, ParametersOfTheModelItselfAreNoPart) {
  Builder b;
  b.value(b.linear("model", 0)).forward = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::op, "linear")));
}

TEST(StepGraph, InputsAndWeightsThatARegionCastsCount) {
  Builder b;
  b.linear("a", 0);
  b.value(0).forward = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "a")));
  Builder w;
  w.linear("a", 0);
  w.value(1).forward = overflow();
  EXPECT_THAT(w.cures(), ElementsAre(std::pair(Kind::part, "a")));
  EXPECT_THAT(w.cures({.layers = {"a"}}), IsEmpty());
}

// The layer behind it casts the output, and the copy's gradient is in 16 bits as well.
TEST(StepGraph, GradientsCount) {
  Builder weights;
  weights.linear("b", weights.linear("a", 0));
  weights.value(1).gradient = flushed(0.5);
  EXPECT_THAT(weights.cures(), ElementsAre(std::pair(Kind::part, "a")));
  Builder outputs;
  const int output = outputs.linear("a", 0);
  outputs.linear("b", output);
  outputs.value(output).gradient = flushed(0.5);
  EXPECT_THAT(outputs.cures(), ElementsAre(std::pair(Kind::part, "a"), std::pair(Kind::part, "b")));
  Builder b;
  const int rows = b.add({.name = "embedding", .inputs = {b.parameter()}});
  b.linear("a", rows);
  b.value(rows).gradient = overflow();  // FP32, but cast for the layer
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "a")));
}

TEST(StepGraph, ATenthOfTheNormIsTheLimit) {
  Builder b;
  const int output = b.linear("a", 0);
  b.value(output).forward = flushed(0.09);
  EXPECT_THAT(b.cures(), IsEmpty());
  b.value(output).forward = flushed(0.11);
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "a")));
}

// Found from the loss backward, the cure of the last layer is followed by one for an earlier op
// that makes it needless: the sum is in FP32 as soon as one of its terms is.
TEST(StepGraph, ACureThatALaterOneMakesNeedlessIsLeftOut) {
  Builder b;
  const int x = b.linear("a", 0), sum = b.plain("add", {x, x});
  b.value(sum).gradient = overflow();
  b.value(x).gradient = overflow();
  EXPECT_THAT(b.cures(), ElementsAre(std::pair(Kind::part, "a")));
}

TEST(StepGraph, ACureSaysWhatForAndWhere) {
  Builder b;
  const int output = b.linear("layers.0", 0);
  b.value(output).forward = overflow();
  b.value(output).forward.first_overflow = 7;
  const auto cures = find_cures(b.graph, {});
  ASSERT_EQ(cures.size(), 1u);
  EXPECT_EQ(to_string(cures[0], c10::kHalf),
            "part layers.0: the output of linear in layers.0 reaches 100000, beyond fp16, first in "
            "step 7");
  b.value(output).forward = sound();
  b.value(output).gradient =
      format_loss(exponent_histogram(at::tensor({2.0F, 0.5F})), 65536, 2, c10::kHalf);
  b.value(output).gradient.first_overflow = 3;
  EXPECT_EQ(to_string(find_cures(b.graph, {})[0], c10::kHalf),
            "part layers.0: the gradient of output of linear in layers.0 reaches 131072 with the "
            "loss scale, beyond fp16, first in step 3");
  b.value(output).gradient = {};
  b.value(output).forward = flushed(0.25);
  EXPECT_EQ(
      to_string(find_cures(b.graph, {})[0], c10::kHalf),
      "part layers.0: the output of linear in layers.0 would lose 25 % of its norm to numbers "
      "that fp16 rounds to zero");
}

}  // namespace
}  // namespace demi::monitor
