#include "demi/attention/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "demi/attention/attention_testing.h"
#include "demi/attention/dropout_mask.h"
#include "demi/attention/in_region.h"
#include "demi/attention/path.h"
#include "demi/core/error.h"
#include "demi/core/instruction_set.h"
#include "demi/profile/memory.h"

namespace demi::sdpa {
namespace {

using testing::HasSubstr;

// Each path against FP64, relative to the norm: FP32's rounding, that of the result to 16 bits
// once, and that of each product to 16 bits.
double bound_of(at::ScalarType dtype, const std::string& path) {
  if (dtype == torch::kDouble) return 1e-12;
  if (dtype == torch::kFloat) return 2e-6;
  const double digit = dtype == torch::kHalf ? 0x1p-11 : 0x1p-8;
  return path == "blocks_16_bit" || path == "tiles" ? 4 * digit : 2 * digit;
}

void expect_written_out(const Operands& exact, const AttentionOptions& o, at::ScalarType dtype,
                        const std::string& path) {
  const Forced forced(path.c_str());
  const Operands given = exact.to(dtype);
  const auto want = written_out(exact, o), got = attention(given.q, given.k, given.v, o);
  EXPECT_EQ(got.scalar_type(), dtype);
  ASSERT_EQ(got.sizes(), want.sizes());
  const double bound = bound_of(dtype, path);
  EXPECT_LE(error_of(got, want), bound);
  const auto got_all = gradients(got, given.leaves()), want_all = gradients(want, exact.leaves());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got_all[i].scalar_type(), dtype);
    EXPECT_LE(error_of(got_all[i], want_all[i]), bound) << "gradient " << i;
  }
}

struct Case {
  at::ScalarType dtype;
  const char* path;
};

class EachPath : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Paths, EachPath,
    testing::Values(Case{torch::kDouble, "fused"}, Case{torch::kDouble, "blocks"},
                    Case{torch::kDouble, "libtorch"}, Case{torch::kFloat, "fused"},
                    Case{torch::kFloat, "blocks"}, Case{torch::kBFloat16, "fused"},
                    Case{torch::kBFloat16, "tiles"}, Case{torch::kBFloat16, "blocks"},
                    Case{torch::kBFloat16, "blocks_16_bit"}, Case{torch::kHalf, "fused"},
                    Case{torch::kHalf, "blocks"}),
    [](const auto& info) {
      return std::string(c10::toString(info.param.dtype)) + "_" + info.param.path;
    });

TEST_P(EachPath, IsAttentionOfAnySize) {
  // The last two have several blocks of queries, and of heads or of keys and features.
  for (const Shape& s : {Shape{}, Shape{1, 1, 1, 1, 1, 1, 1}, Shape{3, 2, 2, 5, 9, 7, 7},
                         Shape{1, 2, 2, 9, 5, 8, 3}, Shape{1, 2, 2, 9, 5, 7, 4},
                         Shape{2, 3, 3, 301, 211, 6, 6}, Shape{1, 2, 2, 140, 601, 80, 100}})
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << s.queries << " x " << s.keys << (causal ? " causal" : ""));
      expect_written_out(operands(s), {.causal = causal}, GetParam().dtype, GetParam().path);
    }
}

TEST_P(EachPath, SharesKeyHeads) {
  for (const std::int64_t key_heads : {1, 2, 3, 6})
    for (const bool causal : {false, true})
      expect_written_out(operands({2, 6, key_heads, 150, 150, 8, 8}), {.causal = causal},
                         GetParam().dtype, GetParam().path);
}

// LibTorch's kernels hide keys by -Inf before they scale.
TEST_P(EachPath, TakesAnyScale) {
  for (const double scale : {-0.7, 0.0, 1.3})
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(testing::Message() << scale << (causal ? " causal" : ""));
      expect_written_out(operands({2, 2, 2, 70, 70, 8, 8}), {.causal = causal, .scale = scale},
                         GetParam().dtype, GetParam().path);
    }
}

