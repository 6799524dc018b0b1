#include "demi/monitor/range_trace.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/monitor/what_if.h"
#include "demi/monitor/what_if_testing.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::monitor {
namespace {

using namespace what_if_testing;
using ::testing::HasSubstr;

TEST(RangeTrace, TheGreatestIsThatOfAllBatches) {
  const at::Tensor x = at::cat({filled(2), filled(-std::ldexp(1, 18)), filled(8)});
  const WhatIfResult result = ask(handing_on([](const at::Tensor& y) { return y; }), rows_of(x));
  for (const auto place : {TensorPlace::input, TensorPlace::output}) {
    const TensorFate* fate = find(result, "big", "addmm", place);
    ASSERT_TRUE(fate);
    EXPECT_EQ(fate->loss.greatest, std::ldexp(1, 18)) << "negative, in the second of three batches";
    EXPECT_EQ(fate->loss.least_exponent, 1);
    EXPECT_EQ(fate->loss.overflowed, 4 * kFeatures);
    EXPECT_EQ(fate->loss.first_overflow, 2);
  }
}

// A mask of minus infinity, as attention has it: Inf was there before, and is no overflow.
TEST(RangeTrace, BesideInfTheGreatestNumberIsKnownToItsPowerOfTwo) {
  const at::Tensor hidden = at::arange(kFeatures).eq(0);
  const auto greatest = [&](double number) {
    const Plain model = handing_on([&](at::Tensor y) {
      const at::Tensor masked = y.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
      return masked.softmax(1);
    });
    const WhatIfResult result = ask(model, rows_of(filled(number)));
    const TensorFate* fate = find(result, "big", "masked_fill_.Scalar", TensorPlace::output);
    EXPECT_TRUE(fate);
    EXPECT_EQ(fate->loss.overflowed, number > 65504 ? 4 * (kFeatures - 1) : 0);
    return fate->loss.greatest;
  };
  EXPECT_EQ(greatest(1536), 1024);
  EXPECT_EQ(greatest(3 * std::ldexp(1, 20)), std::ldexp(1, 21));
  EXPECT_EQ(greatest(1.5 * std::ldexp(1, -30)), std::ldexp(1, -30));
  EXPECT_EQ(greatest(0), 0);
}

// empty_like gives memory, whose numbers another op writes.
TEST(RangeTrace, MemoryIsCountedWhenItHasNumbers) {
  const Plain model = handing_on([](const at::Tensor& y) {
    const at::Tensor again = at::empty_like(y).copy_(y);
    return y.new_empty(y.sizes()).copy_(again).relu();
  });
  const WhatIfResult result = ask(model, rows_of(filled(std::ldexp(1, 17))));
  for (const TensorFate& fate : result.tensors)
    EXPECT_THAT(fate.op, ::testing::Not(HasSubstr("empty")));
  for (const char* op : {"copy_", "relu"}) {
    const TensorFate* fate = find(result, "big", op, TensorPlace::output);
    ASSERT_TRUE(fate) << op;
    EXPECT_EQ(fate->loss.overflowed, fate->loss.elements) << op;
  }
  EXPECT_EQ(find(result, "big", "copy_", TensorPlace::output)->loss.elements, 2 * 4 * kFeatures);
  EXPECT_THAT(names_of(result.cures), ::testing::Contains("part big"));
}

// A region keeps the dtype of what is written to, whatever the other argument's is.
TEST(RangeTrace, AnOpInPlaceFollowsItsFirstArgument) {
  const at::Tensor gain = at::full({kFeatures}, std::ldexp(1, 17), torch::kFloat);
  Plain low = handing_on([&](at::Tensor y) { return y.mul_(gain).relu(); });
  const WhatIfResult result = ask(low, rows_of(filled(2)));
  const TensorFate* fate = find(result, "big", "mul_.Tensor", TensorPlace::output);
  ASSERT_TRUE(fate);
  EXPECT_EQ(fate->loss.overflowed, 4 * kFeatures);
  EXPECT_EQ(fate->loss.greatest, std::ldexp(1, 18));
  EXPECT_EQ(names_of(result.cures).front(), "part big");
  Plain wide = handing_on([&](const at::Tensor& y) { return (y + gain).mul_(y).relu(); });
  const WhatIfResult fp32 = ask(wide, rows_of(filled(2)));
  EXPECT_FALSE(find(fp32, "big", "mul_.Tensor", TensorPlace::output));
  EXPECT_TRUE(find(fp32, "small", "addmm", TensorPlace::input)) << "which is cast";
}

struct RecurrentImpl : torch::nn::Module {
  torch::nn::AnyModule layer;
  torch::nn::Linear head{nullptr};
  explicit RecurrentImpl(int kind) {
    torch::manual_seed(10);
    if (kind == 0) layer = torch::nn::AnyModule(torch::nn::LSTM(kFeatures, 2));
    if (kind == 1) layer = torch::nn::AnyModule(torch::nn::GRU(kFeatures, 2));
    if (kind == 2) layer = torch::nn::AnyModule(torch::nn::RNN(kFeatures, 2));
    register_module("layer", layer.ptr());
    head = register_module("head", torch::nn::Linear(2, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor steps = x.unsqueeze(0);
    if (auto* lstm = layer.ptr()->as<torch::nn::LSTM>())
      return head->forward(std::get<0>(lstm->forward(steps)).squeeze(0));
    if (auto* gru = layer.ptr()->as<torch::nn::GRU>())
      return head->forward(std::get<0>(gru->forward(steps)).squeeze(0));
    return head->forward(std::get<0>(layer.get<torch::nn::RNN>()->forward(steps)).squeeze(0));
  }
};
TORCH_MODULE(Recurrent);

// A region casts the input and the weights of each. Its LSTM gives 16 bits; on a CPU a GRU mixes
// products with a state in FP32, as LibTorch's dispatcher says below.
TEST(RangeTrace, OfRecurrentLayersTheRegionsDtypesAreFollowed) {
  const char* const names[] = {"lstm", "gru", "rnn_tanh"};
  for (int kind = 0; kind < 3; ++kind) {
    const std::string op = names[kind];
    Recurrent model(kind);
    const at::Tensor x = filled(std::ldexp(1, 17));
    const bool gives_16_bits = ops_in_16_bits([&] { return model->forward(x); }).contains(op);
    EXPECT_TRUE(gives_16_bits || op != "lstm");
    const WhatIfResult result = ask(model, rows_of(x));
    const TensorFate* input = find(result, "layer", op + ".input", TensorPlace::input);
    ASSERT_TRUE(input) << op;
    EXPECT_EQ(input->loss.overflowed, x.numel()) << op;
    EXPECT_EQ(input->loss.greatest, std::ldexp(1, 17)) << op;
    const TensorFate* weights = find(result, "layer", op + ".input", TensorPlace::weights);
    ASSERT_TRUE(weights) << op;
    int64_t parameters = 0;
    for (const at::Tensor& p : model->layer.ptr()->parameters()) parameters += p.numel();
    EXPECT_EQ(weights->loss.elements, parameters) << op;
    const bool is_cast = find(result, "head", "addmm", TensorPlace::input);
    EXPECT_EQ(is_cast, !gives_16_bits) << op;
    EXPECT_THAT(names_of(result.cures), ::testing::Contains("part layer")) << op;
  }
}

// Sparse and empty tensors, those of other dtypes and those without memory.
TEST(RangeTrace, WhatARegionDoesNotCastIsNotCounted) {
  const at::Tensor large = at::eye(4) * std::ldexp(1, 17);
  Plain model = handing_on([&](const at::Tensor& y) {
    const at::Tensor mixed = at::mm(large.to_sparse(), y.detach().to(torch::kFloat)) * 0;
    const at::Tensor exact = at::mm(large.to(torch::kDouble), large.to(torch::kDouble));
    const at::Tensor nothing = at::mm(y.narrow(0, 0, 0), at::eye(kFeatures));
    const at::Tensor shape = at::mm(at::empty({4, 4}, at::kMeta), at::empty({4, 4}, at::kMeta));
    EXPECT_EQ(shape.size(0), 4);
    return at::cat({nothing, y + mixed.detach() + exact.sum().to(torch::kFloat) * 0});
  });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* output = find(result, "big", "mm", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, 4 * kFeatures) << "of the sparse matrix and FP32";
  EXPECT_EQ(output->loss.overflowed, 4 * kFeatures);
  EXPECT_FALSE(find(result, "big", "mm", TensorPlace::weights));
  EXPECT_FALSE(find(result, "big", "mm", TensorPlace::input)) << "of a product without numbers";
}

// A row that is read twice has the sum of two gradients, by the definition of the derivative.
struct SparseImpl : torch::nn::Module {
  at::Tensor rows = register_parameter("rows", at::ones({3, kFeatures}));
  int64_t read = 4;
  at::Tensor forward(const at::Tensor& x) {
    at::mm(x, rows.t());  // casts the weight, and nothing reads what it gives
    return at::embedding(rows, at::zeros({read}, torch::kLong), -1, false, /*sparse=*/true)
        .sum(1, true);
  }
};
TORCH_MODULE(Sparse);

// Losses of the test's own, whose gradients are powers of two.
WhatIfResult ask_with_losses(
    const train::Network& network, torch::nn::Module& model, const data::Loader& loader,
    const std::function<std::vector<at::Tensor>(const at::Tensor& input, const at::Tensor& output)>&
        losses,
    WhatIfOptions with = {.loss_scale = 1, .dynamic_scale = false}, LossScale scale = {}) {
  train::TrainerOptions options = options_of(model);
  options.loss_scale = scale;
  options.losses = [losses](const train::Network& of, const data::Batch& batch) {
    return losses(batch.input, of.forward(batch));
  };
  train::Trainer trainer(network, options);
  const auto what_if = std::make_shared<WhatIf>(std::move(with));
  trainer.add(what_if);
  trainer.fit(loader);
  return what_if->result();
}

TEST(RangeTrace, GradientsOfASparseWeightAreAddedUpFirst) {
  const auto times = [](double factor) {
    return [factor](const at::Tensor&, const at::Tensor& output) {
      return std::vector<at::Tensor>{output.sum() * factor};
    };
  };
  Sparse model;
  const WhatIfResult result =
      ask_with_losses(train::network(model), *model, rows_of(filled(1)), times(std::ldexp(1, 15)));
  const TensorFate* gradient = find(result, "model", "mm", TensorPlace::weight_gradient);
  ASSERT_TRUE(gradient);
  EXPECT_EQ(gradient->loss.greatest, std::ldexp(1, 17)) << "four times 2^15";
  EXPECT_EQ(gradient->loss.overflowed, kFeatures);
  Sparse unread;
  unread->read = 0;
  const WhatIfResult none =
      ask_with_losses(train::network(unread), *unread, rows_of(filled(1)), times(1));
  EXPECT_EQ(none.batches, 1);
  EXPECT_FALSE(find(none, "model", "mm", TensorPlace::weight_gradient)) << "of no numbers";
}

// What runs before the first layer belongs to no layer, in every batch.
struct BeforeImpl : torch::nn::Module {
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kFeatures, 1))};
  at::Tensor forward(const at::Tensor& x) { return head->forward(at::mm(x, at::eye(kFeatures))); }
};
TORCH_MODULE(Before);

