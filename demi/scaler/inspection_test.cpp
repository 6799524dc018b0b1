// The records of unscale_ and clip_grad_* if no step follows, and their effect if gradients are
// written to between unscale_ and the step. Expected numbers are PyTorch's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "demi/core/error.h"
#include "demi/optim/backend_testing.h"
#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/scaler/backend_testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/weights/mutation_hook.h"
#include "demi/weights/recorded_warnings_testing.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

using optim::testing::complaint;
using optim::testing::EmulatedDevice;
using optim::testing::kInf;
using optim::testing::On;
using optim::testing::set_grad;
using ::testing::HasSubstr;
using testing::ScalerOn;
using weights::testing::RecordedWarnings;

/// SGD with rate 1 from 0 under a scale of 1024: after a step the weight is minus what was applied.
struct Loop {
  explicit Loop(at::ScalarType of_gradients = at::kFloat, GradScalerOptions options = {},
                const optim::Backend& backend = optim::machine_backend())
      : dtype(of_gradients), sgd(backend, {p}, optim::SGDOptions(1)) {
    options.init_scale = 1024;
    scaler = ScalerOn(backend, options);
    scaler.scale(torch::zeros({}));
  }
  /// The true gradient; .grad carries the scale.
  void backward(float gradient) {
    set_grad(p, torch::full({1}, gradient * scaler.get_scale()).to(dtype));
  }
  float step() {
    {
      const at::NoGradGuard no_grad;
      p.zero_();
    }
    result = scaler.step(sgd);
    scaler.update();
    return -p.item<float>();
  }

  at::ScalarType dtype;
  at::Tensor p = torch::zeros(1).requires_grad_();
  On<optim::SGD> sgd;
  GradScaler scaler;
  StepResult result;
};

template <class Check>
void for_host_and_device(const Check& check) {
  check(optim::machine_backend());
  check(EmulatedDevice());
}

TEST(Inspection, WithoutAStepNothingOfThemIsLeft) {
  for_host_and_device([](const optim::Backend& backend) {
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const bool set_to_none : {true, false}) {
        for (const int clip : {0, 1, 2}) {
          Loop loop(dtype, {}, backend);
          loop.backward(20);
          loop.scaler.unscale_(loop.sgd);
          if (clip == 1) optim::clip_grad_norm_({loop.p}, 0.5);
          if (clip == 2) optim::clip_grad_value_({loop.p}, 0.25);
          loop.sgd.zero_grad(set_to_none);
          loop.scaler.update();
          if (set_to_none)
            loop.backward(1);
          else
            loop.p.mutable_grad().add_(1024);  // as a backward adds to a gradient
          loop.scaler.unscale_(loop.sgd);
          EXPECT_NEAR(optim::clip_grad_norm_({loop.p}, 100).item<float>(), 1, 1e-6);
          EXPECT_NEAR(loop.step(), 1, 1e-6) << dtype << set_to_none << clip;
          loop.backward(1);
          EXPECT_NEAR(loop.step(), 1, 1e-6) << dtype << set_to_none << clip;
        }
      }
    }
  });
}

TEST(Inspection, UpdateToAScaleEndsThemToo) {
  for (const bool set_to_none : {true, false}) {
    Loop loop;
    loop.backward(20);
    loop.scaler.unscale_(loop.sgd);
    optim::clip_grad_norm_({loop.p}, 0.5);
    loop.sgd.zero_grad(set_to_none);
    loop.scaler.update(2048);
    if (set_to_none)
      loop.backward(1);
    else
      loop.p.mutable_grad().add_(2048);
    EXPECT_EQ(loop.step(), 1) << set_to_none;
  }
}

TEST(Inspection, WhatIsWrittenAfterUpdateIsANewGradient) {
  for_host_and_device([](const optim::Backend& backend) {
    Loop loop(at::kFloat, {}, backend);
    loop.backward(20);
    loop.scaler.unscale_(loop.sgd);
    optim::clip_grad_norm_({loop.p}, 0.5);
    loop.scaler.update();
    loop.sgd.zero_grad(/*set_to_none=*/false);
    loop.p.mutable_grad().add_(1024);
    EXPECT_EQ(loop.step(), 1);
  });
}

