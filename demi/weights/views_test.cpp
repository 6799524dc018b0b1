// A view is its base's as autograd sees it; its memory may be any.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

using Views = testing::Weights;
using View = std::function<at::Tensor(at::Tensor&)>;

struct NamedView {
  const char* name;
  View view;
};

/// Memory in whose middle a leaf lies, with numbers of which a wrong one is seen.
at::Tensor leaf_in_the_middle() {
  const auto flat = torch::randn({768});
  return flat.narrow(0, 256, 256).view({16, 16}).detach().set_requires_grad(true);
}

std::vector<NamedView> views_elsewhere() {
  return {
      {"the base's data were replaced",
       [](at::Tensor& p) {
         const auto v = p.t();
         p.set_data(torch::zeros({16, 16}));
         return v;
       }},
      {"by less",
       [](at::Tensor& p) {
         const auto v = p.t();
         p.set_data(torch::zeros({2, 2}));
         return v;
       }},
      {"by another part of the storage",
       [](at::Tensor& p) {
         const auto v = p.t();
         p.set_data(p.data().as_strided({16, 16}, {16, 1}, 0));
         return v;
       }},
      {"the view's own were",
       [](at::Tensor& p) {
         auto v = p.t();
         v.set_data(torch::ones({16, 16}));
         return v;
       }},
      {"before the base",
       [](at::Tensor& p) {
         return p.as_strided({16, 16}, {16, 1}, 0);
       }},
      {"half before",
       [](at::Tensor& p) {
         return p.as_strided({16, 16}, {16, 1}, 128);
       }},
      {"half behind",
       [](at::Tensor& p) {
         return p.as_strided({16, 16}, {16, 1}, 384);
       }},
      {"one element behind",
       [](at::Tensor& p) {
         return p.as_strided({16, 16}, {16, 1}, 257);
       }},
      {"with gaps, past the end",
       [](at::Tensor& p) {
         return p.as_strided({16, 16}, {17, 1}, 256);
       }},
      {"empty, behind", [](at::Tensor& p) { return p.narrow(0, 16, 0); }},
  };
}

std::vector<NamedView> views_within() {
  return {
      {"as_strided",
       [](at::Tensor& p) {
         return p.as_strided({4, 4}, {16, 2}, 300);
       }},
      {"to the last element", [](at::Tensor& p) { return p.as_strided({1}, {1}, 511); }},
      {"expanded",
       [](at::Tensor& p) {
         return p[3].expand({5, 16});
       }},
      {"through another dtype",
       [](at::Tensor& p) { return p.view(torch::kInt).view(torch::kFloat); }},
      {"as pairs of complex numbers",
       [](at::Tensor& p) {
         return torch::view_as_real(torch::view_as_complex(p.view({128, 2})));
       }},
  };
}

void expect_own_values(const at::Tensor& view, const char* name) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf})
    EXPECT_TRUE(low_precision(view, dtype).detach().equal(view.detach().to(dtype))) << name;
}

TEST_F(Views, ThatLieOutsideOfTheirBaseAreCastThemselves) {
  for (const bool trained : {true, false}) {
    for (const auto& [name, view] : views_elsewhere()) {
      auto p = leaf_in_the_middle().set_requires_grad(trained);
      const auto held = p;  // a frozen weight has two holders
      enter_region();
      testing::expect_right(p, name);
      expect_own_values(view(p), name);
      leave_region();
    }
  }
}

TEST_F(Views, ThatLieWithinComeFromTheCopy) {
  for (const auto& [name, view] : views_within()) {
    auto p = leaf_in_the_middle();
    enter_region();
    expect_own_values(view(p), name);
    testing::expect_right(p, name);
    leave_region();
  }
}

TEST_F(Views, OfAComplexBaseAreCastThemselves) {
  auto p = torch::randn({8, 8}, torch::kComplexFloat).set_requires_grad(true);
  enter_region();
  expect_own_values(torch::view_as_real(p), "real");
  expect_own_values(torch::real(p), "real part");
  expect_own_values(torch::imag(torch::conj(p)), "negated imaginary part");
  leave_region();
}

TEST_F(Views, ThatWereLeftBehindKeepTheirGradient) {
  auto p = owned_parameter({16, 16});
  const auto v = p.t();
  low_precision(v, torch::kBFloat16);
  p.set_data(torch::zeros({16, 16}));
  const auto factor = torch::randn({16, 16}).to(torch::kBFloat16);
  (low_precision(v, torch::kBFloat16) * factor).sum().backward();
  EXPECT_TRUE(p.grad().equal(factor.t().to(torch::kFloat)));
}

}  // namespace
}  // namespace demi::weights
