// StepOptions::moments: every optimizer with its moments in bf16 and in 8 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/optim/adamw.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/rmsprop.h"
#include "demi/optim/testing.h"
#include "demi/step/coded_state.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using weights::testing::RecordedWarnings;

constexpr StepOptions kBf16{.moments = Moments::bf16, .rounding_seed = 5};
constexpr StepOptions kInt8{.moments = Moments::int8, .rounding_seed = 5};

StepOptions on_path(StepOptions options, std::optional<kernels::Path> path) {
  options.path = path;
  return options;
}

struct Pieces {
  std::vector<at::Tensor> parameters{parameter({70, 100}), parameter({3}, at::kFloat, 2),
                                     parameter({8, 16, 8, 8}, at::kFloat, 3)};
  explicit Pieces(at::ScalarType dtype = at::kFloat) {
    for (at::Tensor& p : parameters) p = p.detach().to(dtype).requires_grad_();
    parameters[2] =
        parameters[2].detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  }
  void set_gradients(int step) const {
    for (const at::Tensor& p : parameters) set_grad(p, gradient(p, p.scalar_type(), step));
  }
};

void step(Optimizer& optimizer, const Pieces& pieces, int from, int to) {
  for (int i = from; i < to; ++i) {
    pieces.set_gradients(i);
    optimizer.step();
  }
}