TEST(Inspection, AnotherScalerStartsAfresh) {
  Loop loop;
  loop.backward(1);
  loop.scaler.unscale_(loop.sgd);
  loop.sgd.zero_grad(/*set_to_none=*/false);
  loop.scaler = GradScaler(GradScalerOptions{.init_scale = 8});
  loop.scaler.scale(torch::zeros({}));
  loop.p.mutable_grad().add_(8);
  EXPECT_EQ(loop.step(), 1);
}

// update() before a step that the user takes without the scaler: the gradients are the inspected
// ones.
TEST(Inspection, AStepAfterUpdateUsesWhatWasRecordedForItsGradients) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    Loop loop(dtype);
    loop.backward(8);
    loop.scaler.unscale_(loop.sgd);
    optim::clip_grad_norm_({loop.p}, 2);
    loop.scaler.update();
    loop.sgd.step();
    EXPECT_NEAR(loop.p.item<float>(), -2, 1e-5) << dtype;
  }
}

TEST(Inspection, OfAnOptimizerThatHasGoneAreLeftAlone) {
  Loop loop;
  auto other = std::make_unique<optim::SGD>(std::vector<at::Tensor>{loop.p}, optim::SGDOptions(1));
  loop.backward(1);
  loop.scaler.unscale_(*other);
  other.reset();
  EXPECT_NO_THROW(loop.scaler.update());
  loop.backward(1);
  EXPECT_EQ(loop.step(), 1);
}

TEST(Inspection, OfAnOptimizerThatHasGoneAreNotAnothersAtItsAddress) {
  Loop loop;
  std::optional<optim::SGD> other;
  for (int i = 0; i < 2; ++i) {
    other.emplace(std::vector<at::Tensor>{loop.p}, optim::SGDOptions(1));
    loop.backward(1);
    EXPECT_NO_THROW(loop.scaler.unscale_(*other));
  }
  loop.scaler.step(*other);
  EXPECT_EQ(loop.p.item<float>(), -1);
}

// Without a scaler: what was recorded belongs to the gradients of its time.
TEST(Inspection, AClipIsForTheGradientsThatWereThere) {
  for_host_and_device([](const optim::Backend& backend) {
    const at::Tensor p = torch::zeros(1).requires_grad_();
    On<optim::SGD> sgd(backend, {p}, optim::SGDOptions(1));
    set_grad(p, torch::full({1}, 20.F));
    optim::clip_grad_norm_({p}, 1);
    optim::clip_grad_value_({p}, 0.5);
    sgd.zero_grad();
    set_grad(p, torch::full({1}, 20.F));
    EXPECT_EQ(optim::clip_grad_norm_({p}, 1000).item<float>(), 20);
    sgd.step();
    EXPECT_EQ(p.item<float>(), -20);
  });
}

// zero_grad(false) and a backward leave the tensor where it is.
TEST(Inspection, AClipIsNotForGradientsMadeInItsPlace) {
  for (const bool low_precision : {true, false}) {
    const at::Tensor p = torch::zeros(1).requires_grad_();
    optim::SGD sgd({p}, optim::SGDOptions(1), {.low_precision_grads = low_precision});
    for (const float gradient : {20.F, kInf}) {
      (p * gradient).sum().backward();
      optim::clip_grad_norm_({p}, 1);
      sgd.zero_grad(/*set_to_none=*/false);
    }
    (p * 20).sum().backward();
    sgd.step();
    EXPECT_EQ(p.item<float>(), -20) << low_precision;
  }
}