TEST_P(EachPath, TakesAScaleThatFp32RoundsTo0) {
  const Forced forced(GetParam().path);
  const auto exact = operands({2, 2, 2, 70, 70, 8, 8}), x = exact.to(GetParam().dtype);
  const AttentionOptions o{.causal = true, .scale = 1e-50};
  EXPECT_LE(error_of(attention(x.q, x.k, x.v, o), written_out(exact, o)),
            bound_of(GetParam().dtype, GetParam().path));
}

TEST_P(EachPath, TakesMasks) {
  const Shape s{2, 4, 2, 20, 23, 8, 8};
  torch::manual_seed(11);
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{2, 4, 20, 23}, {20, 23}, {2, 1, 1, 23}, {4, 20, 1}, {1}}) {
    const auto numbers = torch::rand(sizes);
    const auto added = (numbers * 8 - 4).to(torch::kBFloat16).to(torch::kDouble);
    for (const bool causal : {false, true})
      for (const at::Tensor& mask :
           {numbers > 0.3, added, added.masked_fill(numbers < 0.2, -INFINITY)}) {
        if (mask.scalar_type() == torch::kDouble && GetParam().dtype == torch::kDouble &&
            GetParam().path == std::string_view("libtorch") && sizes.size() == 3)
          continue;
        SCOPED_TRACE(testing::Message() << mask.sizes() << mask.scalar_type() << causal);
        expect_written_out(operands(s), {.causal = causal, .mask = mask}, GetParam().dtype,
                           GetParam().path);
      }
  }
}

TEST_P(EachPath, AMaskGoesOnInTheNextBlockOfQueries) {
  torch::manual_seed(12);
  const auto mask = torch::rand({2, 1, 150, 300}) > 0.3;
  expect_written_out(operands({2, 2, 1, 150, 300, 8, 8}), {.mask = mask}, GetParam().dtype,
                     GetParam().path);
}

TEST_P(EachPath, AQueryThatSeesNoKeyGives0) {
  const auto exact = operands({1, 2, 2, 4, 4, 8, 8});
  auto mask = torch::ones({4, 4}, torch::kBool);
  mask[2].fill_(false);
  expect_written_out(exact, {.mask = mask}, GetParam().dtype, GetParam().path);
  const Forced forced(GetParam().path);
  const auto given = exact.to(GetParam().dtype);
  const auto out = attention(given.q, given.k, given.v, {.mask = mask});
  EXPECT_EQ(out.select(2, 2).abs().max().item<double>(), 0);
}

TEST_P(EachPath, SeesThePastOfACache) {
  for (const std::int64_t queries : {1, 7, 140})
    expect_written_out(operands({2, 4, 2, queries, 160, 8, 8}),
                       {.causal = true, .past = 160 - queries}, GetParam().dtype, GetParam().path);
}

// Each document is attended to by itself; what is compared is written out by FP64's loop above.
TEST_P(EachPath, DocumentsAreThoseAlone) {
  const auto exact = operands({2, 4, 2, 40, 40, 8, 8});
  const Forced forced(GetParam().path);
  const auto given = exact.to(GetParam().dtype);
  const std::vector<std::int64_t> starts{0, 1, 14, 14, 40, 57, 80};
  for (const bool causal : {false, true}) {
    const auto got = attention(
        given.q, given.k, given.v,
        {.cu_seqlens = torch::tensor(starts, torch::kInt), .causal = causal, .scale = 0.4});
    at::Tensor want = torch::zeros({2, 4, 40, 8}, torch::kDouble);
    std::vector<at::Tensor> rows;
    for (std::int64_t n = 0; n < 2; ++n) {
      std::vector<at::Tensor> parts;
      for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
        if (starts[i] / 40 != n || starts[i] == starts[i + 1]) continue;
        const auto part = [&](const at::Tensor& t) {
          return t.slice(0, n, n + 1).slice(2, starts[i] - 40 * n, starts[i + 1] - 40 * n);
        };
        parts.push_back(written_out({part(exact.q), part(exact.k), part(exact.v)},
                                    {.causal = causal, .scale = 0.4}));
      }
      rows.push_back(torch::cat(parts, 2));
    }
    want = torch::cat(rows);
    const double bound = bound_of(GetParam().dtype, GetParam().path);
    EXPECT_LE(error_of(got, want), bound);
    const auto got_all = gradients(got, given.leaves()), want_all = gradients(want, exact.leaves());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(error_of(got_all[i], want_all[i]), bound) << i;
  }
}

