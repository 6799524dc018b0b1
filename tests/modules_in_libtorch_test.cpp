// Each module that demi offers is used as one of LibTorch's own: copied, in its containers, moved,
// frozen, saved, printed, on several devices and in several threads. The second device is that of
// second_device.h, which second_device_test.cpp in the same program registers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/distributed/data_parallel.h"
#include "tests/every_module.h"
#include "tests/libtorch_replicas.h"

namespace demi {
namespace {

using at::Tensor;
using testing::HasSubstr;

using namespace every_module;

const c10::Device kSecond(c10::DeviceType::XPU, 0);

/// A program's network with the module as a member.
template <class Case>
struct OwnerImpl : torch::nn::Cloneable<OwnerImpl<Case>> {
  OwnerImpl() { OwnerImpl::reset(); }
  void reset() override { part = this->register_module("part", Case::make()); }
  Tensor forward(const Tensor& x) { return part->forward(x); }
  typename Case::Holder part{nullptr};
};

template <class Case>
class ModuleInLibTorch : public testing::Test {
 protected:
  using Holder = typename Case::Holder;
  using Module = typename Holder::ContainedType;

  ModuleInLibTorch() {
    torch::manual_seed(5);
    input_ = Case::input();
    module_ = changed(Case::make());
  }

  /// With numbers that no new module has.
  template <class Any>
  static Any changed(Any module) {
    const torch::NoGradGuard no_grad;
    for (Tensor& p : module->parameters()) p.add_(0.05 * torch::randn_like(p));
    for (Tensor& b : module->buffers())
      if (b.is_floating_point()) b.add_(0.25);
    return module;
  }

  /// In both modes; dropout is the same each time.
  template <class Any>
  std::vector<Tensor> results(Any& module) const {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> all;
    for (const bool train : {false, true}) {
      const bool before = module->is_training();
      module->train(train);
      torch::manual_seed(7);
      all.push_back(module->forward(input_).clone());
      module->train(before);
    }
    return all;
  }

  /// In evaluation, which writes to no buffer.
  template <class Any>
  Tensor result(Any& module) const {
    const torch::NoGradGuard no_grad;
    return module->forward(input_).clone();
  }

  static void expect_equal(const Tensor& a, const Tensor& b, const std::string& name) {
    EXPECT_EQ(a.scalar_type(), b.scalar_type()) << name;
    EXPECT_EQ(a.requires_grad(), b.requires_grad()) << name;
    EXPECT_TRUE(torch::equal(a.cpu(), b.cpu())) << name;
    EXPECT_FALSE(a.is_alias_of(b)) << name;
  }

  /// Names, numbers, frozen parameters, modes: the same, in memory of its own.
  static void expect_copy(const torch::nn::Module& copy, const torch::nn::Module& of) {
    const auto parameters = copy.named_parameters(), buffers = copy.named_buffers();
    ASSERT_EQ(parameters.keys(), of.named_parameters().keys());
    ASSERT_EQ(buffers.keys(), of.named_buffers().keys());
    for (const auto& item : of.named_parameters())
      expect_equal(parameters[item.key()], item.value(), item.key());
    for (const auto& item : of.named_buffers())
      expect_equal(buffers[item.key()], item.value(), item.key());
    const auto parts = copy.named_modules("", /*include_self=*/false);
    for (const auto& item : of.named_modules("", false))
      EXPECT_EQ(parts[item.key()]->is_training(), item.value()->is_training()) << item.key();
    EXPECT_EQ(copy.is_training(), of.is_training());
  }

  Holder copy() const { return Holder(std::dynamic_pointer_cast<Module>(module_->clone())); }

  /// A part with parameters; the module itself if it has none.
  std::shared_ptr<torch::nn::Module> part() const {
    for (const auto& child : module_->children())
      if (!child->parameters().empty()) return child;
    return module_.ptr();
  }