TEST(RangeTrace, WhatRunsBeforeALayerBelongsToNone) {
  const WhatIfResult result = ask(Before(), rows_of(at::cat({filled(1), filled(2)})));
  const TensorFate* output = find(result, "", "mm", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, 2 * 4 * kFeatures);
  EXPECT_FALSE(find(result, "head", "mm", TensorPlace::output));
}

// The first layer's numbers come from a buffer.
struct BufferedImpl : torch::nn::Module {
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kFeatures, 1))};
  at::Tensor table{register_buffer("table", filled(std::ldexp(1, 17)))};
  at::Tensor forward(const at::Tensor& x) { return head->forward(table) + x.sum() * 0; }
};
TORCH_MODULE(Buffered);

TEST(RangeTrace, ABufferThatIsTooLargeIsNamed) {
  Buffered model;
  {
    const at::NoGradGuard no_grad;
    model->head->weight.fill_(std::ldexp(1, 18));
  }
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* input = find(result, "head", "addmm", TensorPlace::input);
  ASSERT_TRUE(input);
  EXPECT_EQ(input->from, "buffer table");
  const TensorFate* weights = find(result, "head", "addmm", TensorPlace::weights);
  ASSERT_TRUE(weights);
  EXPECT_EQ(weights->loss.overflowed, kFeatures);
  EXPECT_EQ(weights->from, "") << "they are read, and not made";
  EXPECT_EQ(input->loss.overflowed, 4 * kFeatures);
}

