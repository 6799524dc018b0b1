#include "lab/profiler/promotion.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace demi::profiler {
namespace {

const std::map<torch::ScalarType, std::pair<std::string, std::string>>& dtypes() {
  static const std::map<torch::ScalarType, std::pair<std::string, std::string>> all{
      {torch::kFloat, {"float", "fp32"}},
      {torch::kDouble, {"double", "fp64"}},
      {torch::kHalf, {"c10::Half", "fp16"}},
      {torch::kBFloat16, {"c10::BFloat16", "bf16"}}};
  return all;
}

// Of each pair, with and without dimensions: what LibTorch's own sum has.
TEST(Promotion, IsLibTorchs) {
  for (const auto& [a, names_of_a] : dtypes())
    for (const auto& [b, names_of_b] : dtypes())
      for (const bool a_has_dimensions : {true, false})
        for (const bool b_has_dimensions : {true, false}) {
          using Shape = std::vector<std::int64_t>;
          const Shape of_a = a_has_dimensions ? Shape{3} : Shape{};
          const Shape of_b = b_has_dimensions ? Shape{3} : Shape{};
          const auto sum = at::add(at::ones(of_a, a), at::ones(of_b, b)).scalar_type();
          const Event event{.name = "aten::add",
                            .shapes = {of_a, of_b, {}},
                            .dtypes = {names_of_a.first, names_of_b.first, "Scalar"}};
          EXPECT_EQ(promoted(event), dtypes().at(sum).second)
              << names_of_a.second << a_has_dimensions << " " << names_of_b.second
              << b_has_dimensions;
        }
}

TEST(Promotion, IsWhatPointwiseOpsDo) {
  for (const char* op : {"aten::add", "aten::mul_", "aten::where", "aten::maximum"})
    EXPECT_TRUE(promotes(op)) << op;
  for (const char* op : {"aten::mm", "aten::batch_norm", "aten::native_layer_norm", "none"})
    EXPECT_FALSE(promotes(op)) << op;
}

TEST(Promotion, OfNoFloatingPointIsNothing) {
  EXPECT_EQ(promoted({.name = "aten::add", .dtypes = {"long int", "Scalar"}}), "");
}

}  // namespace
}  // namespace demi::profiler