  Tensor input_;
  Holder module_{nullptr};
};

using Modules =
    testing::Types<OfNorm, OfBatchNorm2d, OfFeedForward, OfSelfAttention, OfTransformerBlock, OfMLP,
                   OfSimpleCNN, OfFashionCNN, OfResNet, OfVGG19, OfLSTMClassifier,
                   OfGPT<models::GPTForm::gpt2, true>, OfGPT<models::GPTForm::llama, false>,
                   OfGPT<models::GPTForm::nanochat, true>, OfImportedModel<kGraph, kLogits>,
                   OfImportedModel<kScript, kRest>>;
TYPED_TEST_SUITE(ModuleInLibTorch, Modules);

TYPED_TEST(ModuleInLibTorch, IsCopied) {
  auto copy = this->copy();
  this->expect_copy(*copy, *this->module_);
  EXPECT_EQ(this->module_->parameters().size(), copy->parameters().size());
  const auto expected = this->results(this->module_), got = this->results(copy);
  for (const int mode : {0, 1}) EXPECT_TRUE(torch::equal(got[mode], expected[mode])) << mode;
  // The copy's numbers are its own: a step of one is none of the other.
  this->changed(copy);
  EXPECT_FALSE(torch::equal(this->results(copy)[0], expected[0]));
  this->module_->eval();
  EXPECT_TRUE(torch::allclose(this->result(this->module_), expected[0]) ||
              !this->module_->buffers().empty());
}

TYPED_TEST(ModuleInLibTorch, IsCopiedAsAMember) {
  const auto owner = this->changed(std::make_shared<OwnerImpl<TypeParam>>());
  auto copy = std::dynamic_pointer_cast<OwnerImpl<TypeParam>>(owner->clone());
  this->expect_copy(*copy, *owner);
  owner->eval(), copy->eval();
  EXPECT_TRUE(torch::equal(this->result(copy), this->result(owner)));
}

TYPED_TEST(ModuleInLibTorch, StandsInASequential) {
  this->module_->eval();
  torch::nn::Sequential stack(torch::nn::Identity(), this->module_);
  auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(stack->clone());
  this->expect_copy(*copy, *stack);
  const auto expected = this->result(this->module_);
  EXPECT_TRUE(torch::equal(stack->forward(this->input_), expected));
  EXPECT_TRUE(torch::equal(copy->forward(this->input_), expected));
}

TYPED_TEST(ModuleInLibTorch, StandsInAnAnyModule) {
  this->module_->eval();
  torch::nn::AnyModule any(this->module_);
  torch::nn::AnyModule copy = any.clone();
  this->expect_copy(*copy.ptr(), *this->module_);
  EXPECT_TRUE(torch::equal(any.forward(this->input_), this->result(this->module_)));
  EXPECT_TRUE(torch::equal(copy.forward(this->input_), this->result(this->module_)));
}

TYPED_TEST(ModuleInLibTorch, StandsInListsAndDicts) {
  using Module = typename TypeParam::Holder::ContainedType;
  this->module_->eval();
  torch::nn::ModuleList list(this->module_);
  using Part = std::pair<std::string, std::shared_ptr<torch::nn::Module>>;
  torch::nn::ModuleDict dict(std::vector<Part>{{"part", this->module_.ptr()}});
  const auto list_copy = std::dynamic_pointer_cast<torch::nn::ModuleListImpl>(list->clone());
  const auto dict_copy = std::dynamic_pointer_cast<torch::nn::ModuleDictImpl>(dict->clone());
  this->expect_copy(*list_copy, *list);
  this->expect_copy(*dict_copy, *dict);
  for (const auto& part : {list_copy->ptr(0), (*dict_copy)["part"]}) {
    auto module = std::dynamic_pointer_cast<Module>(part);
    ASSERT_NE(module, nullptr);
    EXPECT_TRUE(torch::equal(this->result(module), this->result(this->module_)));
  }
}

TYPED_TEST(ModuleInLibTorch, GoesToADtype) {
  this->module_->eval();
  const auto expected = this->result(this->module_);
  this->module_->to(torch::kDouble);
  const auto copy = this->copy();
  this->expect_copy(*copy, *this->module_);
  for (const Tensor& p : this->module_->parameters()) EXPECT_EQ(p.scalar_type(), torch::kDouble);
  if (this->input_.is_floating_point()) this->input_ = this->input_.to(torch::kDouble);
  const auto wide = this->result(this->module_);
  EXPECT_EQ(wide.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::allclose(wide, expected.to(torch::kDouble), 1e-3, 1e-3));
}

TYPED_TEST(ModuleInLibTorch, GoesToADevice) {
  const auto copy = std::dynamic_pointer_cast<torch::nn::Module>(this->module_->clone(kSecond));
  for (const Tensor& p : this->module_->parameters()) EXPECT_TRUE(p.is_cpu());
  for (const Tensor& t : copy->parameters()) EXPECT_EQ(t.device(), kSecond);
  for (const Tensor& t : copy->buffers()) EXPECT_EQ(t.device(), kSecond);
  this->expect_copy(*copy, *this->module_);
  this->module_->to(kSecond);
  for (const Tensor& t : this->module_->parameters()) EXPECT_EQ(t.device(), kSecond);
  for (const Tensor& t : this->module_->buffers()) EXPECT_EQ(t.device(), kSecond);
  this->expect_copy(*this->copy(), *this->module_);
}

TYPED_TEST(ModuleInLibTorch, KeepsModesOfPartsAndFrozenParameters) {
  const auto part = this->part();
  part->eval();
  for (Tensor& p : part->parameters()) p.set_requires_grad(false);
  const bool is_whole = part.get() == this->module_.ptr().get();
  EXPECT_EQ(this->module_->is_training(), !is_whole);
  this->expect_copy(*this->copy(), *this->module_);
  this->module_->train();
  for (const auto& one : this->module_->modules()) EXPECT_TRUE(one->is_training());
  this->module_->eval();
  for (const auto& one : this->copy()->modules()) EXPECT_FALSE(one->is_training());
}

TYPED_TEST(ModuleInLibTorch, AppliesAFunctionToEachPart) {
  std::set<const torch::nn::Module*> seen;
  this->module_->apply([&](torch::nn::Module& part) { seen.insert(&part); });
  EXPECT_EQ(seen.size(), this->module_->modules().size());
  EXPECT_TRUE(seen.contains(this->module_.ptr().get()));
}

TYPED_TEST(ModuleInLibTorch, IsSavedAndLoaded) {
  std::stringstream file;
  torch::save(this->module_, file);
  auto other = this->changed(TypeParam::make());
  torch::load(other, file);
  this->expect_copy(*other, *this->module_);
  this->module_->eval(), other->eval();
  EXPECT_TRUE(torch::equal(this->result(other), this->result(this->module_)));
}

TYPED_TEST(ModuleInLibTorch, IsPrinted) {
  std::ostringstream text;
  text << *this->module_;
  EXPECT_THAT(text.str(), testing::StartsWith(TypeParam::kName));
  for (const auto& item : this->module_->named_children())
    EXPECT_THAT(text.str(), HasSubstr("\n  (" + item.key() + "): "));
  EXPECT_THAT(text.str(), testing::Not(HasSubstr("Impl")));
}

// torch::nn::parallel::data_parallel, but for its Scatter and Gather, which LibTorch has for CUDA
// alone; and demi's own.
TYPED_TEST(ModuleInLibTorch, HasReplicas) {
  this->module_->eval();
  const auto weight = torch::randn_like(this->result(this->module_));
  const auto gradients = [&](const Tensor& out) {
    this->module_->zero_grad();
    (out * weight).sum().backward();
    std::vector<Tensor> all;
    for (const Tensor& p : this->module_->parameters())
      if (p.requires_grad()) all.push_back(p.grad().clone());
    return all;
  };
  const auto expected = gradients(this->module_->forward(this->input_));
  ASSERT_FALSE(expected.empty());
  const std::vector<torch::Device> devices{torch::kCPU, torch::kCPU};
  DataParallel parallel(this->module_, {.devices = devices});
  const auto of_demi = gradients(parallel(this->input_));
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(of_demi[i], expected[i], 1e-3, 1e-4)) << i;
  const auto outputs = outputs_of_replicas(this->module_.ptr(), this->input_.chunk(2));
  if (outputs.empty()) GTEST_SKIP() << "no CUDA headers, which LibTorch's replicas need";
  const auto got = gradients(torch::cat(outputs));
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-3, 1e-4)) << i;
}

