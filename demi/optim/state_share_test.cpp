#include "demi/optim/state_share.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "demi/optim/clip.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/emulated_device_testing.h"

namespace demi::optim {
namespace {

using testing::EmulatedDevice;
using testing::Kind;
using testing::kKinds;

constexpr std::size_t kHolders = 2;

/// Every second parameter.
class EverySecond final : public StateShare {
 public:
  explicit EverySecond(std::size_t first) : first_(first) {}
  bool holds(std::size_t parameter) const override { return parameter % kHolders == first_; }
  void exchange(const StepResult& result) override { skipped.push_back(result.skipped()); }
  std::vector<bool> skipped;

 private:
  std::size_t first_;
};

std::vector<at::Tensor> shared_parameters(at::ScalarType dtype) {
  using testing::parameter;
  return {parameter({5, 3}, dtype, 1), parameter({40}, dtype, 2), parameter({1}, dtype, 3),
          parameter({2, 2, 3, 2}, dtype, 4), parameter({7}, dtype, 5)};
}

struct Holder {
  Holder(const Kind& kind, at::ScalarType dtype, const Backend& backend, StepOptions options)
      : parameters(shared_parameters(dtype)),
        optimizer(kind.make(parameters, options, backend)),
        scaler({.init_scale = 64}) {
    scaler.scale(at::ones({}));
  }
  void step(int number) {
    for (const at::Tensor& p : parameters) {
      const bool is_double = p.scalar_type() == at::kDouble;
      testing::set_grad(p, testing::gradient(p, at::kDouble, number)
                               .mul_(scaler.get_scale())
                               .to(is_double ? at::kDouble : at::kBFloat16));
    }
    if (number == 2) parameters[1].mutable_grad()[3] = std::numeric_limits<float>::infinity();
    scaler.unscale_(*optimizer);
    norms.push_back(clip_grad_norm_(parameters, 1).item<double>());
    skipped.push_back(scaler.step(*optimizer).skipped());
    scaler.update();
  }
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Optimizer> optimizer;
  GradScaler scaler;
  std::vector<double> norms;
  std::vector<bool> skipped;
};

// Brings the other holder's results, as an exchange does.
void bring(const Holder& from, std::size_t held, Holder& to) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = held; i < to.parameters.size(); i += kHolders)
    to.parameters[i].copy_(from.parameters[i]);
}

/// Two holders, each with a share from step `shared_from` on, beside one that keeps all.
void expect_same_bits(const Kind& kind, at::ScalarType dtype, const Backend& backend,
                      StepOptions options, int shared_from) {
  Holder whole(kind, dtype, backend, options);
  Holder one(kind, dtype, backend, options), two(kind, dtype, backend, options);
  const auto first = std::make_shared<EverySecond>(0), second = std::make_shared<EverySecond>(1);
  for (int step = 0; step < 5; ++step) {
    if (step == shared_from) {
      one.optimizer->share_state(first);
      two.optimizer->share_state(second);
    }
    for (Holder* each : {&whole, &one, &two}) each->step(step);
    if (step < shared_from) continue;
    bring(one, 0, two);
    bring(two, 1, one);
  }
  EXPECT_EQ(whole.skipped, (std::vector<bool>{false, false, true, false, false}));
  EXPECT_EQ(first->skipped.size(), static_cast<std::size_t>(5 - shared_from));
  const auto expected = whole.optimizer->state_tensors();
  for (Holder* each : {&one, &two}) {
    EXPECT_EQ(each->skipped, whole.skipped);
    for (const std::size_t step : {0, 1, 3, 4}) EXPECT_EQ(each->norms[step], whole.norms[step]);
    for (std::size_t i = 0; i < whole.parameters.size(); ++i)
      EXPECT_TRUE(at::equal(each->parameters[i], whole.parameters[i])) << i;
    const std::size_t held = each == &one ? 0 : 1;
    std::size_t entries = 1;  // "taken"
    for (const auto& [name, tensor] : expected) {
      if (name == "taken" || static_cast<std::size_t>(name[0] - '0') % kHolders != held) continue;
      ++entries;
      const auto state = each->optimizer->state_tensors();
      ASSERT_TRUE(state.contains(name)) << name;
      EXPECT_TRUE(at::equal(state.at(name), tensor)) << name;
    }
    EXPECT_EQ(each->optimizer->state_tensors().size(), entries);
  }
}

TEST(StateShare, TwoHoldersTakeTheStepsOfOne) {
  for (const Kind& kind : kKinds)
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
      for (const int shared_from : {0, 2}) {
        SCOPED_TRACE(std::string(kind.name) + " " + c10::toString(dtype));
        expect_same_bits(kind, dtype, machine_backend(), {}, shared_from);
        expect_same_bits(kind, dtype, machine_backend(), {.path = kernels::Path::reference},
                         shared_from);
        expect_same_bits(kind, dtype, machine_backend(), {.path = kernels::Path::aten},
                         shared_from);
        const EmulatedDevice device;
        expect_same_bits(kind, dtype, device, {}, shared_from);
      }
}

TEST(StateShare, TheStateOfOthersIsDroppedWithTheNextStepAndLoad) {
  const std::vector<at::Tensor> p = shared_parameters(at::kFloat);
  const auto optimizer = kKinds[2].make(p);
  EXPECT_TRUE(optimizer->has_whole_state());
  const auto step = [&] {
    for (const at::Tensor& each : p)
      testing::set_grad(each, testing::gradient(each, at::kFloat, 1));
    optimizer->step();
  };
  step();
  const auto whole = optimizer->state_tensors();
  optimizer->share_state(std::make_shared<EverySecond>(0));
  const auto own = optimizer->state_tensors();
  EXPECT_LT(own.size(), whole.size());
  const auto bring_others = [&] {
    optimizer->set_others_state({{"1.exp_avg", whole.at("1.exp_avg")}});
    EXPECT_TRUE(optimizer->has_whole_state());
    EXPECT_EQ(optimizer->state_tensors().size(), own.size() + 1);
  };
  EXPECT_FALSE(optimizer->has_whole_state());
  bring_others();
  step();
  EXPECT_FALSE(optimizer->has_whole_state());
  bring_others();
  optimizer->load_state_tensors(whole);
  EXPECT_FALSE(optimizer->has_whole_state());
  EXPECT_EQ(optimizer->state_tensors().size(), own.size());
  bring_others();
  optimizer->drop_others_state();
  EXPECT_FALSE(optimizer->has_whole_state());
}

// What other holders keep is checked, too.
TEST(StateShare, AStateThatDoesNotFitIsRefusedWhoeverKeepsIt) {
  const std::vector<at::Tensor> p = shared_parameters(at::kFloat);
  const auto optimizer = kKinds[2].make(p);
  for (const at::Tensor& each : p) testing::set_grad(each, testing::gradient(each, at::kFloat, 1));
  optimizer->step();
  auto state = optimizer->state_tensors();
  optimizer->share_state(std::make_shared<EverySecond>(0));
  state["1.exp_avg"] = at::zeros({3});
  EXPECT_NE(testing::complaint([&] { optimizer->load_state_tensors(state); }), "");
  state.erase("1.exp_avg");
  EXPECT_NE(testing::complaint([&] { optimizer->load_state_tensors(state); }), "");
}

}  // namespace
}  // namespace demi::optim