// Two losses of one output: its gradient is counted once for each of the two backward passes.
TEST(RangeTrace, GradientsOfEveryLossCount) {
  Plain model = handing_on([](const at::Tensor& y) { return y.relu(); });
  const auto losses = [](const at::Tensor&, const at::Tensor& output) {
    return std::vector<at::Tensor>{output.sum() * std::ldexp(1, 17), output.sum()};
  };
  for (const double scale : {0.0, 1024.0}) {
    const WhatIfResult result =
        ask_with_losses(train::network(model), *model, rows_of(filled(1)), losses,
                        {.loss_scale = 1, .dynamic_scale = false},
                        scale > 0 ? LossScale{LossScale::Kind::fixed, scale} : LossScale{});
    const TensorFate* gradient = find(result, "head", "addmm", TensorPlace::output_gradient);
    ASSERT_TRUE(gradient);
    EXPECT_EQ(gradient->loss.elements, 2 * 4);
    EXPECT_EQ(gradient->loss.greatest, std::ldexp(1, 17)) << "scaled by " << scale;
    EXPECT_EQ(gradient->loss.overflowed, 4) << "scaled by " << scale;
    EXPECT_EQ(gradient->loss.least_exponent, 0) << "scaled by " << scale;
    EXPECT_EQ(gradient->loss.first_overflow, 1);
    const TensorFate* of_relu = find(result, "big", "relu", TensorPlace::output_gradient);
    ASSERT_TRUE(of_relu);
    EXPECT_EQ(of_relu->loss.elements, 2 * 4 * kFeatures);
  }
}