// As if the factor had been multiplied in: one gradient goes, another one is halved.
TEST(Inspection, AClippedGradientThatIsWrittenToKeepsItsFactor) {
  for_host_and_device([](const optim::Backend& backend) {
    const at::Tensor p = torch::zeros(1).requires_grad_(), q = torch::zeros(1).requires_grad_();
    On<optim::SGD> sgd(backend, {p, q}, optim::SGDOptions(1));
    set_grad(p, torch::full({1}, 3.F));
    set_grad(q, torch::full({1}, 4.F));
    optim::clip_grad_norm_({p, q}, 1);
    p.mutable_grad().mul_(0.5);
    q.mutable_grad().reset();
    sgd.step();
    EXPECT_NEAR(p.item<float>(), -0.3, 1e-6);
    EXPECT_EQ(q.item<float>(), 0);
  });
}

TEST(Inspection, AnInfThatWasClippedIsNotMendedAway) {
  for_host_and_device([](const optim::Backend& backend) {
    const at::Tensor p = torch::zeros(1).requires_grad_();
    On<optim::SGD> sgd(backend, {p}, optim::SGDOptions(1));
    set_grad(p, torch::full({1}, kInf));
    optim::clip_grad_norm_({p}, 1);  // the factor is 0, or NaN
    p.mutable_grad().fill_(1);
    sgd.step();
    EXPECT_TRUE(sgd.last_step().skipped());
    EXPECT_EQ(p.item<float>(), 0);
  });
}

TEST(Inspection, WhatUnscaleFoundDecidesAsInPyTorch) {
  for_host_and_device([](const optim::Backend& backend) {
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      for (const bool joint : {false, true}) {
        Loop loop(dtype, {}, backend);
        const at::Tensor q = torch::zeros(1).requires_grad_();
        On<optim::SGD> other(backend, {q}, optim::SGDOptions(1));
        loop.backward(std::nanf(""));
        set_grad(q, torch::full({1}, 1024.F));
        loop.scaler.unscale_(loop.sgd);
        loop.p.mutable_grad().nan_to_num_();
        if (joint) {
          for (const StepResult& result : loop.scaler.step({&loop.sgd, &other}))
            EXPECT_TRUE(result.skipped());
          EXPECT_EQ(q.item<float>(), 0);
          loop.scaler.update();
        } else {
          EXPECT_EQ(loop.step(), 0);
          EXPECT_TRUE(loop.result.skipped());
        }
        EXPECT_EQ(loop.scaler.get_scale(), 512) << dtype << joint;
      }
    }
  });
}

TEST(Inspection, WhatIsSpoiledAfterwardsCountsForTheStepAndForTheScale) {
  for_host_and_device([](const optim::Backend& backend) {
    for (const bool joint : {false, true}) {
      Loop loop(at::kFloat, {.growth_interval = 1}, backend);
      const at::Tensor q = torch::zeros(1).requires_grad_();
      On<optim::SGD> other(backend, {q}, optim::SGDOptions(1));
      loop.backward(1);
      set_grad(q, torch::full({1}, 1024.F));
      loop.scaler.unscale_(loop.sgd);
      loop.p.mutable_grad().fill_(kInf);
      if (joint) {
        for (const StepResult& result : loop.scaler.step({&loop.sgd, &other}))
          EXPECT_TRUE(result.skipped());
        loop.scaler.update();
      } else {
        EXPECT_EQ(loop.step(), 0);
        EXPECT_TRUE(loop.result.skipped());
      }
      EXPECT_EQ(loop.scaler.get_scale(), 512) << joint;
    }
  });
}

// The user's own arithmetic puts other tensors in the gradients' place.
TEST(Inspection, AGradientReplacedAfterUnscaleKeepsItsScale) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Loop loop(dtype);
    loop.backward(4);
    loop.scaler.unscale_(loop.sgd);
    set_grad(loop.p, loop.p.grad() * 0.5);
    EXPECT_EQ(loop.step(), 2) << dtype;
  }
}

