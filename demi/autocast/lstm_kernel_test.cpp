// torch.nn.LSTM in a region comes to demi's layer whatever its input's dtype and lengths are.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/autocast/kernels.h"

namespace demi {
namespace {

namespace rnn_utils = torch::nn::utils::rnn;

constexpr int64_t kLstmInputs = 8, kLstmHidden = 16;
const std::vector<int64_t> kSeveralLengths{30, 30, 22, 7, 1};

struct LstmRun {
  std::vector<at::Tensor> outputs, gradients;  // output, h, c; of the input, then the parameters
};

torch::nn::LSTM two_layers_both_ways(double dropout = 0) {
  torch::manual_seed(3);
  return torch::nn::LSTM(torch::nn::LSTMOptions(kLstmInputs, kLstmHidden)
                             .num_layers(2)
                             .bidirectional(true)
                             .dropout(dropout));
}

/// The loss is a sum of squares, which asks for a gradient of every result.
LstmRun with_gradients(const torch::nn::LSTM& lstm, const at::Tensor& input,
                       std::vector<at::Tensor> outputs) {
  at::Tensor loss = torch::zeros({}, torch::kDouble);
  for (const auto& output : outputs) loss = loss + output.to(torch::kDouble).pow(2).sum();
  std::vector<at::Tensor> leaves{input};
  for (const auto& p : lstm->parameters()) leaves.push_back(p);
  return {std::move(outputs), torch::autograd::grad({loss}, leaves)};
}

std::vector<at::Tensor> three(const std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>>& r) {
  return {std::get<0>(r), std::get<0>(std::get<1>(r)), std::get<1>(std::get<1>(r))};
}

LstmRun of_input(torch::nn::LSTM lstm, const at::Tensor& values) {
  const at::Tensor input = values.detach().clone().requires_grad_();
  return with_gradients(lstm, input, three(lstm->forward(input)));
}

LstmRun of_lengths(torch::nn::LSTM lstm, const at::Tensor& values,
                   const std::vector<int64_t>& lengths = kSeveralLengths) {
  const at::Tensor input = values.detach().clone().requires_grad_();
  const auto packed = rnn_utils::pack_padded_sequence(input, torch::tensor(lengths));
  const auto [output, state] = lstm->forward_with_packed_input(packed);
  return with_gradients(lstm, input, {output.data(), std::get<0>(state), std::get<1>(state)});
}

template <class Run>
LstmRun lstm_in_region(c10::ScalarType dtype, const Run& run) {
  const Autocast region(torch::kCPU, dtype);
  return run();
}

double off_by(const std::vector<at::Tensor>& seen, const std::vector<at::Tensor>& exact) {
  double squares = 0, all = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    squares += (seen[i].to(torch::kDouble) - exact[i]).pow(2).sum().item<double>();
    all += exact[i].pow(2).sum().item<double>();
  }
  return std::sqrt(squares / all);
}

void expect_equal_runs(const LstmRun& seen, const LstmRun& expected) {
  for (std::size_t i = 0; i < expected.outputs.size(); ++i) {
    EXPECT_EQ(seen.outputs[i].scalar_type(), expected.outputs[i].scalar_type()) << "result " << i;
    EXPECT_TRUE(seen.outputs[i].equal(expected.outputs[i])) << "result " << i;
  }
  for (std::size_t i = 0; i < expected.gradients.size(); ++i)
    EXPECT_TRUE(
        seen.gradients[i].to(torch::kDouble).equal(expected.gradients[i].to(torch::kDouble)))
        << "gradient " << i;
}

// LibTorch takes the op that the layer replaces with FP32 input on any processor, with 16-bit input
// on some.
TEST(LstmOfInput, SixteenBitInputGivesTheBitsOfTheSameNumbersInFp32) {
  const auto lstm = two_layers_both_ways();
  const at::Tensor values = torch::randn({30, 4, kLstmInputs});
  for (const auto region : {torch::kBFloat16, torch::kHalf}) {
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      SCOPED_TRACE(testing::Message() << region << " region, " << dtype << " input");
      const at::Tensor low = values.to(dtype);
      const auto seen = lstm_in_region(region, [&] { return of_input(lstm, low); });
      auto expected = lstm_in_region(region, [&] { return of_input(lstm, low.to(at::kFloat)); });
      EXPECT_EQ(seen.outputs[0].scalar_type(), region);
      // Two directions' gradients of the input are added in its own dtype.
      EXPECT_LT(off_by({seen.gradients[0]}, {expected.gradients[0].to(torch::kDouble)}), 0x1p-7);
      expected.gradients[0] = seen.gradients[0];
      expect_equal_runs(seen, expected);
    }
  }
}