TYPED_TEST(ModuleInLibTorch, IsCopiedInThreads) {
  this->module_->eval();
  const auto expected = this->result(this->module_);
  std::vector<Tensor> got(4);
  std::vector<std::thread> threads;
  for (Tensor& one : got)
    threads.emplace_back([&, &out = one] {
      auto copy = this->copy();
      out = this->result(copy);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& one : got) EXPECT_TRUE(torch::allclose(one, expected, 1e-5, 1e-6));
}

TYPED_TEST(ModuleInLibTorch, KeepsPoliciesOfPartsInACopy) {
  this->module_->eval();
  const auto norm_of = [](const Tensor& t) { return at::norm(t).item().toDouble(); };
  const auto in_region = [&](auto& module) {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    return this->result(module);
  };
  for (const auto& part : {this->part(), std::shared_ptr<torch::nn::Module>(this->module_.ptr())}) {
    demi::apply(Policy("float32"), *part);
    auto copy = this->copy();
    EXPECT_TRUE(torch::equal(in_region(copy), in_region(this->module_)));
  }
  // With a policy for all of it, products are FP32's.
  auto copy = this->copy();
  const auto wide = this->result(copy);
  EXPECT_LE(norm_of(in_region(copy) - wide), 5e-3 * norm_of(wide));
}

TEST(TiedHead, IsTiedInACopy) {
  torch::manual_seed(5);
  const auto model = OfGPT<models::GPTForm::gpt2, true>::make();
  const models::GPT copy(std::dynamic_pointer_cast<models::GPTImpl>(model->clone()));
  const auto weight = copy->named_parameters()["tokens.weight"];
  EXPECT_FALSE(copy->named_parameters().contains("head.weight"));
  const torch::NoGradGuard no_grad;
  weight.zero_();
  EXPECT_TRUE(torch::equal(models::GPT(copy)->forward(tokens()), torch::zeros({4, 6, 11})));
}

TEST(TiedWeights, OfAnImportedModelAreTiedInACopy) {
  const auto owner = std::make_shared<OwnerImpl<OfImportedModel<kGraph, kLogits>>>();
  const auto copy = owner->clone();
  const auto named = copy->named_parameters();
  EXPECT_TRUE(named["part.fc.weight"].is_same(named["part.out.weight"]));
}

}  // namespace
}  // namespace demi
