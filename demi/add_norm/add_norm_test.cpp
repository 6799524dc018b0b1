#include "demi/add_norm/add_norm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/autocast/policy.h"

namespace demi {
namespace {

constexpr auto kNone = at::ScalarType::Undefined;

/// What is computed of which dtypes. `added`: kNone adds nothing.
struct Form {
  bool centered = true;
  at::ScalarType input = at::kFloat, added = at::kBFloat16, normed = at::kBFloat16;
};

/// The tensors of a call. Undefined ones are not given.
struct Rows {
  at::Tensor input, add, weight, bias;

  std::vector<at::Tensor*> all() {
    std::vector<at::Tensor*> found;
    for (at::Tensor* one : {&input, &add, &weight, &bias})
      if (one->defined()) found.push_back(one);
    return found;
  }
};

SumAndNorm ours(const Form& form, const Rows& rows) {
  const AddNormOptions options{.dtype = form.normed};
  return form.centered ? add_layer_norm(rows.input, rows.add, rows.weight, rows.bias, options)
                       : add_rms_norm(rows.input, rows.add, rows.weight, options);
}

/// LibTorch's operators, one by one.
SumAndNorm libtorchs(const Form& form, const Rows& rows) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  const at::Tensor sum = rows.add.defined() ? rows.input + rows.add : rows.input;
  const std::int64_t width = sum.size(-1);
  const at::Tensor normed =
      form.centered ? at::layer_norm(sum, {width}, given(rows.weight), given(rows.bias), 1e-5)
                    : at::rms_norm(sum, {width}, given(rows.weight), 1e-5);
  return {sum, normed.to(form.normed)};
}

/// The same in FP64.
SumAndNorm in_fp64(const Form& form, const Rows& rows) {
  return libtorchs({.centered = form.centered, .normed = at::kDouble}, rows);
}

using By = std::function<SumAndNorm(const Form&, const Rows&)>;

Rows rows_of(const Form& form, at::IntArrayRef shape) {
  Rows rows;
  rows.input = (at::randn(shape) * 1.5 + 0.7).to(form.input);
  if (form.added != kNone) rows.add = at::randn(shape).to(form.added);
  rows.weight = at::rand({shape.back()}) + 0.5;
  if (form.centered) rows.bias = at::randn({shape.back()}) * 0.5;
  return rows;
}

/// Leaves of the same values, in FP64 if asked.
Rows leaves(const Rows& of, bool fp64 = false) {
  Rows rows = of;
  for (at::Tensor* one : rows.all())
    *one = (fp64 ? one->to(at::kDouble) : *one).detach().clone().requires_grad_();
  return rows;
}

/// Of each element another value, exact in 16 bits.
at::Tensor gradient_for(const at::Tensor& result, std::int64_t seed) {
  return (((at::arange(result.numel(), at::kDouble) + seed) * 7).remainder(31) - 15)
      .div(16)
      .view(result.sizes())
      .to(result.scalar_type());
}

/// Sum, normed rows, and the gradients of all that is given.
std::vector<at::Tensor> run(const By& by, const Form& form, Rows rows) {
  const SumAndNorm result = by(form, rows);
  std::vector<at::Tensor> all{result.sum.detach(), result.norm.detach()};
  torch::autograd::backward({result.sum, result.norm},
                            {gradient_for(result.sum, 3), gradient_for(result.norm, 0)});
  for (at::Tensor* one : rows.all()) all.push_back(one->grad());
  return all;
}

double distance(const at::Tensor& a, const at::Tensor& exact) {
  return (a.to(at::kDouble) - exact).norm().item<double>();
}

/// Everything within twice LibTorch's distance from FP64.
void expect_as_exact_as_libtorch(const Form& form, const Rows& rows) {
  const auto seen = run(ours, form, leaves(rows)), theirs = run(libtorchs, form, leaves(rows));
  const auto exact = run(in_fp64, form, leaves(rows, /*fp64=*/true));
  ASSERT_EQ(seen.size(), exact.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].scalar_type(), theirs[i].scalar_type()) << i;
    EXPECT_EQ(seen[i].sizes(), exact[i].sizes()) << i;
    const double norm = exact[i].norm().item<double>();
    EXPECT_LE(distance(seen[i], exact[i]), 2 * distance(theirs[i], exact[i]) + 1e-6 * (norm + 1))
        << i;
  }
}