// The elements that dropout kept, by values that are the unit vectors: the result is the weights.
at::Tensor kept(std::int64_t tokens, double p, DropoutSeed seed, std::int64_t heads = 2) {
  const auto zero = torch::zeros({2, heads, tokens, 4});
  const auto unit = torch::eye(tokens).expand({2, heads, tokens, tokens});
  return attention(zero, zero, unit, {.dropout = p, .dropout_seed = seed}) * double(tokens);
}

TEST_P(EachPath, DropoutHasItsGradients) {
  if (GetParam().path == std::string_view("libtorch")) GTEST_SKIP() << "draws by itself";
  const DropoutSeed seed{.seed = 77, .offset = 5};
  const Shape s{2, 4, 2, 150, 150, 8, 8};
  const auto keep = kept(150, 0.3, seed, 4).to(torch::kDouble);
  const auto exact = operands(s);
  const Forced forced(GetParam().path);
  const auto given = exact.to(GetParam().dtype);
  for (const bool causal : {false, true}) {
    const AttentionOptions o{.causal = causal, .dropout = 0.3, .dropout_seed = seed};
    const auto got = attention(given.q, given.k, given.v, o), want = written_out(exact, o, keep);
    const double bound = bound_of(GetParam().dtype, GetParam().path) + 1e-6;
    EXPECT_LE(error_of(got, want), bound);
    const auto got_all = gradients(got, given.leaves()), want_all = gradients(want, exact.leaves());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(error_of(got_all[i], want_all[i]), bound) << i;
  }
}

TEST(Attention, DropoutIsAFunctionOfSeedOffsetAndElement) {
  const auto all = kept(300, 0.25, {.seed = 9, .offset = 1});
  EXPECT_TRUE(torch::equal(all, kept(300, 0.25, {.seed = 9, .offset = 1})));
  EXPECT_FALSE(torch::equal(all, kept(300, 0.25, {.seed = 9, .offset = 2})));
  EXPECT_FALSE(torch::equal(all, kept(300, 0.25, {.seed = 10, .offset = 1})));
  EXPECT_FALSE(torch::equal(all[0][0], all[0][1]));
  EXPECT_FALSE(torch::equal(all[0][0], all[1][0]));
  // Another number of tokens has other blocks.
  EXPECT_TRUE(torch::equal(kept(7, 0.25, {.seed = 9, .offset = 1}).gt(0),
                           all.slice(2, 0, 7).slice(3, 0, 7).gt(0)));
}

// Computed a key head of a row at a time, and some queries of it: the bits are those of one mask.
TEST(Attention, DropoutIsThatOfEachElementInEveryBlock) {
  const std::int64_t tokens = 700;
  const auto given = operands({2, 4, 2, tokens, tokens, 4, 4}).to(torch::kFloat);
  const AttentionOptions o{.dropout = 0.25, .dropout_seed = DropoutSeed{.seed = 9, .offset = 1}};
  const auto keep = dropout_mask({2, 4, tokens, tokens}, torch::kFloat,
                                 {.p = 0.25, .seed = 9, .offset = 1}, {0, 0, 0, 4});
  const auto got = attention(given.q, given.k, given.v, o), want = written_out(given, o, keep);
  EXPECT_LE(error_of(got, want), 1e-5);
  const auto got_all = gradients(got, given.leaves()), want_all = gradients(want, given.leaves());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(error_of(got_all[i], want_all[i]), 1e-5) << i;
}

