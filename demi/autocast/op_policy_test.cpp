#include "demi/autocast/op_policy.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "demi/autocast/autocast.h"
#include "demi/autocast/op_lists.h"
#include "demi/core/error.h"

namespace demi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::set<std::string> registered_on(c10::DeviceType device) {
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device);
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key))
    names.insert(name.name.substr(6) +
                 (name.overload_name.empty() ? "" : "." + name.overload_name));
  return names;
}

std::set<std::string> listed_for(c10::DeviceType device) {
  std::set<std::string> names;
  for (const auto& rule : default_op_rules(device)) names.insert(rule.op);
  return names;
}

std::vector<std::string> only_in(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::vector<std::string> result;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result));
  return result;
}

// The ops that LibTorch itself has registered, read in a process of its own (ctest runs this file's
// first test before any region).
const std::set<std::string> kCpuBefore = registered_on(torch::kCPU);
const std::set<std::string> kCudaBefore = registered_on(torch::kCUDA);

TEST(OpPolicyDrift, TheCpuTableIsWhatLibTorchHasRegistered) {
  EXPECT_THAT(only_in(kCpuBefore, listed_for(torch::kCPU)), IsEmpty())
      << "registered, not in demi's table";
  EXPECT_THAT(only_in(listed_for(torch::kCPU), kCpuBefore), IsEmpty())
      << "in demi's table, not registered";
  EXPECT_GE(kCpuBefore.size(), 126u);
}

TEST(OpPolicyDrift, TheCudaTableIsWhatLibTorchHasRegistered) {
  auto registered = kCudaBefore;
  registered.insert("_cudnn_rnn");  // registered where the CUDA libraries are loaded
  EXPECT_THAT(only_in(registered, listed_for(torch::kCUDA)), IsEmpty());
  EXPECT_THAT(only_in(listed_for(torch::kCUDA), registered), IsEmpty());
  EXPECT_GE(kCudaBefore.size(), 120u);
}

TEST(OpPolicyDrift, OtherDevicesRunWhatTheyHaveRegistered) {
  for (const auto device : {torch::kXPU, torch::kMTIA, torch::kMPS}) {
    const auto registered = registered_on(device);
    const auto listed = listed_for(device);
    EXPECT_THAT(only_in(listed, registered), IsEmpty()) << device;
    EXPECT_GT(listed.size(), registered.size() * 8 / 10) << device;
  }
}

TEST(OpPolicy, EveryEntryHasAReason) {
  for (const auto device : {torch::kCPU, torch::kCUDA})
    for (const auto& rule : default_op_rules(device)) EXPECT_FALSE(rule.reason.empty()) << rule.op;
}

TEST(OpPolicy, AReasonFollowsFromTheOpNotFromLettersInItsName) {
  for (const auto& rule : default_op_rules(torch::kCUDA)) {
    const bool has_qr_or_lu = rule.op == "rsqrt" || rule.op == "softplus";
    if (has_qr_or_lu) {
      EXPECT_EQ(rule.reason.find("solvers"), std::string::npos) << rule.op;
    }
  }
}

TEST(OpPolicy, CategoriesOfWellKnownOps) {
  const auto category = [](c10::DeviceType device, std::string_view op) {
    for (const auto& rule : default_op_rules(device))
      if (rule.op == op) return rule.category;
    return OpCategory::unchanged;
  };
  EXPECT_EQ(category(torch::kCUDA, "linear"), OpCategory::lower_precision);
  EXPECT_EQ(category(torch::kCUDA, "softmax.int"), OpCategory::fp32_output);
  EXPECT_EQ(category(torch::kCUDA, "binary_cross_entropy"), OpCategory::banned);
  EXPECT_EQ(category(torch::kCUDA, "exp"), OpCategory::fp32);
  EXPECT_EQ(category(torch::kCUDA, "addcmul"), OpCategory::promote);
  EXPECT_EQ(category(torch::kCPU, "binary_cross_entropy"), OpCategory::fp32);
  EXPECT_EQ(category(torch::kCPU, "cat"), OpCategory::promote);
  EXPECT_EQ(category(torch::kCPU, "softmax.int"), OpCategory::unchanged);
}

class InRegion : public testing::Test {
 protected:
  at::Tensor low_ = torch::rand({2, 3}).to(torch::kBFloat16);
};