/// With kernels of demi's.
const std::vector<Form>& forms() {
  static const std::vector<Form> all = [] {
    std::vector<Form> found;
    for (const bool centered : {true, false}) {
      for (const auto added : {at::kBFloat16, at::kHalf, at::kFloat, kNone})
        for (const auto normed : {at::kBFloat16, at::kHalf, at::kFloat})
          found.push_back({centered, at::kFloat, added, normed});
      for (const auto dtype : {at::kBFloat16, at::kHalf}) {
        found.push_back({centered, dtype, dtype, dtype});
        found.push_back({centered, dtype, kNone, dtype});
      }
    }
    return found;
  }();
  return all;
}

std::string named(const Form& form) {
  return std::string(form.centered ? "layer_norm " : "rms_norm ") + c10::toString(form.input) +
         " + " + c10::toString(form.added) + " to " + c10::toString(form.normed);
}

TEST(AddNormOp, IsThatOfFp64) {
  torch::manual_seed(0);
  for (const Form& form : forms())
    for (const auto& shape : {std::vector<std::int64_t>{2, 35, 48}, {19}, {70, 3}}) {
      SCOPED_TRACE(named(form));
      expect_as_exact_as_libtorch(form, rows_of(form, shape));
    }
}

TEST(AddNormOp, WorksWithoutParameters) {
  torch::manual_seed(1);
  for (const Form& form : forms()) {
    SCOPED_TRACE(named(form));
    Rows rows = rows_of(form, {4, 9, 33});
    rows.bias = at::Tensor();
    expect_as_exact_as_libtorch(form, rows);
    rows.weight = at::Tensor();
    expect_as_exact_as_libtorch(form, rows);
  }
}

// A bias without a weight, and parameters of 16 bits, as a whole model of 16 bits has them.
TEST(AddNormOp, WorksWithOtherParameters) {
  torch::manual_seed(2);
  Rows rows = rows_of({}, {4, 9, 33});
  rows.weight = at::Tensor();
  expect_as_exact_as_libtorch({}, rows);
  for (const bool centered : {true, false}) {
    const Form form{centered, at::kBFloat16, at::kBFloat16, at::kBFloat16};
    Rows narrow = rows_of(form, {4, 9, 33});
    narrow.weight = narrow.weight.to(at::kBFloat16);
    if (centered) narrow.bias = narrow.bias.to(at::kBFloat16);
    expect_as_exact_as_libtorch(form, narrow);
  }
}

TEST(AddNormOp, ReadsAnAddWithGaps) {
  torch::manual_seed(3);
  Rows rows = rows_of({}, {6, 5, 32});
  rows.add = at::randn({5, 6, 64}).to(at::kBFloat16).slice(2, 0, 64, 2).transpose(0, 1);
  expect_as_exact_as_libtorch({}, rows);
}

// Each result may be the only one that a program uses.
TEST(AddNormOp, HasTheGradientsOfOneResultAlone) {
  torch::manual_seed(4);
  for (const Form& form : forms())
    for (const bool of_sum : {true, false}) {
      SCOPED_TRACE(named(form) + (of_sum ? " sum" : " norm"));
      const Rows rows = rows_of(form, {3, 7, 24});
      const auto gradients = [&](const By& by, bool fp64) {
        Rows mine = leaves(rows, fp64);
        const SumAndNorm result = by(form, mine);
        const at::Tensor& one = of_sum ? result.sum : result.norm;
        if (one.requires_grad()) one.backward(gradient_for(one, 0));
        std::vector<at::Tensor> found;
        for (at::Tensor* tensor : mine.all()) found.push_back(tensor->grad());
        return found;
      };
      const auto seen = gradients(ours, false), theirs = gradients(libtorchs, false),
                 exact = gradients(in_fp64, true);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        ASSERT_EQ(seen[i].defined(), exact[i].defined()) << i;
        if (!exact[i].defined()) continue;
        EXPECT_EQ(seen[i].scalar_type(), theirs[i].scalar_type()) << i;
        EXPECT_LE(distance(seen[i], exact[i]),
                  2 * distance(theirs[i], exact[i]) + 1e-6 * (exact[i].norm().item<double>() + 1))
            << i;
      }
    }
}