TEST(Attention, DropoutOfDocumentsIsThatOfTheirElements) {
  const auto given = operands({2, 2, 2, 40, 40, 4, 4}).to(torch::kFloat);
  const AttentionOptions documents{.cu_seqlens = torch::tensor({0, 15, 40, 80}),
                                   .dropout = 0.25,
                                   .dropout_seed = DropoutSeed{.seed = 9}};
  const auto keep =
      dropout_mask({2, 2, 40, 40}, torch::kFloat, {.p = 0.25, .seed = 9}, {0, 0, 0, 2});
  AttentionOptions apart;
  apart.mask = torch::zeros({2, 1, 40, 40}, torch::kBool);
  for (const auto& [row, first, end] : {std::tuple{0, 0, 15}, {0, 15, 40}, {1, 0, 40}})
    apart.mask[row].slice(1, first, end).slice(2, first, end).fill_(true);
  const auto got = attention(given.q, given.k, given.v, documents),
             want = written_out(given, apart, keep);
  EXPECT_LE(error_of(got, want), 1e-5);
  const auto got_all = gradients(got, given.leaves()), want_all = gradients(want, given.leaves());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(error_of(got_all[i], want_all[i]), 1e-5) << i;
}

// n weights with probability p give n p, within five standard deviations.
TEST(Attention, DropoutDropsItsShare) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto all = kept(200, p, {.seed = 4});
    const double n = double(all.numel()), dropped = all.eq(0).sum().item<double>();
    EXPECT_NEAR(dropped, n * p, 5 * std::sqrt(n * p * (1 - p)));
    EXPECT_NEAR(all.max().item<double>(), 1 / (1 - p), 1e-4);
  }
  EXPECT_EQ(kept(5, 1, {}).abs().max().item<double>(), 0);
}

// Known answer: philox4x32-10 of counter 0 and key 0 is 6627e8d5 e169c58d bc57ac4c 9b00dbd8
// (Random123's kat_vectors): kept with p = 0.5 if the highest bit is set.
TEST(Attention, DropoutMaskHasTheBitsOfPhilox) {
  const auto mask = dropout_mask({1, 1, 1, 4}, torch::kFloat, {.p = 0.5}, {0, 0, 0, 1});
  EXPECT_TRUE(torch::equal(mask.reshape(-1), torch::tensor({0.0F, 2.0F, 2.0F, 2.0F})));
}

TEST(Attention, DropoutFollowsManualSeed) {
  const auto x = operands({1, 2, 2, 9, 9, 8, 8}).to(torch::kFloat);
  const auto drawn = [&] { return attention(x.q, x.k, x.v, {.dropout = 0.5}); };
  torch::manual_seed(1);
  const auto first = drawn(), second = drawn();
  torch::manual_seed(1);
  EXPECT_TRUE(torch::equal(drawn(), first));
  EXPECT_FALSE(torch::equal(first, second));
}

// Runs on a device without memory, where LibTorch's op would run: no number is computed.
TEST(Attention, RefusesASeedWhereLibTorchDraws) {
  const auto refusal = [](const at::Tensor& x) -> std::string {
    try {
      attention(x, x, x, {.dropout = 0.5, .dropout_seed = DropoutSeed{.seed = 9}});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  const auto x = torch::ones({1, 2, 3, 4});
  EXPECT_EQ(refusal(x), "nothing thrown");
  EXPECT_THAT(refusal(x.to(torch::kMeta)), HasSubstr("seed 9 on meta"));
  const Forced forced("libtorch");
  EXPECT_THAT(refusal(x), HasSubstr("leave it out"));
  EXPECT_NO_THROW(attention(x, x, x, {.dropout = 0.5}));
  EXPECT_NO_THROW(attention(x, x, x, {.dropout_seed = DropoutSeed{}}));
}

TEST(Attention, AMaskHasAGradient) {
  const auto exact = operands({2, 4, 2, 150, 140, 8, 8});
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{150, 140}, {4, 150, 140}, {2, 1, 1, 140}, {4, 1, 140}}) {
    const auto mask = torch::randn(sizes, torch::kDouble).requires_grad_();
    const AttentionOptions o{.causal = true, .mask = mask};
    const auto want = gradients(written_out(exact, o), {mask})[0];
    for (const auto& [dtype, path] :
         {Case{torch::kDouble, "fused"}, Case{torch::kBFloat16, "tiles"}}) {
      const Forced forced(path);
      const auto given = exact.to(dtype);
      const auto got = gradients(attention(given.q, given.k, given.v, o), {mask})[0];
      EXPECT_LE(error_of(got, want), bound_of(dtype, path)) << path << mask.sizes();
    }
  }
}

