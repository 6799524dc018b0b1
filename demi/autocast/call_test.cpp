// The text of an op's dtype error. An operator of our own throws what LibTorch's ops throw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>

#include "demi/autocast/autocast.h"
#include "demi/autocast/custom.h"

namespace demi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

at::Tensor complain(const at::Tensor&, const at::Tensor&, std::string_view message) {
  TORCH_CHECK(false, message);
}

at::Tensor first_of(const c10::List<std::optional<at::Tensor>>& tensors) {
  return tensors.get(0)->clone();
}

class DtypeError : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    register_autocast("demi_call_test::complain", OpCategory::lower_precision, torch::kCPU);
  }

  static std::string said(const std::string& message) {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    try {
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("demi_call_test::complain", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, std::string_view)>()
          .call(torch::ones({2}), torch::ones({2}, torch::kHalf), message);
    } catch (const c10::Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

// Texts of LibTorch 2.15 and cuDNN.
TEST_F(DtypeError, IsKnownByWhatLibTorchWrites) {
  for (const char* message :
       {"expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16",
        "expected scalar type Float but found BFloat16",
        "Expected X_.scalar_type() == ScalarType::Float to be true, but got false.",
        "Expected mask to be of ScalarType Bool, but got Half",
        "Add operands should have same data type.",
        "Expected tensor for argument #1 'self' to have the same type as tensor for argument #2",
        "Input type (CPUBFloat16Type) and weight type (CPUDoubleType) should be the same",
        "\"addmm_impl_cpu_\" not implemented for 'Half'", "cuDNN error: CUDNN_STATUS_BAD_PARAM"})
    EXPECT_THAT(said(message), HasSubstr("demi_call_test::complain(fp32, fp16)")) << message;
  for (const char* message : {"mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
                              "CUDA out of memory. Tried to allocate 2.00 GiB"})
    EXPECT_THAT(said(message), Not(HasSubstr("[autocast."))) << message;
}

// The whole text of an error names c10::ScalarType in frames of the backtrace.
TEST(OtherErrors, OfLibTorchGetNoAdviceOnDtypes) {
  const Autocast region(torch::kCPU, AutocastOptions{.policy = OpPolicy::named("fp32_reductions")});
  const auto message = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const auto x = torch::ones({2, 3});
  for (const auto& said :
       {message([&] { torch::softmax(x, 7); }), message([&] { x.sum(7); }),
        message([&] { torch::cumsum(x, 7); }), message([&] { torch::layer_norm(x, {7}); }),
        message([&] { torch::mm(x, x); }), message([&] {
          torch::cat({x, x[0]});
        })}) {
    EXPECT_THAT(said, Not(HasSubstr("nothing was thrown")));
    EXPECT_THAT(said, Not(HasSubstr("[autocast.")));
  }
}

TEST_F(DtypeError, OfAnOpWhoseArgumentsWereCastIsCuredByFp32) {
  EXPECT_THAT(said("not implemented for 'BFloat16'"),
              AllOf(HasSubstr("demi::OpCategory::fp32)"), Not(HasSubstr("promote"))));
}

TEST_F(DtypeError, NamesArgumentsThatAreThereAndNoOthers) {
  const Autocast region(torch::kCPU, torch::kBFloat16);
  const auto x = torch::ones({2, 2}), exact = torch::ones({2, 2}, torch::kDouble);
  const auto message = [&](const at::Tensor& bias) -> std::string {
    try {
      torch::linear(x, exact, bias);
    } catch (const c10::Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message(torch::ones({2})), HasSubstr("linear(fp32, fp64, fp32)"));
  EXPECT_THAT(message(at::Tensor()), HasSubstr("linear(fp32, fp64)"));
}

TEST(OptionalTensors, OfAListAreCastAndPromoted) {
  const auto dtype = [](OpCategory category) {
    OpPolicy policy;
    policy.set("demi_call_test::first_of", category);
    const Autocast region(torch::kCPU, AutocastOptions{.policy = policy});
    c10::List<std::optional<at::Tensor>> tensors;
    tensors.push_back(torch::ones({2}, torch::kHalf));
    tensors.push_back(std::nullopt);
    tensors.push_back(torch::ones({2}));
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("demi_call_test::first_of", "")
        .typed<at::Tensor(const c10::List<std::optional<at::Tensor>>&)>()
        .call(tensors)
        .scalar_type();
  };
  EXPECT_EQ(dtype(OpCategory::unchanged), torch::kHalf);
  EXPECT_EQ(dtype(OpCategory::lower_precision), torch::kBFloat16);
  EXPECT_EQ(dtype(OpCategory::promote), torch::kFloat);
}

}  // namespace

TORCH_LIBRARY(demi_call_test, library) {
  library.def("complain(Tensor x, Tensor y, str message) -> Tensor");
  library.def("first_of(Tensor?[] tensors) -> Tensor");
}
TORCH_LIBRARY_IMPL(demi_call_test, CompositeImplicitAutograd, library) {
  library.impl("complain", complain);
  library.impl("first_of", first_of);
}

}  // namespace demi