// c in FP32 from step to step: in 16 bits the distance would be twice that.
TEST(LstmOfInput, BehindALinearAndAnotherLstmItIsNearFp64) {
  torch::manual_seed(5);
  torch::nn::Linear linear(kLstmInputs, kLstmInputs);
  torch::nn::LSTM first(kLstmInputs, kLstmHidden), second(kLstmHidden, kLstmHidden);
  const at::Tensor x = torch::randn({60, 8, kLstmInputs});
  const auto forward = [&](const at::Tensor& input) {
    return std::get<0>(second(std::get<0>(first(linear(input)))));
  };
  const at::Tensor seen = [&] {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    return forward(x);
  }();
  for (torch::nn::Module* module :
       std::initializer_list<torch::nn::Module*>{linear.get(), first.get(), second.get()})
    module->to(torch::kDouble);
  EXPECT_EQ(seen.scalar_type(), torch::kBFloat16);
  EXPECT_LT(off_by({seen}, {forward(x.to(torch::kDouble))}), 0x1p-8);
}

TEST(LstmOfPacked, SequencesOfSeveralLengthsAreNearFp64) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const double rounding = dtype == torch::kHalf ? 0x1p-11 : 0x1p-8;
    auto lstm = two_layers_both_ways();
    const at::Tensor values = torch::randn({30, 5, kLstmInputs}).to(dtype);
    for (const auto input : {at::kFloat, dtype}) {
      SCOPED_TRACE(testing::Message() << dtype << " region, " << input << " input");
      const auto seen = lstm_in_region(dtype, [&] { return of_lengths(lstm, values.to(input)); });
      for (const auto& output : seen.outputs) EXPECT_EQ(output.scalar_type(), dtype);
      lstm->to(torch::kDouble);
      const auto exact = of_lengths(lstm, values.to(at::kDouble));
      lstm->to(torch::kFloat);
      EXPECT_LT(off_by(seen.outputs, exact.outputs), rounding);
      EXPECT_LT(off_by(seen.gradients, exact.gradients), 2 * rounding);
    }
  }
}

TEST(LstmOfPacked, EqualLengthsGiveTheBitsOfTheUnpackedForm) {
  const auto lstm = two_layers_both_ways();
  const at::Tensor values = torch::randn({12, 3, kLstmInputs});
  const auto seen = lstm_in_region(torch::kBFloat16, [&] {
    return of_lengths(lstm, values, {12, 12, 12});
  });
  auto expected = lstm_in_region(torch::kBFloat16, [&] { return of_input(lstm, values); });
  expected.outputs[0] = expected.outputs[0].flatten(0, 1);
  expect_equal_runs(seen, expected);
}

TEST(LstmOfPacked, DropoutDrawsAsLibTorchDoes) {
  const auto lstm = two_layers_both_ways(/*dropout=*/0.5);
  const at::Tensor values = torch::randn({30, 5, kLstmInputs});
  torch::manual_seed(9);
  const auto seen = lstm_in_region(torch::kBFloat16, [&] { return of_lengths(lstm, values); });
  torch::manual_seed(9);
  const auto fp32 = of_lengths(lstm, values);
  EXPECT_LT(off_by(seen.outputs, {fp32.outputs[0].to(at::kDouble), fp32.outputs[1].to(at::kDouble),
                                  fp32.outputs[2].to(at::kDouble)}),
            0x1p-6);
}

TEST(LstmOfPacked, OtherThingsStayLibTorchs) {
  const at::Tensor values = torch::randn({30, 5, kLstmInputs});
  torch::nn::LSTM projected(torch::nn::LSTMOptions(kLstmInputs, kLstmHidden).proj_size(4));
  const auto seen = lstm_in_region(torch::kBFloat16, [&] { return of_lengths(projected, values); });
  EXPECT_EQ(seen.outputs[1].size(-1), 4);

  const auto lstm = two_layers_both_ways();
  {  // a policy that keeps the layer in FP32
    const Autocast region(torch::kCPU,
                          {.dtype = torch::kBFloat16,
                           .policy = OpPolicy().set("mkldnn_rnn_layer", OpCategory::fp32)});
    EXPECT_EQ(of_input(lstm, values.to(at::kBFloat16)).outputs[0].scalar_type(), at::kFloat);
  }
  {  // one that names the op itself
    const Autocast region(
        torch::kCPU,
        {.dtype = torch::kBFloat16,
         .policy =
             OpPolicy().set("lstm.data", OpCategory::fp32).set("lstm.input", OpCategory::fp32)});
    const auto named = of_lengths(lstm, values).outputs, fp32 = [&] {
      const Autocast off(torch::kCPU, {.enabled = false});
      return of_lengths(lstm, values).outputs;
    }();
    for (std::size_t i = 0; i < fp32.size(); ++i) EXPECT_TRUE(named[i].equal(fp32[i])) << i;
    EXPECT_EQ(of_input(lstm, values.to(at::kBFloat16)).outputs[0].scalar_type(), at::kFloat);
  }
  const at::Tensor wrong = torch::randn({30, 5, kLstmInputs + 1});
  EXPECT_THROW(lstm_in_region(torch::kBFloat16, [&] { return of_lengths(lstm, wrong); }),
               c10::Error);
}

}  // namespace
}  // namespace demi