// The greatest gradient is that of the head's bias, four rows times a quarter: 2, 2^17, 2 and 2^14
// in the four batches. The others are small by weights of 2^-20 and inputs of 1 at most.
TEST(RangeTrace, TheScalesAreThoseOfAllBatches) {
  Plain model = handing_on([](const at::Tensor& y) { return y.clamp(-1, 1); });
  {
    const at::NoGradGuard no_grad;
    model->small->weight.copy_(at::eye(kFeatures));
    model->small->bias.zero_();
    model->head->weight.fill_(std::ldexp(1, -20));
  }
  const at::Tensor x =
      at::cat({filled(2), filled(std::ldexp(1, 17)), filled(2), filled(std::ldexp(1, 14))});
  const WhatIfResult result =
      ask_with_losses(train::network(model), *model, rows_of(x),
                      [](const at::Tensor& input, const at::Tensor& output) {
                        return std::vector<at::Tensor>{output.sum() * (input.max() / 4)};
                      },
                      {.loss_scale = 4, .dynamic_scale = true});
  // 2^17 overflows times every scale, of which 1 is the least; 2^14 is below 65504 times 2.
  EXPECT_EQ(result.least_scale, 1);
  EXPECT_EQ(result.greatest_scale, 4);
}

struct GainImpl : torch::nn::Module {
  at::Tensor gain = register_parameter("gain", at::ones({kFeatures}));
  torch::nn::Linear head{register_module("head", torch::nn::Linear(kFeatures, 1))};
  torch::nn::Linear twin{register_module("twin", torch::nn::Linear(kFeatures, 1))};
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor wide = x * gain;  // FP32 in a region
    return head->forward(wide) + twin->forward(wide);
  }
};
TORCH_MODULE(Gain);