void expect_same(Optimizer& a, const Pieces& p, Optimizer& b, const Pieces& q) {
  for (std::size_t i = 0; i < p.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(p.parameters[i], q.parameters[i])) << i;
  const auto expected = b.state_tensors();
  for (const auto& [name, tensor] : a.state_tensors()) {
    EXPECT_EQ(tensor.scalar_type(), expected.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
  }
}

TEST(CodedMoments, EveryPathHasTheBitsOfTheReference) {
  const EmulatedDevice device;
  for (const Kind& kind : kKinds)
    for (const auto& [options, dtype] :
         {std::pair{kBf16, at::kFloat}, {kInt8, at::kFloat}, {kInt8, at::kBFloat16}}) {
      SCOPED_TRACE(std::string(kind.name) + " " + c10::toString(dtype));
      const Pieces p(dtype);
      const auto expected = kind.make(p.parameters, on_path(options, kernels::Path::reference));
      step(*expected, p, 0, 3);
      for (const kernels::Path path :
           {kernels::Path::avx2, kernels::Path::avx512, kernels::Path::aten}) {
        if (path != kernels::Path::aten && !kernels::cpu_kernels(path)) continue;
        SCOPED_TRACE(kernels::name_of(path));
        const Pieces q(dtype);
        const auto seen = kind.make(q.parameters, on_path(options, path));
        step(*seen, q, 0, 3);
        expect_same(*seen, q, *expected, p);
      }
      const Pieces r(dtype);
      const auto emulated = kind.make(r.parameters, options, device);
      step(*emulated, r, 0, 3);
      expect_same(*emulated, r, *expected, p);
    }
}

TEST(CodedMoments, AreThoseOfLargeTensorsAlone) {
  const Pieces p;
  AdamW adamw(p.parameters, AdamWOptions(0.01).amsgrad(true), kBf16);
  step(adamw, p, 0, 1);
  const auto state = adamw.state_tensors();
  EXPECT_EQ(state.at("0.exp_avg").scalar_type(), at::kBFloat16);
  EXPECT_EQ(state.at("0.exp_avg_sq").scalar_type(), at::kBFloat16);
  EXPECT_EQ(state.at("0.max_exp_avg_sq").scalar_type(), at::kFloat);
  EXPECT_EQ(state.at("1.exp_avg").scalar_type(), at::kFloat) << "3 elements";
  EXPECT_EQ(state.at("2.exp_avg").scalar_type(), at::kBFloat16);
  const Pieces q(at::kDouble);  // keeps FP64
  AdamW wide(q.parameters, AdamWOptions(0.01), kBf16);
  step(wide, q, 0, 1);
  EXPECT_EQ(wide.state_tensors().at("0.exp_avg").scalar_type(), at::kDouble);
  for (const auto& [elements, dtype] :
       {std::pair<int64_t, at::ScalarType>{4095, at::kFloat}, {4096, at::kBFloat16}}) {
    const at::Tensor one = parameter({elements});
    AdamW of_one({one}, AdamWOptions(0.01), kBf16);
    set_grad(one, at::ones({elements}));
    of_one.step();
    EXPECT_EQ(of_one.state_tensors().at("0.exp_avg").scalar_type(), dtype) << elements;
  }
}

TEST(CodedMoments, In8BitsHaveScalesUnlessTheirMemoryIsNotContiguous) {
  const Pieces p;
  AdamW adamw(p.parameters, AdamWOptions(0.01).amsgrad(true), kInt8);
  step(adamw, p, 0, 1);
  const auto state = adamw.state_tensors();
  EXPECT_EQ(state.at("0.exp_avg").scalar_type(), at::kChar);
  EXPECT_EQ(state.at("0.exp_avg_sq").scalar_type(), at::kByte);
  EXPECT_EQ(state.at("0.exp_avg_sq_scale").numel(), (7000 + 31) / 32);
  EXPECT_EQ(state.at("0.max_exp_avg_sq").scalar_type(), at::kFloat);
  EXPECT_EQ(state.at("1.exp_avg").scalar_type(), at::kFloat);
  EXPECT_EQ(state.at("2.exp_avg").scalar_type(), at::kBFloat16) << "channels_last";
  EXPECT_EQ(state.count("2.exp_avg_scale"), 0U);
}

TEST(CodedMoments, ACenteredRMSpropKeepsItsAveragesInFp32) {
  for (const bool centered : {false, true}) {
    const Pieces p;
    RMSprop rmsprop(p.parameters, RMSpropOptions(0.01).momentum(0.9).centered(centered), kBf16);
    step(rmsprop, p, 0, 1);
    const auto state = rmsprop.state_tensors();
    EXPECT_EQ(state.at("0.square_avg").scalar_type(), centered ? at::kFloat : at::kBFloat16);
    EXPECT_EQ(state.at("0.momentum_buffer").scalar_type(), at::kBFloat16);
    if (centered) {
      EXPECT_EQ(state.at("0.grad_avg").scalar_type(), at::kFloat);
    }
  }
}

TEST(CodedMoments, TheSeedAndTheNumberOfTheParameterChooseTheBits) {
  const at::Tensor p = parameter({5000}), q = parameter({5000}), r = parameter({5000});
  AdamW both({p, q}, AdamWOptions(0.01), kBf16);
  AdamW other({r}, AdamWOptions(0.01), {.moments = Moments::bf16, .rounding_seed = 6});
  for (const at::Tensor& one : {p, q, r}) set_grad(one, gradient(one, at::kFloat, 1));
  both.step();
  other.step();
  const auto state = both.state_tensors();
  EXPECT_FALSE(at::equal(state.at("0.exp_avg"), state.at("1.exp_avg")));
  EXPECT_FALSE(at::equal(state.at("0.exp_avg"), other.state_tensors().at("0.exp_avg")));
}

TEST(CodedMoments, GoOnWhereTheyWereSaved) {
  for (const Kind& kind : kKinds)
    for (const auto& [options, archived] :
         {std::pair{kBf16, false}, {kBf16, true}, {kInt8, false}, {kInt8, true}}) {
      SCOPED_TRACE(kind.name);
      const Pieces p, q;
      const auto whole = kind.make(p.parameters, options), part = kind.make(q.parameters, options);
      step(*whole, p, 0, 4);
      step(*part, q, 0, 2);
      const auto rest = kind.make(q.parameters, options);
      const RecordedWarnings warnings;
      if (archived) {
        std::stringstream file;
        torch::save(*part, file);
        torch::load(*rest, file);
      } else {
        rest->load_state_tensors(part->state_tensors());
      }
      step(*rest, q, 2, 4);
      EXPECT_EQ(warnings.messages().size(), 0);
      expect_same(*rest, q, *whole, p);
    }
}

// A file keeps no strides, and those of a dimension of size 1 say nothing.
TEST(CodedMoments, OfSizesOf1GoOnWhereTheyWereSaved) {
  const at::Tensor channels_last = at::empty({80, 70, 1, 1}, at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& like : {channels_last, at::empty({1, 5600}).t()}) {
    const auto made = [&] {
      const at::Tensor p = parameter(like.sizes());
      return at::empty_strided(like.sizes(), like.strides()).copy_(p.detach()).requires_grad_();
    };
    const at::Tensor p = made(), q = made();
    ASSERT_NE(q.strides(), q.contiguous().clone(at::MemoryFormat::Contiguous).strides());
    AdamW whole({p}, AdamWOptions(0.01), kInt8), resumed({q}, AdamWOptions(0.01), kInt8);
    const auto step = [](AdamW& adamw, const at::Tensor& of, int i) {
      set_grad(of, gradient(of, at::kFloat, i));
      adamw.step();
    };
    for (int i = 0; i < 3; ++i) step(whole, p, i);
    auto saved = whole.state_tensors();
    for (auto& [name, tensor] : saved) tensor = tensor.clone(at::MemoryFormat::Contiguous);
    resumed.load_state_tensors(saved);
    {
      const at::NoGradGuard no_grad;
      q.copy_(p);
    }
    for (int i = 3; i < 6; ++i) {
      step(whole, p, i);
      step(resumed, q, i);
    }
    EXPECT_TRUE(at::equal(p, q));
    const auto expected = whole.state_tensors();
    for (const auto& [name, tensor] : resumed.state_tensors())
      EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
  }
}

TEST(CodedMoments, AStateOfTheOtherModeIsTakenOver) {
  const Pieces p, q;
  AdamW wide(p.parameters, AdamWOptions(0.01)), narrow(q.parameters, AdamWOptions(0.01), kBf16);
  step(wide, p, 0, 2);
  {
    const RecordedWarnings warnings;
    narrow.load_state_tensors(wide.state_tensors());
    ASSERT_EQ(warnings.messages().size(), 1);
    const at::Tensor saved = wide.state_tensors().at("0.exp_avg").to(at::kDouble);
    EXPECT_THAT(warnings.messages().front(), HasSubstr("4 states"));
    double greatest = 0;
    for (const char* name : {"0.exp_avg", "0.exp_avg_sq", "2.exp_avg", "2.exp_avg_sq"}) {
      const at::Tensor one = wide.state_tensors().at(name);
      greatest = std::max(greatest,
                          (one - one.to(at::kBFloat16).to(at::kFloat)).abs().max().item<double>());
    }
    EXPECT_THAT(warnings.messages().front(), HasSubstr(c10::str(greatest)));
  }
  step(narrow, q, 2, 3);
  const Pieces r;
  AdamW back(r.parameters, AdamWOptions(0.01));
  const RecordedWarnings warnings;
  back.load_state_tensors(narrow.state_tensors());
  EXPECT_EQ(warnings.messages().size(), 0) << "exact";
  r.set_gradients(3);
  for (const at::Tensor& one : r.parameters) one.mutable_grad().zero_();
  back.step();
  EXPECT_TRUE(at::allclose(back.state_tensors().at("0.exp_avg"),
                           narrow.state_tensors().at("0.exp_avg").to(at::kFloat) * 0.9F, 1e-6));
}

TEST(CodedMoments, EveryFormLoadsIntoEveryOtherWithOneWarning) {
  const std::vector<std::pair<const char*, Moments>> forms{
      {"fp32", Moments::fp32}, {"bf16", Moments::bf16}, {"int8", Moments::int8}};
  for (const auto& [saved, from] : forms)
    for (const auto& [kept, to] : forms) {
      SCOPED_TRACE(std::string(saved) + " to " + kept);
      const at::Tensor p = parameter({70, 100}), q = parameter({70, 100});
      AdamW first({p}, AdamWOptions(0.01), {.moments = from}),
          second({q}, AdamWOptions(0.01), {.moments = to});
      set_grad(p, gradient(p, at::kFloat, 1));
      first.step();
      const RecordedWarnings warnings;
      second.load_state_tensors(first.state_tensors());
      if (from == to || to == Moments::fp32) {
        EXPECT_EQ(warnings.messages().size(), 0);
      } else {
        ASSERT_EQ(warnings.messages().size(), 1);
        EXPECT_THAT(warnings.messages().front(), HasSubstr(c10::str("2 states that were saved in ",
                                                                    saved, " are kept in ", kept)));
      }
      set_grad(q, gradient(q, at::kFloat, 2));
      second.step();
      EXPECT_EQ(second.state_tensors().at("0.step").item<int64_t>(), 2);
      EXPECT_EQ(second.state_tensors().count("0.exp_avg_scale"), to == Moments::int8 ? 1U : 0U);
    }
}

TEST(CodedMoments, AStrictLoadRefusesAnotherForm) {
  const std::vector<std::pair<const char*, Moments>> forms{
      {"fp32", Moments::fp32}, {"bf16", Moments::bf16}, {"int8", Moments::int8}};
  for (const auto& [saved, from] : forms)
    for (const auto& [kept, to] : forms) {
      SCOPED_TRACE(std::string(saved) + " to " + kept);
      const Pieces p, q;  // one of them is small, and one is not contiguous
      AdamW first(p.parameters, AdamWOptions(0.01), {.moments = from}),
          second(q.parameters, AdamWOptions(0.01), {.moments = to, .strict_state = true});
      step(first, p, 0, 1);
      const RecordedWarnings warnings;
      const std::string said = complaint([&] { second.load_state_tensors(first.state_tensors()); });
      EXPECT_EQ(warnings.messages().size(), 0);
      EXPECT_EQ(second.state_tensors().count("0.exp_avg"), from == to ? 1U : 0U);
      if (from == to) {
        EXPECT_EQ(said, "");
      } else {
        EXPECT_THAT(said, HasSubstr("exp_avg of parameter 0"));
        EXPECT_THAT(said, HasSubstr(c10::str("seen: saved as ", saved, "; accepted: ", kept)));
      }
    }
}

TEST(CodedMoments, CodesAndScalesThatDoNotBelongTogetherAreRefused) {
  const at::Tensor p = parameter({70, 100});
  AdamW adamw({p}, AdamWOptions(0.01), kInt8);
  set_grad(p, gradient(p, at::kFloat, 1));
  adamw.step();
  const auto state = adamw.state_tensors();
  const auto refused = [&](const char* name, const at::Tensor& tensor, const char* what) {
    auto wrong = state;
    if (tensor.defined())
      wrong[name] = tensor;
    else
      wrong.erase(name);
    try {
      adamw.load_state_tensors(wrong);
      ADD_FAILURE() << name;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
    EXPECT_TRUE(at::equal(adamw.state_tensors().at("0.exp_avg"), state.at("0.exp_avg")));
  };
  refused("0.exp_avg_scale", {}, "int8 with scales");
  refused("0.exp_avg", {}, "no exp_avg");
  refused("0.exp_avg", at::zeros({70, 100}), "with scales");
  refused("0.exp_avg", state.at("0.exp_avg_sq"), "int8 with scales");
  refused("0.exp_avg_scale", at::zeros({3}, at::kBFloat16), "one for 32 elements: 219");
  refused("0.exp_avg_scale", at::zeros({219}), "one for 32 elements");
  refused("0.exp_avg", at::zeros({70, 100}, at::kShort), "floating point");
}

// One gradient, then none: the second moment decays by 0.999 a step in the mean. Rounding to
// nearest would leave it where it is.
TEST(CodedMoments, TheSecondMomentDecays) {
  for (const StepOptions& options : {kBf16, kInt8}) {
    const at::Tensor p = at::zeros({8192}).requires_grad_();
    AdamW adamw({p}, AdamWOptions(0), options);
    set_grad(p, at::ones({8192}));
    adamw.step();
    set_grad(p, at::zeros({8192}));
    for (int i = 0; i < 500; ++i) adamw.step();
    const auto state = adamw.state_tensors();
    const at::Tensor scales =
        options.moments == Moments::int8 ? state.at("0.exp_avg_sq_scale") : at::Tensor();
    const double mean =
        decoded(state.at("0.exp_avg_sq"), scales).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(mean / (1e-3 * std::pow(0.999, 500)), 1, 0.01);
  }
}

}  // namespace
}  // namespace demi::optim