// Frozen tensors have no gradient, and what has none makes no other one wrong.
TEST(AddNormOp, LeavesFrozenTensorsOut) {
  torch::manual_seed(5);
  for (const auto added : {at::kBFloat16, at::kFloat, kNone}) {
    const Form form{.added = added};
    const Rows rows = rows_of(form, {3, 7, 24});
    const auto whole = run(ours, form, leaves(rows));
    const std::size_t count = leaves(rows).all().size();
    for (unsigned mask = 1; mask < 1u << count; ++mask) {
      Rows some = leaves(rows);
      for (std::size_t i = 0; i < count; ++i) some.all()[i]->set_requires_grad(mask >> i & 1u);
      const SumAndNorm result = ours(form, some);
      std::vector<at::Tensor> results{result.norm};
      std::vector<at::Tensor> above{gradient_for(result.norm, 0)};
      if (result.sum.requires_grad()) {
        results.push_back(result.sum);
        above.push_back(gradient_for(result.sum, 3));
      }
      torch::autograd::backward(results, above);
      for (std::size_t i = 0; i < count; ++i) {
        const at::Tensor& seen = some.all()[i]->grad();
        ASSERT_EQ(seen.defined(), (mask >> i & 1u) != 0) << i << ' ' << mask;
        if (!seen.defined()) continue;
        EXPECT_TRUE(seen.equal(whole[2 + i])) << i << ' ' << mask;
      }
      if (added == kNone) {
        EXPECT_EQ(result.sum.requires_grad(), some.input.requires_grad());
      }
    }
  }
}

TEST(AddNormOp, WithoutAnAddTheSumIsTheInput) {
  const Rows rows = rows_of({.added = kNone}, {5, 8});
  EXPECT_TRUE(ours({.added = kNone}, rows).sum.is_same(rows.input));
  const Rows learns = leaves(rows);
  const at::Tensor sum = ours({.added = kNone}, learns).sum;
  EXPECT_EQ(sum.data_ptr(), learns.input.data_ptr()) << "no copy";
}

TEST(AddNormOp, HasTheSameBitsWithAnyNumberOfThreads) {
  torch::manual_seed(6);
  const int before = at::get_num_threads();
  for (const bool centered : {true, false}) {
    const Form form{.centered = centered};
    const Rows rows = rows_of(form, {8, 130, 256});
    std::vector<std::vector<at::Tensor>> all;
    for (const int threads : {1, 2, 5}) {
      at::set_num_threads(threads);
      all.push_back(run(ours, form, leaves(rows)));
    }
    for (const auto& one : all)
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(all[0][i])) << i;
  }
  at::set_num_threads(before);
}

TEST(AddNormOp, HasGradientsOfGradients) {
  torch::manual_seed(7);
  const auto second = [](const By& by, const Form& form, Rows rows) {
    std::vector<at::Tensor> of;
    for (at::Tensor* one : rows.all()) of.push_back(*one);
    const SumAndNorm result = by(form, rows);
    const auto first =
        torch::autograd::grad({(result.norm.pow(3) + result.sum.pow(2)).sum()}, of, {}, true, true);
    at::Tensor penalty = at::zeros({}, rows.input.options());
    for (const at::Tensor& one : first) penalty = penalty + one.pow(3).sum();
    return torch::autograd::grad({penalty}, of);
  };
  for (const bool centered : {true, false})
    for (const auto added : {at::kFloat, kNone}) {
      const Form form{centered, at::kFloat, added, at::kFloat};
      const Rows rows = rows_of(form, {3, 6});
      const auto seen = second(ours, form, leaves(rows)),
                 exact = second(in_fp64, form, leaves(rows, true));
      for (std::size_t i = 0; i < seen.size(); ++i)
        EXPECT_LE(distance(seen[i], exact[i]), 1e-4 * exact[i].norm().item<double>() + 1e-4) << i;
    }
}

