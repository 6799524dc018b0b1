#include "demi/imported/outputs.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "demi/core/error.h"
#include "demi/imported/fixtures_testing.h"
#include "demi/imported/imported_model.h"

namespace demi::imported {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// modes.pt2 returns two tensors in train mode, and one in eval mode.
TEST(SelectOutput, TakesWhatBothModesHave) {
  ImportedModel model(fixture("modes.pt2"));
  EXPECT_THAT([&] { model->select_output("1"); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("no such output in eval mode"), HasSubstr("accepted: 0;"))));
  EXPECT_THAT([&] { model->select_output("2"); },
              ThrowsMessage<UsageError>(HasSubstr("no such output in train mode")));
  model->select_output("0");
  const auto truth = tensors_in("modes.safetensors");
  model->eval();
  expect_near(model->forward(truth.at("x")), truth.at("eval"));
  model->train();
  expect_near(model->forward(truth.at("x")), truth.at("train"));
}

/// keys.pt2 returns {"1": 2 x, "rows": an integer, "2": x + 2, "pair": (x, x)}.
TEST(SelectOutput, ReadsAKeyBeforeANumberAndCountsTensors) {
  ImportedModel model(fixture("keys.pt2"));
  const at::Tensor x = torch::randn({3, 2});
  for (const auto& [output, expected] :
       {std::pair<std::string, at::Tensor>("1", x * 2), {"2", x + 2}, {"0", x * 2}, {"3", x}}) {
    model->select_output(output);
    EXPECT_TRUE(model->forward(x).equal(expected)) << output;
  }
  for (const char* output : {"rows", "pair", "4", "-1", "1x"})
    EXPECT_THAT([&] { model->select_output(output); },
                ThrowsMessage<UsageError>(HasSubstr("accepted: 1, 2, 0 to 3;")))
        << output;
}

TEST(FindOutput, KnowsDictsOfNumbers) {
  c10::impl::GenericDict dict(c10::IntType::get(), c10::AnyType::get());
  const at::Tensor one = torch::ones({1}), two = torch::ones({2});
  dict.insert(2, two);
  dict.insert(7, one);
  EXPECT_TRUE(find_output(dict, "7")->is_same(one));
  EXPECT_TRUE(find_output(dict, "0")->is_same(two));
  EXPECT_FALSE(find_output(dict, "").has_value());
  EXPECT_EQ(output_names(dict), "2, 7, 0 to 1");
  EXPECT_FALSE(find_output(c10::IValue(3), "0").has_value());
  EXPECT_EQ(output_names(c10::IValue(3)), "no tensor");
}

}  // namespace
}  // namespace demi::imported