TEST(RangeTrace, WhatIsReadTwiceIsCastOnce) {
  Gain model;
  const WhatIfResult result = ask_with_losses(train::network(model), *model, rows_of(filled(1)),
                                              [](const at::Tensor&, const at::Tensor& output) {
                                                return std::vector<at::Tensor>{output.sum()};
                                              });
  for (const char* layer : {"head", "twin"}) {
    const TensorFate* input = find(result, layer, "addmm", TensorPlace::input);
    ASSERT_TRUE(input) << layer;
    EXPECT_EQ(input->loss.elements, 4 * kFeatures) << layer;
    const TensorFate* gradient = find(result, layer, "addmm", TensorPlace::input_gradient);
    ASSERT_TRUE(gradient) << layer;
    EXPECT_EQ(gradient->loss.elements, 4 * kFeatures) << layer;
  }
}

// 0 times 2^40 is added, whose gradient by the gain is 2^40 and more.
TEST(RangeTrace, GradientsOfWhatStaysInFp32LowerNoScale) {
  Plain model = handing_on([](const at::Tensor& y) { return y; });
  const at::Tensor gain = model->register_parameter("gain", at::ones({kFeatures}));
  model->between = [gain](const at::Tensor& y) {
    return y + ((gain - gain.detach()) * std::ldexp(1, 40)).sum();
  };
  const auto losses = [](const at::Tensor&, const at::Tensor& output) {
    return std::vector<at::Tensor>{output.sum()};
  };
  const WhatIfResult result = ask_with_losses(train::network(model), *model, rows_of(filled(1)),
                                              losses, {.loss_scale = 16, .dynamic_scale = true});
  EXPECT_EQ(result.least_scale, 16);
}

// A part's layers are those below it, and no others of the same beginning.
struct NestedImpl : torch::nn::Module {
  struct Part : torch::nn::Module {
    torch::nn::Linear inner{register_module("inner", torch::nn::Linear(kFeatures, kFeatures))};
  };
  std::shared_ptr<Part> part = register_module("part", std::make_shared<Part>());
  torch::nn::Linear part2{register_module("part2", torch::nn::Linear(kFeatures, 1))};
  at::Tensor forward(const at::Tensor& x) { return part2->forward(part->inner->forward(x)); }
};
TORCH_MODULE(Nested);

TEST(RangeTrace, APartInFp32IsNamedWithAllBelowIt) {
  WhatIfOptions options;
  options.policy.keep_part_in_fp32("part");
  const WhatIfResult result = ask(Nested(), rows_of(filled(1)), options);
  EXPECT_FALSE(find(result, "part.inner", "addmm", TensorPlace::output));
  EXPECT_TRUE(find(result, "part2", "addmm", TensorPlace::output));
}

// A penalty on gradients: what backward computes is no part of forward.
TEST(RangeTrace, OpsOfABackwardPassWithinTheLossAreNotForwards) {
  Plain model = handing_on([](const at::Tensor& y) { return y.relu(); });
  const WhatIfResult result = ask_with_losses(
      train::network(model), *model, rows_of(filled(1)),
      [&](const at::Tensor&, const at::Tensor& output) {
        const auto inner = torch::autograd::grad({output.sum()}, {model->big->weight}, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true);
        return std::vector<at::Tensor>{output.sum() + inner[0].square().sum()};
      });
  EXPECT_TRUE(find(result, "head", "addmm", TensorPlace::output));
  for (const TensorFate& fate : result.tensors) {
    EXPECT_NE(fate.op, "mm");
    EXPECT_NE(fate.op, "threshold_backward");
  }
}

// A mask that dropout makes in memory of its own is a part of dropout.
TEST(RangeTrace, MemoryThatAnOpFillsIsNoTensorOfTheStep) {
  Plain model = handing_on([](const at::Tensor& y) { return at::dropout(y, 0.5, true); });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* output = find(result, "big", "dropout", TensorPlace::output);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->loss.elements, 4 * kFeatures);
  EXPECT_EQ(output->loss.greatest, 2) << "1 / 0.5";
  EXPECT_EQ(output->loss.least_exponent, 1);
}