TEST_F(InRegion, AnyOpMovesBetweenCategories) {
  OpPolicy policy;
  policy.set("mm", OpCategory::fp32)
      .set("softmax", OpCategory::fp32)
      .set("add.Tensor", OpCategory::lower_precision);
  const auto x = torch::ones({2, 2});
  {
    Autocast region(torch::kCPU, AutocastOptions{.policy = policy});
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kFloat);
    EXPECT_EQ(torch::softmax(low_, 1).scalar_type(), torch::kFloat);
    EXPECT_EQ(torch::add(x, x).scalar_type(), torch::kBFloat16) << "an op of no list";
    {
      Autocast inner(torch::kCPU, AutocastOptions{.policy = OpPolicy()});
      EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kBFloat16);
    }
    EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kFloat);
  }
  Autocast region(torch::kCPU);
  EXPECT_EQ(torch::mm(x, x).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(torch::add(x, x).scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::softmax(low_, 1).scalar_type(), torch::kBFloat16)
      << "LibTorch's CPU lists do not name it";
}

TEST_F(InRegion, TheGlobalPolicyServesRegionsThatNameNone) {
  Autocast region(torch::kCPU);
  OpPolicy policy;
  policy.set("mm", OpCategory::unchanged);
  set_global_op_policy(policy);
  EXPECT_EQ(global_op_policy().changes().size(), policy.changes().size());
  EXPECT_EQ(torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(), torch::kFloat);
  set_global_op_policy(OpPolicy());
  EXPECT_EQ(torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(), torch::kBFloat16);
}

TEST_F(InRegion, PromoteTakesFp16BesideBf16) {
  Autocast region(torch::kCPU, torch::kBFloat16);
  const auto half = torch::ones({2, 3}, torch::kHalf);
  EXPECT_EQ(torch::cat({low_, half}).scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::stack({low_, low_}).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(torch::cat({half, half}).scalar_type(), torch::kHalf)
      << "the widest among them, not the region's";
  EXPECT_EQ(torch::cat({low_, torch::ones({1, 3})}).scalar_type(), torch::kFloat);
  const auto fp8 = half.to(torch::kFloat8_e4m3fn);
  EXPECT_EQ(torch::cat({half, fp8}).scalar_type(), torch::kHalf);
  EXPECT_EQ(torch::cat({fp8, half}).scalar_type(), torch::kHalf);
  OpPolicy policy;
  policy.set("linalg_multi_dot", OpCategory::promote);
  Autocast inner(torch::kCPU, AutocastOptions{.policy = policy});
  EXPECT_EQ(torch::linalg_multi_dot({low_, half.t()}).scalar_type(), torch::kFloat)
      << "a list, in an op that does not promote by itself";
  EXPECT_EQ(torch::cat({torch::ones({1, 3}, torch::kLong), torch::ones({1, 3}, torch::kLong)})
                .scalar_type(),
            torch::kLong);
}

TEST_F(InRegion, ElementsOfAListAreCast) {
  OpPolicy policy;
  policy.set("cat", OpCategory::fp32);
  Autocast region(torch::kCPU, AutocastOptions{.policy = policy});
  EXPECT_EQ(torch::cat({low_, low_}).scalar_type(), torch::kFloat);
}

// linear calls addmm: its own rule decides, as by LibTorch's kernels.
TEST_F(InRegion, WhatAnOpCallsInsideRunsByTheOpsRule) {
  OpPolicy policy;
  policy.set("addmm", OpCategory::fp32);
  Autocast region(torch::kCPU, AutocastOptions{.policy = policy});
  const auto x = torch::ones({2, 2}), b = torch::ones({2});
  EXPECT_EQ(torch::linear(x, x, b).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(torch::addmm(b, x, x).scalar_type(), torch::kFloat);
}

TEST_F(InRegion, OnePolicyOnTwoDevicesAndTwoPoliciesThatNameOneOp) {
  OpPolicy fp32, as_given;
  fp32.set("mm", OpCategory::fp32);
  as_given.set("mm", OpCategory::unchanged);
  Autocast on_cuda(torch::kCUDA, AutocastOptions{.policy = fp32});
  Autocast on_cpu(torch::kCPU, AutocastOptions{.policy = fp32});
  EXPECT_NO_THROW(torch::binary_cross_entropy(low_, low_)) << "banned on CUDA alone";
  EXPECT_EQ(torch::mm(low_, low_.t()).scalar_type(), torch::kFloat);
  Autocast inner(torch::kCPU, AutocastOptions{.policy = as_given});
  EXPECT_EQ(torch::mm(low_, low_.t()).scalar_type(), torch::kBFloat16);
}

TEST_F(InRegion, ABannedOpIsRefusedWithAdvice) {
  OpPolicy policy;
  policy.set("binary_cross_entropy", OpCategory::banned);
  Autocast region(torch::kCPU, AutocastOptions{.policy = policy});
  try {
    torch::binary_cross_entropy(low_, low_);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("binary_cross_entropy_with_logits"));
  }
  Autocast on_cpu(torch::kCPU, AutocastOptions{.policy = OpPolicy()});
  EXPECT_EQ(torch::binary_cross_entropy(low_, low_).scalar_type(), torch::kFloat);
}

TEST_F(InRegion, Fp32OutputRespectsAnExplicitDtype) {
  Autocast region(torch::kCPU, AutocastOptions{.policy = OpPolicy::named("fp32_reductions")});
  EXPECT_EQ(torch::softmax(low_, 1).scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::softmax(low_, 1, torch::kBFloat16).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(torch::sum(low_).scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::norm(low_).scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::sum(torch::ones({2}, torch::kInt)).scalar_type(), torch::kLong);
  EXPECT_EQ(torch::norm(torch::ones({2}, torch::kDouble)).scalar_type(), torch::kDouble);
  EXPECT_EQ(torch::layer_norm(low_, {3}).scalar_type(), torch::kFloat);
  OpPolicy policy;
  policy.set("exp", OpCategory::fp32_output);
  Autocast inner(torch::kCPU, AutocastOptions{.policy = policy});
  EXPECT_EQ(torch::exp(low_).scalar_type(), torch::kFloat) << "an op that names no dtype";
}

// The dtypes that aten::norm is called with, by us and by what we call.
class SeenByNorm {
 public:
  SeenByNorm() { dtypes.clear(); }
  ~SeenByNorm() { at::removeCallback(handle_); }
  static inline std::vector<c10::ScalarType> dtypes;

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::norm")
      dtypes.push_back(function.inputs()[0].toTensor().scalar_type());
    return nullptr;
  }
  at::CallbackHandle handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(&see).needsInputs(true));
};

