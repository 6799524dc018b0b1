#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "demi/attention/attention.h"
#include "demi/attention/attention_testing.h"
#include "demi/autocast/autocast.h"
#include "demi/core/error.h"

// at::scaled_dot_product_attention and demi::attention in a region.
namespace demi::sdpa {
namespace {

std::set<std::string> nodes_of(const at::Tensor& out) {
  std::set<std::string> names;
  std::vector<torch::autograd::Node*> left{out.grad_fn().get()};
  while (!left.empty()) {
    auto* node = left.back();
    left.pop_back();
    if (!node || !names.insert(node->name()).second) continue;
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  return names;
}

bool runs_here(const at::Tensor& out) {
  for (const auto& name : nodes_of(out))
    if (name.find("AttentionFunction") != std::string::npos) return true;
  return false;
}

class Region : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Region, testing::Values(torch::kHalf, torch::kBFloat16));

TEST_P(Region, RunsLibTorchsOp) {
  const auto exact = operands({2, 4, 4, 37, 41, 12, 12});
  const auto given = exact.to(torch::kFloat);
  const double bound = GetParam() == torch::kHalf ? 0x1p-10 : 0x1p-6;
  const auto some = torch::rand({37, 41}) > 0.2;
  struct Arguments {
    std::optional<at::Tensor> mask;
    bool causal;
    std::optional<double> scale;
  };
  for (const auto& a :
       {Arguments{}, {{}, true, {}}, {some, false, {}}, {{}, true, 0.3}, {{}, true, -0.2}}) {
    at::Tensor got;
    {
      const Autocast region(torch::kCPU, GetParam());
      got =
          at::scaled_dot_product_attention(given.q, given.k, given.v, a.mask, 0, a.causal, a.scale);
    }
    EXPECT_TRUE(runs_here(got));
    EXPECT_EQ(got.scalar_type(), GetParam());
    const auto want = written_out(
        exact, {.causal = a.causal, .mask = a.mask.value_or(at::Tensor()), .scale = a.scale});
    EXPECT_LE(error_of(got, want), bound);
    const auto got_all = gradients(got, given.leaves()), want_all = gradients(want, exact.leaves());
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(got_all[i].scalar_type(), torch::kFloat);
      EXPECT_LE(error_of(got_all[i], want_all[i]), bound) << i;
    }
  }
}

TEST_P(Region, RunsOneHeadWithoutADimensionOfHeads) {
  const auto exact = operands({3, 1, 1, 9, 9, 8, 8});
  const auto one = [&](const at::Tensor& t) { return t.detach().to(torch::kFloat).squeeze(1); };
  const Autocast region(torch::kCPU, GetParam());
  const auto got = at::scaled_dot_product_attention(one(exact.q), one(exact.k), one(exact.v));
  EXPECT_EQ(got.sizes(), (std::vector<std::int64_t>{3, 9, 8}));
  EXPECT_LE(error_of(got.unsqueeze(1), written_out(exact, {})), 0x1p-6);
}

TEST_P(Region, SharesKeyHeadsWhereAsked) {
  const auto exact = operands({2, 4, 2, 37, 37, 12, 12});
  const auto given = exact.to(torch::kFloat);
  const Autocast region(torch::kCPU, GetParam());
  const auto got =
      at::scaled_dot_product_attention(given.q, given.k, given.v, {}, 0, true, {}, true);
  EXPECT_TRUE(runs_here(got));
  EXPECT_LE(error_of(got, written_out(exact, {.causal = true})), 0x1p-6);
  EXPECT_ANY_THROW(at::scaled_dot_product_attention(given.q, given.k, given.v, {}, 0, true));
}

TEST_P(Region, DropsOutByTheGenerator) {
  const auto given = operands({2, 4, 4, 37, 37, 12, 12}).to(torch::kFloat);
  const Autocast region(torch::kCPU, GetParam());
  const auto drawn = [&] {
    return at::scaled_dot_product_attention(given.q, given.k, given.v, {}, 0.5, true);
  };
  torch::manual_seed(2);
  const auto first = drawn(), second = drawn();
  EXPECT_TRUE(runs_here(first));
  torch::manual_seed(2);
  EXPECT_TRUE(torch::equal(first, drawn()));
  EXPECT_FALSE(torch::equal(first, second));
}

TEST_P(Region, LeavesToLibTorchWhatDoesNotFit) {
  const auto x = operands({2, 4, 4, 9, 9, 8, 8});
  const auto given = x.to(torch::kFloat);
  const Autocast region(torch::kCPU, GetParam());
  EXPECT_FALSE(runs_here(at::scaled_dot_product_attention(x.q, x.k, x.v)));  // FP64
  const auto mask = torch::ones({9, 9}, torch::kBool);
  try {  // LibTorch 2.11 takes a mask beside is_causal, 2.15 refuses it
    EXPECT_FALSE(
        runs_here(at::scaled_dot_product_attention(given.q, given.k, given.v, mask, 0, true)));
  } catch (const c10::Error&) {
    SUCCEED();
  }
  const Forced forced("libtorch");
  EXPECT_FALSE(runs_here(at::scaled_dot_product_attention(given.q, given.k, given.v)));
}

// Whose fused kernel refuses a tangent; the operations that it is defined by carry it.
TEST_P(Region, LeavesATangentOfTheMaskToLibTorch) {
  const torch::NoGradGuard no_grad;
  const auto given = operands({}).to(torch::kFloat);
  const auto mask = torch::randn({37, 37});
  const ForwardLevel level;
  const auto dual = level.dual(mask, torch::ones_like(mask));
  at::globalContext().setSDPUseFlash(false);
  {
    const Autocast region(torch::kCPU, GetParam());
    const auto got = at::scaled_dot_product_attention(given.q, given.k, given.v, dual);
    // A number that is added to all keys changes no weight.
    ASSERT_TRUE(level.tangent_of(got).defined());
    EXPECT_LE(level.tangent_of(got).abs().max().item<double>(), 0x1p-5);
  }
  at::globalContext().setSDPUseFlash(true);
}

TEST_P(Region, GivesDemisFunctionItsDtype) {
  const auto given = operands({2, 4, 2, 40, 40, 8, 8}).to(torch::kFloat);
  const auto starts = torch::tensor({0, 40, 50, 80});
  const auto low = given.to(GetParam());
  const auto want = attention(low.q, low.k, low.v, {.cu_seqlens = starts, .causal = true});
  const Autocast region(torch::kCPU, GetParam());
  const auto got = attention(given.q, given.k, given.v, {.cu_seqlens = starts, .causal = true});
  EXPECT_EQ(got.scalar_type(), GetParam());
  EXPECT_TRUE(torch::equal(got, want));
}

TEST(RegionPolicy, CountsForDemisFunction) {
  const auto given = operands({}).to(torch::kFloat);
  OpPolicy policy;
  policy.set("aten::scaled_dot_product_attention", OpCategory::fp32);
  const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
  EXPECT_EQ(attention(given.q, given.k, given.v).scalar_type(), torch::kFloat);
}

// Nothing is computed to learn the region's dtype.
TEST(RegionDtype, IsKnownWithoutACallOfTheOp) {
  const auto given = operands({}).to(torch::kFloat);
  const Autocast region(torch::kCPU, torch::kBFloat16);
  attention(given.q, given.k, given.v);
  static std::multiset<std::string> ops;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f)
                                     -> std::unique_ptr<at::ObserverContext> {
        ops.insert(f.name());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  const auto got = attention(given.q, given.k, given.v);
  at::removeCallback(handle);
  EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(ops.count("aten::zeros"), 0U);
  EXPECT_EQ(ops.count("aten::scaled_dot_product_attention"), 0U);
  EXPECT_GT(ops.count("aten::to"), 0U) << "ops are seen";
}

// The op's own rule decides, as it does of LibTorch's.
TEST(RegionDtype, IsThatOfLibTorchsOp) {
  const auto wide = operands({}).to(torch::kFloat);
  const auto half = operands({}).to(torch::kHalf);
  for (const auto category : {OpCategory::lower_precision, OpCategory::fp32, OpCategory::promote,
                              OpCategory::unchanged}) {
    OpPolicy policy;
    policy.set("aten::scaled_dot_product_attention", category);
    const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
    for (const auto* given : {&wide, &half})
      EXPECT_EQ(attention(given->q, given->k, given->v).scalar_type(),
                at::scaled_dot_product_attention(given->q, given->k, given->v).scalar_type())
          << int(category);
  }
  OpPolicy banned;
  banned.set("aten::scaled_dot_product_attention", OpCategory::banned);
  const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = banned});
  EXPECT_THROW(attention(wide.q, wide.k, wide.v), UsageError);
}

}  // namespace
}  // namespace demi::sdpa