TEST(RangeTrace, ATensorThatAProductReadsTwiceCountsOnce) {
  Plain model = handing_on([](const at::Tensor& y) {
    const at::Tensor square = at::eye(kFeatures);
    return at::mm(y, at::mm(square, square));
  });
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  EXPECT_EQ(find(result, "big", "mm", TensorPlace::input)->loss.elements, kFeatures * kFeatures);
}

// An output that is too large before what hands it on; where neither is, by what is lost.
TEST(RangeTrace, TheMostHarmedComesFirst) {
  const auto places = [](const WhatIfResult& result) {
    std::vector<std::string> all;
    for (const TensorFate& fate : result.tensors)
      all.push_back(fate.layer + " " + fate.op + " " + std::string(name_of(fate.place)));
    return all;
  };
  const auto order = [&](const std::vector<std::string>& all, const std::string& one) {
    return std::ranges::find(all, one) - all.begin();
  };
  Plain large = handing_on([](const at::Tensor& y) {
    return y.relu().to(torch::kDouble).to(torch::kFloat);  // which is cast again, from outside
  });
  auto all = places(ask(large, rows_of(filled(std::ldexp(1, 17)))));
  EXPECT_LT(order(all, "big addmm input"), order(all, "small addmm input"));
  EXPECT_LT(order(all, "big addmm input"), order(all, "big addmm output")) << "handed on";
  EXPECT_LT(order(all, "small addmm input"), order(all, "big relu output"));
  // Half of the input's numbers, which are all of its norm, and then every number is flushed.
  const at::Tensor half = filled(0).index_fill(1, at::arange(kFeatures / 2), std::ldexp(1, -30));
  all = places(ask(handing_on([](const at::Tensor& y) { return (y + 1) * std::ldexp(1, -30); }),
                   rows_of(half)));
  EXPECT_LT(order(all, "big mul.Scalar output"), order(all, "big addmm input"));
  // Seven eighths of the numbers and little of the norm, then fewer numbers and all of the norm.
  const at::Tensor most = filled(std::ldexp(1, -30)).index_fill(1, at::arange(1), 1);
  all = places(ask(handing_on([](const at::Tensor& y) {
                     return y.clamp_max(std::ldexp(1, -30)).index_fill(1, at::arange(4), 0);
                   }),
                   rows_of(most)));
  EXPECT_LT(order(all, "big index_fill.int_Scalar output"), order(all, "big addmm input"));
  // Nothing is flushed: half of the numbers are subnormal, then all.
  const at::Tensor small =
      filled(std::ldexp(1, -4)).index_fill(1, at::arange(4), std::ldexp(1, -20));
  all = places(ask(handing_on([](const at::Tensor& y) { return y.clamp_max(std::ldexp(1, -18)); }),
                   rows_of(small)));
  EXPECT_LT(order(all, "big clamp_max output"), order(all, "big addmm input"));
}

// Numbers without a dimension do not make a 16-bit result FP32, unless there is nothing else.
TEST(RangeTrace, ScalarsDoNotDecide) {
  const at::Tensor factor = at::full({}, std::ldexp(1, 17), torch::kFloat);
  Plain model = handing_on(
      [&](const at::Tensor& y) { return y * factor * factor.reciprocal() + y.sum().neg(); });
  const auto forward = [&] { return model->forward(filled(1)); };
  EXPECT_TRUE(ops_in_16_bits(forward).contains("mul"));
  EXPECT_TRUE(ops_in_16_bits(forward).contains("neg"));
  EXPECT_FALSE(ops_in_16_bits(forward).contains("reciprocal"));
  const WhatIfResult result = ask(model, rows_of(filled(1)));
  const TensorFate* product = find(result, "big", "mul.Tensor", TensorPlace::output);
  ASSERT_TRUE(product);
  EXPECT_EQ(product->loss.overflowed, 4 * kFeatures);
  EXPECT_TRUE(find(result, "big", "neg", TensorPlace::output));
  EXPECT_FALSE(find(result, "big", "reciprocal", TensorPlace::output));
}

}  // namespace
}  // namespace demi::monitor
