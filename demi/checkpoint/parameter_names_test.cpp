// An optimizer's state goes to the parameters whose it was, in whatever order and groups the
// optimizer has them now. The truth is the loop that was never interrupted: AdamW updates each
// element for itself, so the order of parameters changes no bit.
#include "demi/checkpoint/parameter_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/training_state.h"
#include "demi/core/error.h"
#include "demi/optim/adamw.h"
#include "demi/optim/decay_groups.h"
#include "demi/optim/export_fp32.h"
#include "demi/optim/sgd.h"

namespace demi::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Two layers of one shape, of which nothing but the name tells which is which.
torch::nn::Sequential two_layers(c10::ScalarType dtype = at::kFloat) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Tanh(), torch::nn::Linear(3, 3));
  model->to(dtype);
  return model;
}

void step(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer, int number) {
  const at::Tensor x = (torch::arange(12, at::kFloat) + number).sin().reshape({4, 3});
  model->zero_grad();
  const auto dtype = model->parameters().front().scalar_type();
  model->forward(x.to(dtype)).to(at::kFloat).pow(2).sum().backward();
  optimizer.step();
}

loop::Job job(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer) {
  return {.models = {model.ptr().get()}, .optimizers = {&optimizer}};
}

std::vector<at::Tensor> in_reverse(const torch::nn::Sequential& model) {
  std::vector<at::Tensor> parameters = model->parameters();
  std::ranges::reverse(parameters);
  return parameters;
}

template <class Optimizer, class Options>
void expect_order_not_to_matter() {
  auto whole = two_layers(), rest = two_layers();
  Optimizer before(whole->parameters(), Options(0.05)), after(in_reverse(rest), Options(0.3));
  for (int i = 0; i < 3; ++i) step(whole, before, i);
  restore(own_copy(capture(job(whole, before))), job(rest, after));
  EXPECT_EQ(after.param_groups()[0].options().get_lr(), 0.05) << "the group is the same one";
  for (int i = 3; i < 6; ++i) {
    step(whole, before, i);
    step(rest, after, i);
  }
  EXPECT_TRUE(same_tensors(capture(job(whole, before)).model, capture(job(rest, after)).model));
}

TEST(ParameterNames, OrderDoesNotMatter) {
  expect_order_not_to_matter<optim::AdamW, optim::AdamWOptions>();
}

TEST(ParameterNames, OrderDoesNotMatterForLibTorchsOptimizers) {
  expect_order_not_to_matter<torch::optim::AdamW, torch::optim::AdamWOptions>();
}

TEST(ParameterNames, OtherGroupsKeepTheirOptionsAndGetTheirMoments) {
  auto whole = two_layers(), rest = two_layers();
  optim::AdamW before(whole->parameters(), optim::AdamWOptions(0.05));
  for (int i = 0; i < 3; ++i) step(whole, before, i);
  const Checkpoint saved = own_copy(capture(job(whole, before)));
  EXPECT_THAT(saved.parameters.at("optimizer"),
              ElementsAre(ElementsAre("0.weight", "0.bias", "2.weight", "2.bias")));
  // Weights, then biases: 0 2 1 3.
  optim::AdamW after(
      optim::with_decay_by_rule(*rest, optim::AdamWOptions(0.05).weight_decay(0.125)));
  optim::lr::Scheduler schedule(after, optim::lr::cosine(10));
  loop::Job with_schedule = job(rest, after);
  with_schedule.schedules = {&schedule};
  Checkpoint at_step_3 = saved;
  at_step_3.numbers["schedule"] = {{"last_epoch", 3}, {"base_lrs.0", 7}};
  at_step_3.state["optimizer/scheduled_rates.0"] = torch::ones({10}, at::kDouble);
  restore(at_step_3, with_schedule);
  const Checkpoint now = capture(job(rest, after));
  const std::size_t was[] = {0, 2, 1, 3};
  for (std::size_t i = 0; i < 4; ++i)
    for (const char* name : {".exp_avg", ".exp_avg_sq", ".step"})
      EXPECT_TRUE(torch::equal(now.state.at("optimizer/" + std::to_string(i) + name),
                               saved.state.at("optimizer/" + std::to_string(was[i]) + name)))
          << i << name;
  EXPECT_EQ(now.numbers.at("optimizer/group.0").at("weight_decay"), 0.125);
  EXPECT_EQ(now.numbers.at("optimizer/group.1").at("weight_decay"), 0);
  EXPECT_FALSE(now.state.contains("optimizer/scheduled_rates.0")) << "of a group that is no more";
  EXPECT_EQ(schedule.state_dict().at("last_epoch"), 3);
  EXPECT_EQ(schedule.state_dict().at("base_lrs.0"), 0.05) << "the group has another base rate";
}