/// DEMI_KERNELS=aten while it lives.
class WithoutKernels {
 public:
  WithoutKernels() { setenv("DEMI_KERNELS", "aten", 1); }
  ~WithoutKernels() {
    was_set_ ? setenv("DEMI_KERNELS", before_.c_str(), 1) : unsetenv("DEMI_KERNELS");
  }
  WithoutKernels(const WithoutKernels&) = delete;
  WithoutKernels& operator=(const WithoutKernels&) = delete;

 private:
  bool was_set_ = std::getenv("DEMI_KERNELS") != nullptr;
  std::string before_ = was_set_ ? std::getenv("DEMI_KERNELS") : "";
};

// Kernels may be switched off after forward.
TEST(AddNormOp, HasItsGradientsWithoutKernels) {
  torch::manual_seed(8);
  for (const auto added : {at::kBFloat16, kNone}) {
    const Form form{.added = added};
    const Rows rows = rows_of(form, {6, 40});
    const auto expected = run(ours, form, leaves(rows));
    Rows mine = leaves(rows);
    const SumAndNorm result = ours(form, mine);
    {
      const WithoutKernels none;
      torch::autograd::backward({result.sum, result.norm},
                                {gradient_for(result.sum, 3), gradient_for(result.norm, 0)});
    }
    for (std::size_t i = 0; i < mine.all().size(); ++i)
      EXPECT_TRUE(mine.all()[i]->grad().allclose(expected[2 + i], 1e-2, 1e-2)) << i;
  }
}

/// Whether LibTorch's operators ran: their bits, which are not the kernels'.
bool is_libtorchs(const Form& form, const Rows& rows) {
  const SumAndNorm seen = ours(form, rows), theirs = libtorchs(form, rows);
  return seen.sum.equal(theirs.sum) && seen.norm.equal(theirs.norm) &&
         seen.norm.scalar_type() == theirs.norm.scalar_type();
}

TEST(AddNormOp, LeavesTheRestToLibTorch) {
  torch::manual_seed(9);
  for (const bool centered : {true, false}) {
    const auto same = [&](Form form, Rows rows) {
      form.centered = centered;
      if (!centered) rows.bias = at::Tensor();
      EXPECT_TRUE(is_libtorchs(form, rows)) << named(form);
    };
    const Form fp32{.added = at::kFloat, .normed = at::kFloat};
    Rows fp64 = rows_of(fp32, {5, 90});
    for (at::Tensor* one : fp64.all()) *one = one->to(at::kDouble);
    same({.normed = at::kDouble}, fp64);
    Rows gaps = rows_of(fp32, {5, 90});
    gaps.input = at::randn({90, 5}).t();
    same(fp32, gaps);
    Rows broadcast = rows_of(fp32, {5, 90});
    broadcast.add = at::randn({90});
    same(fp32, broadcast);
    const Form wider{.input = at::kBFloat16, .added = at::kFloat, .normed = at::kFloat};
    same(wider, rows_of(wider, {5, 90}));
    const Form other{.input = at::kBFloat16, .added = at::kBFloat16, .normed = at::kHalf};
    same(other, rows_of(other, {5, 90}));
    same({}, rows_of({}, {0, 90}));
    const WithoutKernels none;
    same({}, rows_of({}, {5, 90}));
  }
  EXPECT_FALSE(is_libtorchs({.normed = at::kFloat}, rows_of({}, {50, 90})))
      << "the same bits: was it demi's?";
}

