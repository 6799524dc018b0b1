#include "lab/predict/picture_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <vector>

#include "lab/data/picture_testing.h"

namespace demi::predict {
namespace {

// Threads have a mode of their own, and the batch is one tensor that all of them write to.
TEST(PictureInputs, AreTheSameInInferenceMode) {
  std::vector<Input> inputs;
  for (const char* name : {"grey1.png", "grey2.png", "grey4.png", "grey8_gamma.png"})
    inputs.push_back({.name = (data::fixture_folder() / name).string()});
  workload::ModelData model;
  model.shape.channels = 3;
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const PictureInputs pictures(inputs, model, 4, c10::kCPU);
  const at::Tensor expected = pictures.batch(0, 0).input;
  {
    const c10::InferenceMode mode;
    EXPECT_TRUE(at::equal(pictures.batch(0, 0).input, expected));
  }
  at::set_num_threads(threads);
  if (!pictures.error(0).empty()) GTEST_SKIP() << pictures.error(0);
  EXPECT_EQ(expected.sizes(), (std::vector<int64_t>{4, 3, 28, 28}));
}

}  // namespace
}  // namespace demi::predict