/// What a step applies to the weight under the scale of 1024, of batches of gradient 1 and then 2.
struct GivenUp {
  explicit GivenUp(const optim::Backend& backend, bool is_narrow)
      : sgd(backend, {p}, optim::SGDOptions(1), {.low_precision_grads = is_narrow}),
        scaler(ScalerOn(backend, {.init_scale = 1024})),
        narrow(is_narrow) {}
  void backward(float gradient) {
    weights::enter_region();
    const at::Tensor used = narrow ? weights::low_precision(p, at::kBFloat16) : p;
    const at::Tensor loss = (used * gradient).sum();
    weights::leave_region();
    scaler.scale(loss).backward();
  }
  float step() {
    EXPECT_FALSE(scaler.step(sgd).skipped());
    scaler.update();
    return -p.item<float>();
  }

  at::Tensor p = torch::zeros(1).requires_grad_();
  On<optim::SGD> sgd;
  GradScaler scaler;
  bool narrow;
};

// A program of its own gives a batch up after unscale_() (a loss that it does not like), and has no
// update() for it.
TEST(Inspection, ABatchThatIsGivenUpLeavesNothing) {
  for_host_and_device([](const optim::Backend& backend) {
    for (const bool narrow : {false, true})
      for (const int then : {0, 1, 2}) {
        SCOPED_TRACE(::testing::Message() << narrow << then);
        GivenUp loop(backend, narrow);
        loop.backward(1);
        loop.scaler.unscale_(loop.sgd);
        if (then == 2) optim::clip_grad_norm_({loop.p}, 0.5);
        loop.sgd.zero_grad();
        loop.backward(2);
        if (then > 0) loop.scaler.unscale_(loop.sgd);
        EXPECT_EQ(loop.step(), 2);
        loop.sgd.zero_grad();
        loop.backward(2);
        EXPECT_EQ(loop.step(), 4);
      }
  });
}

TEST(Inspection, AnInfOfABatchThatIsGivenUpDoesNotSkipTheNext) {
  for_host_and_device([](const optim::Backend& backend) {
    GivenUp loop(backend, false);
    loop.backward(kInf);
    loop.scaler.unscale_(loop.sgd);
    loop.sgd.zero_grad();
    loop.backward(2);
    EXPECT_EQ(loop.step(), 2);
  });
}

TEST(Inspection, ABackwardIntoUnscaledGradientsIsNamed) {
  for_host_and_device([](const optim::Backend& backend) {
    for (const bool zeroes : {false, true}) {  // in place: who can tell?
      GivenUp loop(backend, false);
      loop.backward(1);
      loop.scaler.unscale_(loop.sgd);
      if (zeroes) loop.sgd.zero_grad(/*set_to_none=*/false);
      loop.backward(2);
      EXPECT_THAT(complaint([&] { loop.scaler.step(loop.sgd); }),
                  HasSubstr("backward has added to gradients that unscale_() had divided"));
      EXPECT_EQ(loop.p.item<float>(), 0);
      loop.sgd.zero_grad();
      loop.backward(2);
      EXPECT_EQ(loop.step(), 2);
    }
  });
}

TEST(Inspection, SixteenBitGradientsAddUpAfterUnscaleToo) {
  GivenUp loop(optim::machine_backend(), true);
  loop.backward(1);
  EXPECT_EQ(loop.p.grad().scalar_type(), at::kBFloat16);
  loop.scaler.unscale_(loop.sgd);
  loop.backward(2);
  EXPECT_EQ(loop.step(), 3);
}

// What torch::autograd::grad asks for comes to no .grad.
TEST(Inspection, GradientsThatAreAskedForAfterUnscaleChangeNothing) {
  for_host_and_device([](const optim::Backend& backend) {
    GivenUp loop(backend, false);
    loop.backward(1);
    loop.scaler.unscale_(loop.sgd);
    const auto asked = torch::autograd::grad({(loop.p * 5).sum()}, {loop.p});
    loop.p.mutable_grad() = loop.p.grad() + asked[0];
    EXPECT_EQ(loop.step(), 6);
  });
}