TEST_F(InRegion, NormSumsInFp32WithoutAnFp32CopyOfItsArgument) {
  Autocast region(torch::kCPU, AutocastOptions{.policy = OpPolicy::named("fp32_reductions")});
  for (const auto& norm : std::vector<std::function<at::Tensor()>>{
           [&] { return torch::norm(low_); },
           [&] { return torch::norm(low_, 2, std::vector<std::int64_t>{1}, false); }}) {
    const SeenByNorm seen;
    EXPECT_EQ(norm().scalar_type(), torch::kFloat);
    EXPECT_GE(SeenByNorm::dtypes.size(), 2u);
    for (const auto dtype : SeenByNorm::dtypes) EXPECT_EQ(dtype, torch::kBFloat16);
  }
}

template <class E, class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(OpPolicy, TheLastCallCountsAndIsListedOnce) {
  OpPolicy policy;
  policy.set("mm", OpCategory::fp32);
  const auto overloads = policy.changes().size();
  policy.set("mm", OpCategory::unchanged).set("add.Tensor", OpCategory::promote);
  EXPECT_EQ(policy.changes().size(), overloads + 1);
  const auto defaults = default_op_rules(torch::kCPU), rules = policy.rules(torch::kCPU);
  EXPECT_EQ(rules.size(), defaults.size() + overloads) << "mm was there already";
  const auto category = [&](std::string_view op) {
    return std::find_if(rules.begin(), rules.end(), [&](auto& r) { return r.op == op; })->category;
  };
  EXPECT_EQ(category("mm"), OpCategory::unchanged);
  EXPECT_EQ(category("add.Tensor"), OpCategory::promote);
}