torch::optim::AdamW two_groups(const at::Tensor& first, const at::Tensor& second, double rate) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const at::Tensor& parameter : {first, second}) {
    groups.emplace_back(std::vector<at::Tensor>{parameter},
                        std::make_unique<torch::optim::AdamWOptions>(rate));
    rate *= 2;
  }
  return torch::optim::AdamW(groups, torch::optim::AdamWOptions(rate));
}

TEST(ParameterNames, OtherGroupsOfLibTorchsOptimizersKeepTheirOptionsToo) {
  auto whole = two_layers(), rest = two_layers();
  auto before = two_groups(whole->parameters()[0], whole->parameters()[2], 0.5),
       after = two_groups(rest->parameters()[2], rest->parameters()[0], 0.125);
  step(whole, before, 0);
  restore(own_copy(capture(job(whole, before))), job(rest, after));
  EXPECT_EQ(after.param_groups()[0].options().get_lr(), 0.125);
  EXPECT_EQ(after.param_groups()[1].options().get_lr(), 0.25);
  const auto moment = [](torch::optim::AdamW& adamw, const at::Tensor& parameter) {
    const auto& state = adamw.state().at(parameter.unsafeGetTensorImpl());
    return dynamic_cast<torch::optim::AdamWParamState&>(*state).exp_avg();
  };
  for (const std::size_t i : {0U, 2U})
    EXPECT_TRUE(
        torch::equal(moment(after, rest->parameters()[i]), moment(before, whole->parameters()[i])))
        << i;
}

std::string refusal(const Checkpoint& saved, torch::nn::Sequential& model,
                    torch::optim::Optimizer& optimizer) {
  const Checkpoint before = own_copy(capture(job(model, optimizer)));
  std::string said = "accepted";
  try {
    restore(saved, job(model, optimizer));
  } catch (const UsageError& error) {
    said = error.what();
    EXPECT_TRUE(same_tensors(before.model, capture(job(model, optimizer)).model));
  }
  return said;
}

TEST(ParameterNames, AnOlderCheckpointIsReadByNumberWhereGroupsAreTheSame) {
  auto whole = two_layers(), rest = two_layers(), other = two_layers();
  optim::AdamW before(whole->parameters(), optim::AdamWOptions(0.05));
  for (int i = 0; i < 3; ++i) step(whole, before, i);
  Checkpoint old = own_copy(capture(job(whole, before)));
  old.parameters.clear();
  optim::AdamW same(rest->parameters(), optim::AdamWOptions(0.05));
  restore(old, job(rest, same));
  EXPECT_TRUE(same_tensors(capture(job(rest, same)).state, old.state));
  optim::AdamW split(optim::with_decay_by_rule(*other, optim::AdamWOptions(0.05)));
  old.numbers["optimizer/group.1"] = old.numbers["optimizer/group.0"];
  old.numbers["optimizer"] = {{"parameters.0", 1}, {"parameters.1", 3}};
  EXPECT_THAT(refusal(old, other, split),
              AllOf(HasSubstr("by number, without names"), HasSubstr("seen: 1 + 3 parameters"),
                    HasSubstr("accepted: 2 + 2")));
}

TEST(ParameterNames, OtherParametersAreRefusedByName) {
  auto model = two_layers();
  optim::AdamW all(model->parameters(), optim::AdamWOptions(0.05));
  step(model, all, 0);
  const Checkpoint saved = own_copy(capture(job(model, all)));
  optim::AdamW layer({model[0]->parameters()}, optim::AdamWOptions(0.05));
  EXPECT_THAT(refusal(saved, model, layer), HasSubstr("seen: without 2.weight, 2.bias;"));
  step(model, layer, 1);
  EXPECT_THAT(refusal(own_copy(capture(job(model, layer))), model, all),
              HasSubstr("with 2.weight, 2.bias, which had no state in it"));
  Checkpoint twice = saved;
  twice.parameters.at("optimizer").front()[1] = "0.weight";
  EXPECT_THAT(refusal(twice, model, all), HasSubstr("with 0.bias, which had no state in it"));
}

TEST(ParameterNames, ATiedParameterIsKnownUnderAnyOfItsNames) {
  auto model = two_layers();
  optim::AdamW adamw(model->parameters(), optim::AdamWOptions(0.05));
  model->register_module("again", model->ptr(0));
  step(model, adamw, 0);
  Checkpoint saved = own_copy(capture(job(model, adamw)));
  for (std::string& name : saved.parameters.at("optimizer").front())
    if (name == "0.weight") name = "again.weight";
  restore(saved, job(model, adamw));
}