TEST(Inspection, AmaxAndNormAreOfTrueGradientsAlsoAfterAClip) {
  for_host_and_device([](const optim::Backend& backend) {
    Loop loop(at::kFloat, {.mode = ScaleMode::kAmax}, backend);
    loop.backward(4);
    optim::clip_grad_norm_({loop.p}, 1024);  // of the scaled one, as in PyTorch: a quarter
    EXPECT_NEAR(loop.step(), 1, 1e-5);
    EXPECT_NEAR(loop.result.grad_norm().value(), 4, 1e-5);
    EXPECT_EQ(loop.scaler.get_scale(), 4096);  // 4 x 4096 < 32,752 <= 4 x 8192
  });
}

// What may overflow is what backward gives, not what the user makes of it.
TEST(Inspection, AmaxIsThatOfUnscale) {
  for_host_and_device([](const optim::Backend& backend) {
    Loop loop(at::kFloat, {.mode = ScaleMode::kAmax}, backend);
    loop.backward(4);
    loop.scaler.unscale_(loop.sgd);
    loop.p.mutable_grad().mul_(0.25);
    EXPECT_EQ(loop.step(), 1);
    EXPECT_EQ(loop.scaler.get_scale(), 4096);
  });
}

TEST(Inspection, LibTorchsOwnClipOn16BitGradientsIsNamed) {
  if (!weights::hook_is_free())
    GTEST_SKIP() << "LibTorch before 2.15 cannot tell of a write through .data(), as its clip does";
  for (const auto dtype : {at::kHalf, at::kFloat}) {
    Loop loop(dtype);
    const RecordedWarnings heard;
    for (int i = 0; i < 2; ++i) {
      loop.backward(6);
      loop.scaler.unscale_(loop.sgd);
      torch::nn::utils::clip_grad_norm_({loop.p}, 0.5);
      loop.step();
    }
    if (dtype == at::kFloat) {
      EXPECT_TRUE(heard.messages().empty());
      continue;
    }
    ASSERT_EQ(heard.messages().size(), 1U);
    EXPECT_THAT(heard.messages()[0], HasSubstr("demi::optim::clip_grad_norm_"));
  }
}

// The norm is that of scaled gradients: an update 840 times too small, in PyTorch too.
TEST(Inspection, LibTorchsClipBeforeUnscaleIsWarnedOf) {
  for (const auto dtype : {at::kHalf, at::kFloat})
    for (const bool unscales : {false, true})
      for (const bool clips_first : {true, false}) {
        Loop loop(dtype);
        const RecordedWarnings heard;
        for (const float gradient : {6, 3, 5, 4, 6, 2}) {
          loop.backward(gradient);
          if (clips_first) torch::nn::utils::clip_grad_norm_({loop.p}, 0.5);
          if (unscales) loop.scaler.unscale_(loop.sgd);
          const float applied = loop.step();
          EXPECT_NEAR(applied, clips_first ? 0.5 / 1024 : gradient, 1e-3 * applied);
        }
        EXPECT_EQ(heard.holding("Call unscale_ first"), clips_first ? 1 : 0);
        EXPECT_EQ(heard.messages().size(), clips_first ? 1U : 0U);
      }
}

TEST(Inspection, SmallGradientsOfNoLimitAreNotTakenForClipped) {
  constexpr float kRound = 50.F / 1024;  // 50 with the scale on
  for (const std::vector<float>& gradients :
       {std::vector{kRound, kRound * 1.001F, kRound, kRound, kRound * 0.999F, kRound},
        std::vector{kRound, kRound, kInf, kRound, kRound}, std::vector(5, kRound * 1.001F),
        std::vector(5, 2 * kRound * 1.1F)}) {
    Loop loop;
    const RecordedWarnings heard;
    for (const float gradient : gradients) {
      loop.backward(gradient);
      loop.step();
      loop.scaler.update(1024);
    }
    EXPECT_EQ(heard.holding("Call unscale_ first"), 0) << gradients[1];
  }
}