TEST(OpPolicy, Fp32ReductionsHoldsWhatCpusListsLeaveOut) {
  const auto on_cpu = listed_for(torch::kCPU);
  const auto policy = OpPolicy::named("fp32_reductions");
  for (const auto& rule : policy.changes()) EXPECT_FALSE(on_cpu.contains(rule.op)) << rule.op;
}

TEST(OpPolicyInput, UnknownNamesAreAnsweredWithTheNearest) {
  OpPolicy policy;
  EXPECT_THAT(refusal<UsageError>([&] { policy.set("sofmax", OpCategory::fp32); }),
              HasSubstr("did you mean softmax"));
  EXPECT_THAT(refusal<UsageError>([&] { policy.set("add_", OpCategory::fp32); }),
              AllOf(HasSubstr("writes to its arguments"), HasSubstr("did you mean add?")));
  EXPECT_THAT(refusal<UsageError>([&] { policy.set("zeros", OpCategory::fp32); }),
              HasSubstr("takes no tensor"));
  EXPECT_THAT(refusal<UsageError>([&] { policy.set("softmax.imt", OpCategory::fp32); }),
              HasSubstr("did you mean softmax.int?"));
  EXPECT_THAT(refusal<UsageError>([&] { policy.set("mine::scale", OpCategory::fp32); }),
              HasSubstr("the library that registers it"));
  EXPECT_THAT(refusal<UsageError>([] { parse_op_category("fp23"); }),
              HasSubstr("did you mean fp32"));
  EXPECT_THAT(refusal<UsageError>([] { parse_op_category("bf16"); }),
              AllOf(HasSubstr("did you mean lower_precision?"), HasSubstr("the region's dtype")));
  EXPECT_THAT(refusal<UsageError>([] { parse_op_category("float32"); }),
              HasSubstr("did you mean fp32?"));
  EXPECT_THAT(refusal<UsageError>([] { OpPolicy::named("fp32_reduction"); }),
              HasSubstr("fp32_reductions"));
  EXPECT_THAT(policy.changes(), IsEmpty());
}

TEST(OpPolicyInput, FromAFile) {
  const std::string path = testing::TempDir() + "demi_op_policy.txt";
  std::ofstream(path)
      << "# a comment\npolicy fp32_softmax\nmm = fp32\nadd.Tensor promote  # here too\n\n";
  const auto policy = OpPolicy::from_file(path);
  ASSERT_GE(policy.changes().size(), 4u);
  EXPECT_EQ(policy.changes()[0].op, "softmax.int");
  EXPECT_EQ(policy.changes()[2].op, "mm");
  EXPECT_EQ(policy.changes()[2].category, OpCategory::fp32);
  EXPECT_EQ(policy.changes().back().op, "add.Tensor");
  std::ofstream(path) << "mm fp32\nmm fp33\n";
  EXPECT_THAT(refusal<UsageError>([&] { OpPolicy::from_file(path); }),
              HasSubstr("demi_op_policy.txt:2: no category of that name; seen: fp33"));
  std::ofstream(path) << "mm fp32 please\n";
  EXPECT_THAT(refusal<UsageError>([&] { OpPolicy::from_file(path); }), HasSubstr("an op and a"));
  std::ofstream(path) << "mm\n";
  EXPECT_THAT(refusal<UsageError>([&] { OpPolicy::from_file(path); }), HasSubstr(":1"));
  EXPECT_THAT(refusal<DataError>([&] { OpPolicy::from_file(path + ".none"); }),
              HasSubstr("cannot be read; seen: " + path + ".none: No such file or directory"));
  EXPECT_THAT(refusal<DataError>([&] { OpPolicy::from_file(testing::TempDir()); }),
              HasSubstr("cannot be read"))
      << "a folder";
}

std::map<std::string, std::pair<OpCategory, std::string>> rules_of(const OpPolicy& policy) {
  std::map<std::string, std::pair<OpCategory, std::string>> rules;
  for (const auto& rule : policy.changes()) rules[rule.op] = {rule.category, rule.reason};
  return rules;
}

class PolicyFile : public testing::Test {
 public:
  PolicyFile() : path_(testing::TempDir() + "/written.policy") {}
  ~PolicyFile() override { std::filesystem::remove(path_); }