// So many keys that a block holds one key head of one row. A mask that is one number for all keys
// has a gradient of 0.
TEST(Attention, AMaskIsThatOfItsRowsAndHeadsInEveryBlock) {
  const Forced forced("blocks");
  const auto exact = operands({3, 4, 2, 130, 1100, 4, 4});
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{3, 4, 130, 1100}, {3, 1, 1, 1100}, {4, 1, 1100}}) {
    const auto mask = torch::randn(sizes, torch::kDouble).requires_grad_();
    const AttentionOptions o{.mask = mask};
    const auto want = written_out(exact, o), got = attention(exact.q, exact.k, exact.v, o);
    EXPECT_LE(error_of(got, want), 1e-12) << mask.sizes();
    EXPECT_LE(error_of(gradients(got, {mask})[0], gradients(want, {mask})[0]), 1e-12)
        << mask.sizes();
  }
}

constexpr std::array kLayoutCases{Case{torch::kFloat, "fused"}, Case{torch::kFloat, "blocks"},
                                  Case{torch::kBFloat16, "tiles"}};

TEST(Attention, MakesOnlyTheGradientsThatAreWanted) {
  const auto exact = operands({});
  const auto want = gradients(written_out(exact, {}), exact.leaves());
  for (const auto& [dtype, path] : kLayoutCases)
    for (std::size_t i = 0; i < 3; ++i) {
      const Forced forced(path);
      Operands x{exact.q.detach().to(dtype), exact.k.detach().to(dtype),
                 exact.v.detach().to(dtype)};
      at::Tensor leaf = x.leaves()[i].requires_grad_();
      EXPECT_LE(error_of(gradients(attention(x.q, x.k, x.v), {leaf})[0], want[i]),
                bound_of(dtype, path))
          << path << i;
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(attention(x.q, x.k, x.v).requires_grad());
    }
}

TEST(Attention, BackwardRunsWhateverTheEnvironmentSaysByThen) {
  const auto exact = operands({});
  const auto want = gradients(written_out(exact, {}), exact.leaves());
  const char* const before = std::getenv("DEMI_KERNELS");
  const std::string kept = before ? before : "";
  for (const auto& [dtype, path] : kLayoutCases) {
    const Forced forced(path);
    const auto given = exact.to(dtype);
    const auto out = attention(given.q, given.k, given.v);
    setenv("DEMI_KERNELS", "reference", 1);
    const auto got = gradients(out, given.leaves());
    before ? setenv("DEMI_KERNELS", kept.c_str(), 1) : unsetenv("DEMI_KERNELS");
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LE(error_of(got[i], want[i]), bound_of(dtype, path)) << path << i;
  }
}

TEST(Attention, TakesTensorsThatAreNotContiguous) {
  auto exact = operands({2, 4, 4, 30, 30, 8, 8});
  const auto turned = [](const at::Tensor& t) {
    return t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_();
  };
  exact = {turned(exact.q), turned(exact.k), turned(exact.v)};
  for (const auto& [dtype, path] : kLayoutCases)
    expect_written_out(exact, {.causal = true}, dtype, path);
  // Heads and features turned: no dimension of a head is dense but its tokens.
  const auto across = [](const at::Tensor& t) {
    return t.detach().transpose(2, 3).contiguous().transpose(2, 3);
  };
  exact.q = across(exact.q).requires_grad_();
  const Operands columns{exact.q, across(exact.k), across(exact.v)};
  const auto mask = (torch::rand({30, 30}) * 4).to(torch::kBFloat16).to(torch::kDouble).t();
  const auto want = written_out(columns, {.mask = mask}),
             want_gradient = gradients(want, {exact.q})[0];
  for (const auto& [dtype, path] : kLayoutCases) {
    const Forced forced(path);
    const auto leaf = [to = dtype](const at::Tensor& t) {
      return t.detach().to(to).requires_grad_();
    };
    const Operands given{leaf(columns.q), leaf(columns.k), leaf(columns.v)};
    ASSERT_NE(given.q.stride(3), 1);
    const auto got = attention(given.q, given.k, given.v, {.mask = mask.to(dtype)});
    EXPECT_LE(error_of(got, want), bound_of(dtype, path)) << path;
    EXPECT_LE(error_of(gradients(got, {given.q})[0], want_gradient), bound_of(dtype, path)) << path;
  }
}