TEST(ParameterNames, MastersAreTheWeightsInAnyPrecision) {
  for (const auto low : {at::kHalf, at::kBFloat16}) {
    auto whole = two_layers(), narrow = two_layers(low), wide = two_layers();
    optim::AdamW fp32(whole->parameters(), optim::AdamWOptions(0.05)),
        masters(in_reverse(narrow), optim::AdamWOptions(0.05)),
        again(wide->parameters(), optim::AdamWOptions(0.05));
    for (int i = 0; i < 3; ++i) step(whole, fp32, i);
    const Checkpoint saved = own_copy(capture(job(whole, fp32)));
    restore(saved, job(narrow, masters));
    const Checkpoint in_16_bits = own_copy(capture(job(narrow, masters)));
    restore(in_16_bits, job(wide, again));
    EXPECT_TRUE(same_tensors(capture(job(wide, again)).model, saved.model)) << "there and back";
    EXPECT_TRUE(same_tensors(capture(job(wide, again)).state, saved.state));
    step(narrow, masters, 3);
    const Checkpoint stepped = own_copy(capture(job(narrow, masters)));
    restore(stepped, job(wide, again));
    EXPECT_TRUE(torch::equal(capture(job(wide, again)).model.at("0.weight"),
                             stepped.state.at("optimizer/3.master")));
  }
}

TEST(ParameterNames, RemaindersAreTheWeightsInAnyPrecision) {
  for (const auto mode : {optim::WeightMode::split, optim::WeightMode::split24}) {
    auto narrow = two_layers(at::kBFloat16);
    optim::AdamW lean(narrow->parameters(), optim::AdamWOptions(0.05), {.weight_mode = mode});
    for (int i = 0; i < 3; ++i) step(narrow, lean, i);
    const Checkpoint saved = own_copy(capture(job(narrow, lean)));
    std::vector<at::Tensor> trained;
    for (const at::Tensor& p : narrow->parameters()) trained.push_back(optim::fp32_weight(lean, p));
    EXPECT_FALSE(torch::equal(trained[0], narrow->parameters()[0].to(at::kFloat)));

    auto wide = two_layers();
    optim::AdamW fp32(wide->parameters(), optim::AdamWOptions(0.05));
    restore(saved, job(wide, fp32));
    for (std::size_t i = 0; i < trained.size(); ++i)
      EXPECT_TRUE(torch::equal(wide->parameters()[i], trained[i])) << i;

    step(narrow, lean, 3);
    for (const auto other : {mode, optim::WeightMode::master}) {
      auto same = two_layers(at::kBFloat16);
      optim::AdamW adamw(same->parameters(), optim::AdamWOptions(0.05), {.weight_mode = other});
      restore(saved, job(same, adamw));
      for (std::size_t i = 0; i < trained.size(); ++i)
        EXPECT_TRUE(torch::equal(optim::fp32_weight(adamw, same->parameters()[i]), trained[i]))
            << i;
      EXPECT_TRUE(same_tensors(capture(job(same, adamw)).model, saved.model));
      step(same, adamw, 3);
      if (other != mode && mode != optim::WeightMode::split) continue;  // rounds to fewer bits
      for (std::size_t i = 0; i < trained.size(); ++i)
        EXPECT_TRUE(torch::equal(optim::fp32_weight(adamw, same->parameters()[i]),
                                 optim::fp32_weight(lean, narrow->parameters()[i])))
            << i;
    }
  }
}

TEST(ParameterNames, AValueBeyondFp16IsRefusedByItsTensor) {
  auto model = two_layers(), half = two_layers(at::kHalf);
  optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1)),
      low(half->parameters(), optim::SGDOptions(0.1));
  Checkpoint saved = own_copy(capture(job(model, sgd)));
  saved.model.at("2.bias")[1] = 65519;  // rounds to 65504
  restore(saved, job(half, low));
  saved.model.at("2.bias")[0] = std::numeric_limits<float>::infinity();  // is Inf already
  restore(saved, job(half, low));
  saved.model.at("2.bias")[1] = -65520;
  EXPECT_THAT(refusal(saved, half, low),
              AllOf(HasSubstr("a value of 2.bias is beyond"), HasSubstr("seen: -65520")));
}

TEST(ParameterNames, ACountOfBatchesMayBeBeyondFp16) {
  torch::nn::BatchNorm1d whole(2), half(2);
  whole->num_batches_tracked.fill_(100'000);
  half->to(at::kHalf);
  NamedTensors saved;
  for (const auto& item : whole->named_parameters()) saved[item.key()] = item.value().detach();
  for (const auto& item : whole->named_buffers()) saved[item.key()] = item.value();
  EXPECT_NO_THROW(restore({.model = saved}, {.models = {half.get()}, .random = false}));
}

class ParameterNamesFile : public CheckpointFolder {};

TEST_F(ParameterNamesFile, AreInTheManifest) {
  auto model = two_layers();
  optim::AdamW adamw(in_reverse(model), optim::AdamWOptions(0.05));
  step(model, adamw, 0);
  const auto path = save(folder_, 1, job(model, adamw));
  const ParameterGroups expected{{"2.bias", "2.weight", "0.bias", "0.weight"}};
  EXPECT_EQ(read_manifest(path).parameters.at("optimizer"), expected);
  EXPECT_EQ(load(path).parameters.at("optimizer"), expected);
}

}  // namespace
}  // namespace demi::checkpoint