TEST(AddNormOp, FollowsAPolicyThatNamesWhatItComputes) {
  torch::manual_seed(10);
  for (const bool centered : {true, false}) {
    const Form form{centered, at::kFloat, at::kBFloat16, at::kFloat};
    const Rows rows = rows_of(form, {50, 90});
    for (const std::string op : {"add", centered ? "layer_norm" : "rms_norm"}) {
      OpPolicy policy;
      policy.set(op, OpCategory::lower_precision);
      const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
      EXPECT_TRUE(is_libtorchs(form, rows)) << op;
    }
    OpPolicy policy;
    policy.set(centered ? "rms_norm" : "layer_norm", OpCategory::lower_precision);
    const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
    EXPECT_FALSE(is_libtorchs(form, rows)) << "a rule for another operator";
  }
}

TEST(AddNormOp, FollowsThePolicyOfAPart) {
  torch::manual_seed(11);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({90}));
  const Form form{.normed = at::kFloat};
  Rows rows = rows_of(form, {50, 90});
  rows.weight = norm->weight;
  rows.bias = norm->bias;
  const Autocast region(torch::kCPU, torch::kBFloat16);
  EXPECT_FALSE(is_libtorchs(form, rows));
  demi::apply(Policy("float32"), *norm);
  EXPECT_TRUE(is_libtorchs(form, rows));
}

// bf16 rows that are normed in fp16 are LibTorch's in any case, and its rms_norm asks no policy.
TEST(AddNormOp, AUsedCopyKeepsItsPolicyInOtherMemory) {
  torch::manual_seed(13);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({90}));
  demi::apply(Policy("float32"), *norm);
  const auto copy = std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(norm->clone());
  const Autocast region(torch::kCPU, torch::kBFloat16);
  add_rms_norm(at::randn({50, 90}, at::kBFloat16), {}, copy->weight, {.dtype = at::kHalf});
  copy->weight.set_data(at::rand({90}));
  const Form form{.centered = false, .normed = at::kFloat};
  Rows rows = rows_of(form, {50, 90});
  rows.weight = copy->weight;
  EXPECT_TRUE(is_libtorchs(form, rows));
}

TEST(AddNormOp, PassesNaNAndInfinityAsLibTorch) {
  torch::manual_seed(12);
  for (const bool centered : {true, false})
    for (const double odd :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      for (const bool in_add : {true, false}) {
        const Form form{.centered = centered};
        Rows rows = rows_of(form, {6, 40});
        (in_add ? rows.add : rows.input)[2][5] = odd;
        const auto seen = run(ours, form, leaves(rows)),
                   theirs = run(libtorchs, form, leaves(rows));
        for (std::size_t i = 0; i < seen.size(); ++i)
          EXPECT_TRUE(seen[i].isfinite().equal(theirs[i].isfinite())) << i << ' ' << odd;
      }
}

TEST(AddNormOp, SaysWhatItsResultsShare) {
  for (const char* const name : {"demi::add_layer_norm", "demi::add_rms_norm"}) {
    const auto schema = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").schema();
    EXPECT_FALSE(schema.is_mutable()) << name;
    EXPECT_EQ(schema.returns()[0].alias_info(), nullptr) << name;
    EXPECT_NE(schema.returns()[1].alias_info(), nullptr) << name;
  }
}

TEST(AddNormOp, RefusesBackwardOfASumThatWasOverwritten) {
  Rows rows = leaves(rows_of({}, {5, 8}));
  const SumAndNorm result = ours({}, rows);
  result.sum.detach().mul_(2);
  EXPECT_THROW(result.norm.sum().backward(), c10::Error);
}

TEST(AddNormOp, RefusesShapesThatDoNotFit) {
  Rows rows = rows_of({}, {5, 8});
  rows.weight = at::ones({7});
  EXPECT_THROW(ours({}, rows), c10::Error);
  rows = rows_of({}, {5, 8});
  rows.add = at::ones({4, 8});
  EXPECT_THROW(ours({}, rows), c10::Error);
}

}  // namespace
}  // namespace demi