// The gradient of sum() is one number that all elements share.
TEST(Attention, TakesAGradientWhoseElementsShareMemory) {
  const auto exact = operands({2, 4, 4, 30, 30, 8, 8});
  const auto want =
      torch::autograd::grad({written_out(exact, {.causal = true}).sum()}, exact.leaves());
  // The gradients of q and k are 0 but for rounding, of terms of up to 1.
  for (const auto& [dtype, path] : kLayoutCases) {
    const Forced forced(path);
    const auto given = exact.to(dtype);
    const auto got = torch::autograd::grad(
        {attention(given.q, given.k, given.v, {.causal = true}).sum()}, given.leaves());
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LE((got[i].to(torch::kDouble) - want[i]).abs().max().item<double>(),
                5 * bound_of(dtype, path))
          << path << i;
  }
}

TEST(Attention, TakesTensorsWhoseElementsShareMemory) {
  const auto exact = operands({1, 4, 4, 30, 30, 8, 8});
  const auto many = [](const Operands& of) {
    const auto expanded = [](const at::Tensor& t) { return t.expand({3, 4, 30, 8}); };
    return Operands{expanded(of.q), expanded(of.k), expanded(of.v)};
  };
  const auto want = written_out(many(exact), {});
  const auto want_all = gradients(want, exact.leaves());
  for (const auto& [dtype, path] : kLayoutCases) {
    const Forced forced(path);
    const auto given = exact.to(dtype), all = many(given);
    const auto got = attention(all.q, all.k, all.v);
    EXPECT_LE(error_of(got, want), bound_of(dtype, path)) << path;
    const auto got_all = gradients(got, given.leaves());
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LE(error_of(got_all[i], want_all[i]), bound_of(dtype, path)) << path;
  }
}

TEST_P(EachPath, HasNoTokensOrNoKeys) {
  const Forced forced(GetParam().path);
  const auto of = [](std::int64_t rows, std::int64_t queries, std::int64_t keys) {
    const auto options = torch::TensorOptions(GetParam().dtype).requires_grad(true);
    const auto q = torch::ones({rows, 2, queries, 4}, options),
               k = torch::ones({rows, 2, keys, 4}, options);
    const auto out = attention(q, k, k);
    out.sum().backward();
    EXPECT_EQ(q.grad().abs().sum().item<double>(), 0) << "of equal keys, or of none";
    return out.detach();
  };
  EXPECT_EQ(of(0, 3, 3).sizes(), (std::vector<std::int64_t>{0, 2, 3, 4}));
  EXPECT_EQ(of(1, 0, 3).sizes(), (std::vector<std::int64_t>{1, 2, 0, 4}));
  EXPECT_EQ(of(1, 3, 0).abs().sum().item<double>(), 0);
}

TEST_P(EachPath, DocumentsWithoutATokenGiveAnEmptyResult) {
  const Forced forced(GetParam().path);
  for (const auto& [rows, tokens] : {std::pair{0, 16}, {3, 0}})
    for (const std::int64_t starts : {1, 3})
      for (const bool causal : {false, true}) {
        const auto q = torch::ones({rows, 2, tokens, 8}, GetParam().dtype).requires_grad_();
        const auto out = attention(
            q, q, q, {.cu_seqlens = torch::zeros({starts}, torch::kInt), .causal = causal});
        EXPECT_EQ(out.sizes(), q.sizes());
        EXPECT_EQ(out.scalar_type(), GetParam().dtype);
        out.sum().backward();
        EXPECT_EQ(q.grad().sizes(), q.sizes());
      }
}