// PyTorch's gradients are true ones after unscale_. Nobody can tell what one was made of that is
// put in the place of a scaled one.
TEST(Inspection, AGradientPutInThePlaceOfA16BitOneIsTakenAsTrueAndWarnedOf) {
  for_host_and_device([](const optim::Backend& backend) {
    enum Made { kOfScaled, kOfTrue, kNarrow, kOfNothingAfterUpdate };
    for (const Made made : {kOfScaled, kOfTrue, kNarrow, kOfNothingAfterUpdate}) {
      Loop loop(at::kHalf, {}, backend);
      const RecordedWarnings heard;
      loop.backward(1);
      loop.scaler.unscale_(loop.sgd);
      float expected = 2;
      if (made == kOfScaled) {
        loop.p.mutable_grad() = loop.p.grad().to(at::kFloat) * 2;
        expected = 2048;
      } else if (made == kOfTrue) {
        loop.p.mutable_grad() = loop.sgd.unscaled_grad(loop.p) * 2;
      } else if (made == kNarrow) {
        loop.p.mutable_grad() = loop.p.grad() * 2;
      } else {
        loop.scaler.update();
        loop.backward(2);
      }
      EXPECT_NEAR(loop.step(), expected, 1e-3) << made;
      const bool warns = made == kOfScaled || made == kNarrow;
      EXPECT_EQ(heard.holding("another tensor was put in its place"), warns ? 1 : 0) << made;
    }
  });
}

// By default nothing is scaled after unscale_, so any way of replacing a gradient is right.
TEST(Inspection, AGradientPutInThePlaceOfAnFP32OneIsTrue) {
  Loop loop;
  const RecordedWarnings heard;
  loop.backward(1);
  loop.scaler.unscale_(loop.sgd);
  loop.p.mutable_grad() = loop.p.grad().to(at::kDouble).to(at::kFloat) * 2;
  EXPECT_EQ(loop.step(), 2);
  EXPECT_TRUE(heard.messages().empty());
}

TEST(Inspection, DemisOwnClipIsSilent) {
  Loop loop(at::kHalf);
  const RecordedWarnings heard;
  loop.backward(6);
  loop.scaler.unscale_(loop.sgd);
  optim::clip_grad_norm_({loop.p}, 0.5);
  EXPECT_NEAR(loop.step(), 0.5, 1e-5);
  EXPECT_TRUE(heard.messages().empty());
}

TEST(Inspection, OneOptimizerTwiceInAJointStepIsRefused) {
  for (const bool enabled : {true, false}) {
    Loop loop(at::kFloat, {.enabled = enabled});
    loop.backward(1);
    EXPECT_THAT(complaint([&] { loop.scaler.step({&loop.sgd, &loop.sgd}); }), HasSubstr("twice"));
    EXPECT_THAT(complaint([&] { loop.scaler.step({nullptr}); }), HasSubstr("null"));
    EXPECT_EQ(loop.p.item<float>(), 0);
  }
}

TEST(Inspection, AnUndefinedOutputIsNamed) {
  GradScaler scaler;
  EXPECT_THAT(complaint([&] { scaler.scale(at::Tensor()); }), HasSubstr("[scaler.scale]"));
}

TEST(Inspection, CountsOfAStateThatNoIntegerHoldsAreRefused) {
  GradScaler scaler;
  const StateDict before = scaler.state_dict();
  for (const double bad : {std::nan(""), 1e300, -1.0, 2.5}) {
    StateDict broken = before;
    broken["growth_interval"] = bad;
    const std::string said = complaint([&] { scaler.load_state_dict(broken); });
    EXPECT_THAT(said, HasSubstr("growth_interval"));
    EXPECT_THAT(said, ::testing::Not(HasSubstr("9223372036854775808"))) << bad;
    EXPECT_EQ(scaler.state_dict(), before);
  }
}

}  // namespace
}  // namespace demi