 protected:
  void expect_read_back(const OpPolicy& policy) {
    policy.to_file(path_);
    const OpPolicy read = OpPolicy::from_file(path_);
    EXPECT_EQ(rules_of(read), rules_of(policy)) << policy.to_string();
    EXPECT_EQ(read.fp32_parts(), policy.fp32_parts());
    EXPECT_EQ(read.to_string(), policy.to_string());
  }
  std::string path_;
};

TEST_F(PolicyFile, IsReadBackAsItWasWritten) {
  for (const std::string& name : OpPolicy::names()) {
    SCOPED_TRACE(name);
    expect_read_back(OpPolicy::named(name));
  }
  OpPolicy policy;
  policy.set("mm", OpCategory::fp32, "linear gave 1.2e+05 = Inf # in fp16")
      .set("add.Tensor", OpCategory::promote, "")
      .keep_part_in_fp32("layers.2")
      .keep_part_in_fp32("head");
  policy.keep_part_in_fp32("head");
  EXPECT_EQ(policy.fp32_parts(), (std::vector<std::string>{"layers.2", "head"}));
  OpPolicy said = policy;
  said.set("add.Tensor", OpCategory::promote, "from the policy file");
  policy.to_file(path_);
  EXPECT_EQ(rules_of(OpPolicy::from_file(path_)), rules_of(said));
  expect_read_back(said);
  expect_read_back(OpPolicy());
}

// sum has an overload without a name and others: one of them alone, and each in its own category.
TEST_F(PolicyFile, NamesOverloadsThatDiffer) {
  OpPolicy all;
  all.set("sum", OpCategory::fp32, "");
  ASSERT_TRUE(rules_of(all).contains("sum") && rules_of(all).contains("sum.dim_IntList"));
  EXPECT_EQ(all.to_string(), "sum fp32\n");
  all.set("sum", OpCategory::fp32);
  expect_read_back(all);
  expect_read_back(OpPolicy().set("sum.", OpCategory::fp32));
  EXPECT_EQ(rules_of(OpPolicy().set("sum.", OpCategory::fp32)).size(), 1u);
  expect_read_back(OpPolicy(all).set("sum.", OpCategory::promote));
  expect_read_back(OpPolicy(all).set("sum.dim_IntList", OpCategory::promote));
  expect_read_back(OpPolicy(all).set("sum.", OpCategory::fp32, "another reason"));
  expect_read_back(OpPolicy().keep_part_in_fp32("the head").keep_part_in_fp32("a=b"));
}

TEST_F(PolicyFile, ThatCannotBeWrittenIsRefused) {
  EXPECT_THROW(OpPolicy().to_file(path_ + "/no/such/folder"), TrainingError);
}

TEST_F(PolicyFile, PartsAreReadAndWrongLinesOfThemRefused) {
  std::ofstream(path_) << "part encoder.norm = fp32  # overflows\nmm fp32\npart head fp32\n";
  EXPECT_EQ(OpPolicy::from_file(path_).fp32_parts(),
            (std::vector<std::string>{"encoder.norm", "head"}));
  for (const char* line : {"part head", "part head bf16", "part head fp32 fp32"}) {
    std::ofstream(path_) << "mm fp32\n" << line << "\n";
    EXPECT_THAT(refusal<UsageError>([&] { OpPolicy::from_file(path_); }),
                AllOf(HasSubstr(":2:"), HasSubstr("part encoder.norm fp32")))
        << line;
  }
}

// Runs in a process of its own, since each op gets a kernel for good.
[[noreturn]] void exit_after_a_policy_of(std::size_t ops) {
  OpPolicy policy;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (policy.changes().size() > ops) break;
    try {
      policy.set(name.name, OpCategory::unchanged);
    } catch (const UsageError&) {  // takes no tensor, or writes to one
    }
  }
  if (policy.changes().size() < ops) std::exit(2);
  policy.set("mm", OpCategory::fp32);
  const Autocast region(torch::kCPU, AutocastOptions{.policy = policy});
  const auto x = torch::ones({2, 2}, torch::kBFloat16);
  std::exit(torch::mm(x, x).scalar_type() == torch::kFloat ? 0 : 1);
}

TEST(OpPolicyProcess, APolicyMayNameMoreThanAThousandOps) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_after_a_policy_of(1500), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace demi