// Of weights w = softmax(s + mask) a tangent t of s or of the mask makes w (t - sum(w t)).
TEST(Attention, CarriesATangentOfForwardMode) {
  const torch::NoGradGuard no_grad;
  const auto x = operands({2, 4, 4, 9, 11, 8, 8});
  const auto mask = torch::randn({9, 11}, torch::kDouble),
             of_mask = torch::randn({2, 1, 9, 11}, torch::kDouble);
  const double scale = 1 / std::sqrt(8.0);
  const auto weights = at::softmax(x.q.matmul(x.k.mT()) * scale + mask, -1);
  const auto want = [&](const at::Tensor& t) {
    return (weights * (t - (weights * t).sum(-1, true))).matmul(x.v);
  };
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const auto given = x.to(dtype);
    const auto low = mask.to(dtype), whole = low.repeat({2, 1, 1, 1});
    const ForwardLevel level;
    const auto by_mask =
        attention(given.q, given.k, given.v, {.mask = level.dual(whole, of_mask.to(dtype))});
    const auto of_q = torch::randn_like(x.q);
    const auto by_q =
        attention(level.dual(given.q, of_q.to(dtype)), given.k, given.v, {.mask = low});
    ASSERT_TRUE(level.tangent_of(by_mask).defined());
    ASSERT_TRUE(level.tangent_of(by_q).defined());
    EXPECT_LE(error_of(level.tangent_of(by_mask), want(of_mask)), 1e-5);
    EXPECT_LE(error_of(level.tangent_of(by_q), want(of_q.matmul(x.k.mT()) * scale)), 1e-5);
  }
}

TEST(Attention, NaNStaysInItsRow) {
  for (const auto& [dtype, path] : kLayoutCases) {
    const Forced forced(path);
    auto x = operands({2, 2, 2, 9, 9, 8, 8}).to(dtype);
    const torch::NoGradGuard no_grad;
    x.q[0][1][3][0] = NAN;
    // LibTorch 2.11's own kernel loses it with AVX-512.
    const auto f = [](const at::Tensor& t) { return t.to(torch::kFloat); };
    const bool is_lost =
        !at::scaled_dot_product_attention(f(x.q), f(x.k), f(x.v)).isnan().any().item<bool>();
    const bool is_of_libtorch = path == std::string_view("fused") ||
                                (path == std::string_view("tiles") && !has_bf16_hardware());
    if (is_lost && is_of_libtorch) continue;
    const auto isnan = attention(x.q, x.k, x.v).isnan();
    EXPECT_EQ(isnan.sum().item<int64_t>(), 8);
    EXPECT_TRUE(isnan[0][1][3].all().item<bool>());
  }
}

// Memory at the peak, beyond inputs, results, gradients and FP32 copies of them: less than a tenth
// of the weights of one head. T x T of all 4 heads would be 67 MB.
TEST(Attention, HoldsNoMatrixOfAllTokens) {
  profile::count_cpu_memory();
  const c10::Device cpu(c10::kCPU);
  const std::int64_t tokens = 2048;
  for (const auto& [dtype, path] : kLayoutCases) {
    const Forced forced(path);
    const auto x = operands({1, 4, 4, tokens, tokens, 16, 16}).to(dtype);
    const double p = path == std::string_view("blocks") ? 0.1 : 0;
    profile::reset_peak_memory(cpu);
    const auto before = profile::memory_use(cpu).current_bytes;
    attention(x.q, x.k, x.v, {.causal = true, .dropout = p}).sum().backward();
    const auto held = profile::memory_use(cpu).peak_bytes - before;
    EXPECT_LE(held, 10 * (1 << 20) + 12 * 4 * x.q.numel()) << path;
  }
}

TEST(Attention, RefusesGradientsOfGradients) {
  const auto x = operands({}).to(torch::kFloat);
  const auto out = attention(x.q, x.k, x.v).sum();
  try {
    torch::autograd::grad({out}, {x.q}, {}, true, /*create_graph=*/true);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("DEMI_ATTENTION=libtorch"));
  }
}

