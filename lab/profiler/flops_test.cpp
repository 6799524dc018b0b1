#include "lab/profiler/flops.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace demi::profiler {
namespace {

using Lists = std::vector<std::vector<std::int64_t>>;

double flops(const char* op, Lists shapes, Lists numbers = {}) {
  return flops_of({.name = op, .shapes = std::move(shapes), .numbers = std::move(numbers)});
}

// Golub and Van Loan, "Matrix computations", 1.1.11: a product (m, k) by (k, n) takes 2 m n k.
TEST(Flops, OfProducts) {
  EXPECT_EQ(flops("aten::mm", {{3, 5}, {5, 7}}), 2.0 * 3 * 5 * 7);
  EXPECT_EQ(flops("aten::addmm", {{7}, {3, 5}, {5, 7}}), 2.0 * 3 * 5 * 7);
  EXPECT_EQ(flops("aten::bmm", {{4, 3, 5}, {4, 5, 7}}), 2.0 * 4 * 3 * 5 * 7);
  EXPECT_EQ(flops("aten::baddbmm", {{4, 3, 7}, {4, 3, 5}, {4, 5, 7}}), 2.0 * 4 * 3 * 5 * 7);
  EXPECT_EQ(flops("aten::linear", {{2, 3, 5}, {7, 5}, {7}}), 2.0 * 2 * 3 * 5 * 7);
}

// AlexNet's first layer: 105,415,200 multiplications and additions of its two groups together
// (Krizhevsky et al. 2012: 11 x 11 x 3 kernels with stride 4 to 55 x 55 x 96).
TEST(Flops, OfAConvolution) {
  const Lists numbers{{}, {}, {}, {4, 4}, {0, 0}, {1, 1}, {0}, {0, 0}, {1}};
  EXPECT_EQ(flops("aten::convolution", {{1, 3, 227, 227}, {96, 3, 11, 11}}, numbers),
            2.0 * 105'415'200);
}

// ResNet's 3 x 3 layers keep 56 x 56 with padding 1: 115,605,504 multiplications (64 channels).
TEST(Flops, OfPaddingStrideDilationAndGroups) {
  const Lists padded{{}, {}, {}, {1, 1}, {1, 1}, {1, 1}, {0}, {0, 0}, {1}};
  EXPECT_EQ(flops("aten::convolution", {{2, 64, 56, 56}, {64, 64, 3, 3}}, padded),
            2.0 * 2 * 115'605'504);
  const Lists depthwise{{}, {}, {}, {2}, {1}, {1}, {0}, {0}, {64}};  // one number for both
  EXPECT_EQ(flops("aten::convolution", {{1, 64, 56, 56}, {64, 1, 3, 3}}, depthwise),
            2.0 * 64 * 28 * 28 * 9);
  const Lists dilated{{}, {}, {}, {1}, {0}, {2}, {0}, {0}, {1}};
  EXPECT_EQ(flops("aten::convolution", {{1, 1, 9}, {1, 1, 3}}, dilated), 2.0 * 5 * 3);
}

// Each element of its input meets the whole kernel of its channel.
TEST(Flops, OfATransposedConvolution) {
  const Lists numbers{{}, {}, {}, {2, 2}, {0, 0}, {1, 1}, {1}, {0, 0}, {1}};
  EXPECT_EQ(flops("aten::convolution", {{1, 8, 10, 10}, {8, 4, 2, 2}}, numbers),
            2.0 * 8 * 100 * 4 * 4);
}

// The gradient of the input and that of the weight take as much as forward.
TEST(Flops, OfAConvolutionsBackward) {
  const auto backward = [](std::vector<std::int64_t> mask) {
    const Lists numbers{{}, {}, {}, {}, {1, 1}, {1, 1}, {1, 1}, {0}, {0, 0}, {1}, std::move(mask)};
    return flops("aten::convolution_backward", {{2, 64, 56, 56}, {2, 64, 56, 56}, {64, 64, 3, 3}},
                 numbers);
  };
  EXPECT_EQ(backward({1, 1, 0}), 2.0 * 2 * 2 * 115'605'504);
  EXPECT_EQ(backward({0, 1, 0}), 2.0 * 2 * 115'605'504) << "the first layer's input needs none";
  EXPECT_EQ(backward({0, 0, 1}), 0);
}

TEST(Flops, NoneOfOtherOpsAndWithoutShapes) {
  EXPECT_EQ(flops("aten::relu", {{3, 5}}), 0);
  EXPECT_EQ(flops("aten::mm", {}), 0);
  EXPECT_EQ(flops("aten::mm", {{5}, {5}}), 0);
  EXPECT_EQ(flops("aten::convolution", {{3, 5}, {5, 3}}), 0);
  EXPECT_EQ(flops("aten::convolution", {{1, 1, 9}, {1, 1, 3}}, {{}, {}, {}, {0}}), 0) << "stride 0";
  Event kernel{.kind = Event::Kind::kernel, .name = "aten::mm", .shapes = {{3, 5}, {5, 7}}};
  EXPECT_EQ(flops_of(kernel), 0);
}

}  // namespace
}  // namespace demi::profiler