std::string refusal_of(const AttentionOptions& o, at::IntArrayRef q = {1, 4, 6, 8},
                       at::IntArrayRef k = {1, 4, 6, 8}) {
  try {
    attention(torch::ones(q), torch::ones(k), torch::ones(k), o);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Attention, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal_of({}, {1, 4, 6, 8}, {1, 3, 6, 8}), HasSubstr("a divisor of 4"));
  EXPECT_THAT(refusal_of({}, {1, 4, 6, 8}, {1, 4, 6, 7}), HasSubstr("head size"));
  EXPECT_THAT(refusal_of({}, {1, 4, 6, 8}, {2, 4, 6, 8}), HasSubstr("batches differ"));
  EXPECT_THAT(refusal_of({}, {4, 6, 8}, {4, 6, 8}), HasSubstr("four dimensions"));
  EXPECT_THAT(refusal_of({.dropout = 1.5}), HasSubstr("0 to 1"));
  EXPECT_THAT(refusal_of({.dropout = NAN}), HasSubstr("0 to 1"));
  EXPECT_THAT(refusal_of({.scale = NAN}), HasSubstr("finite"));
  EXPECT_THAT(refusal_of({.past = 2}), HasSubstr("with causal"));
  EXPECT_THAT(refusal_of({.mask = torch::ones({5, 6}, torch::kBool)}), HasSubstr("broadcast"));
  EXPECT_THAT(refusal_of({.mask = torch::ones({6, 6}, torch::kLong)}), HasSubstr("dtype"));
  const auto with_starts = [](std::vector<std::int64_t> starts) {
    return refusal_of({.cu_seqlens = torch::tensor(starts)}, {2, 4, 6, 8}, {2, 4, 6, 8});
  };
  EXPECT_EQ(with_starts({0, 6, 12}), "nothing thrown");
  EXPECT_THAT(with_starts({0, 6, 11}), HasSubstr("0 to 12"));
  EXPECT_THAT(with_starts({1, 6, 12}), HasSubstr("0 to 12"));
  EXPECT_THAT(with_starts({0, 4, 3, 6, 12}), HasSubstr("must not fall"));
  EXPECT_THAT(with_starts({0, 4, 12}), HasSubstr("crosses rows"));
  EXPECT_THAT(refusal_of({.cu_seqlens = torch::tensor({0, 5, 0})}, {1, 2, 0, 8}, {1, 2, 0, 8}),
              HasSubstr("must not fall"));
  EXPECT_THAT(refusal_of({.cu_seqlens = torch::tensor({0.0, 6.0})}), HasSubstr("int32 or int64"));
}

TEST(Paths, AreChosenByTheTable) {
  const InstructionSet none{.avx2 = true}, products{.avx2 = true, .avx512_bf16 = true},
      tiles{.avx2 = true, .avx512_bf16 = true, .amx_bf16 = true};
  for (const InstructionSet& set : {products, tiles}) {
    EXPECT_EQ(usual_path(torch::kBFloat16, set), Path::tiles);
    EXPECT_EQ(usual_path(torch::kHalf, set), Path::fused);
    EXPECT_EQ(usual_path(torch::kFloat, set), Path::fused);
  }
  EXPECT_EQ(usual_path(torch::kBFloat16, none), Path::fused);
  EXPECT_EQ(path_without_tiles(torch::kBFloat16, 128 * 128, products, Bf16Products::bf16),
            Path::blocks_16_bit);
  EXPECT_EQ(path_without_tiles(torch::kBFloat16, 128 * 128 - 1, products, Bf16Products::bf16),
            Path::fused);
  EXPECT_EQ(path_without_tiles(torch::kBFloat16, 128 * 128, products, Bf16Products::fp32),
            Path::fused);
  EXPECT_EQ(path_without_tiles(torch::kHalf, 128 * 128, products, Bf16Products::bf16), Path::fused);
  EXPECT_EQ(path_without_tiles(torch::kBFloat16, 128 * 128, tiles, Bf16Products::bf16),
            Path::fused);
  EXPECT_EQ(path_without_tiles(torch::kBFloat16, 128 * 128, none, Bf16Products::bf16), Path::fused);
}

TEST(Paths, AreForcedByName) {
  EXPECT_EQ(forced_path(), std::nullopt);
  for (const Path path :
       {Path::libtorch, Path::fused, Path::tiles, Path::blocks, Path::blocks_16_bit})
    EXPECT_EQ((Forced(std::string(name_of(path)).c_str()), forced_path()), path);
  const Forced forced("flash");
  EXPECT_THAT(refusal_of({}), HasSubstr("libtorch, fused, tiles, blocks, blocks_16_bit"));
}

}  // namespace
}  // namespace demi::sdpa
