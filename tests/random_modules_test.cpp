// Random nests of demi's blocks and LibTorch's layers in LibTorch's containers, and what programs
// do with a network: copies (also in another thread), moves to another dtype, modes, frozen parts
// and policies of parts, files, replicas. After each, the network computes in forward and backward
// what an equal one does that is made anew, with weights that are copied by name.
//
//   DEMI_RANDOM_CALLS=3000 DEMI_RANDOM_SEED=7 training_tests --gtest_filter=RandomModules.*
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/nn/transformer_block.h"
#include "tests/libtorch_replicas.h"
#include "tests/random_calls.h"

namespace demi::nn {
namespace {

using at::Tensor;
using torch::nn::Module;

constexpr std::int64_t kWidth = 8;

/// The parts of a network; containers have parts.
enum class Kind {
  block,
  attention,
  feed_forward,
  norm,
  linear,
  layer_norm,
  sequential,
  list,
  dict,
  any
};

struct Recipe {
  Kind kind = Kind::block;
  int variant = 0;
  std::vector<Recipe> parts = {};

  bool is_container() const { return kind >= Kind::sequential; }
};

Recipe random_recipe(Random& random, int depth) {
  const bool is_container = depth > 0 && random.chance(60);
  Recipe recipe{.kind = static_cast<Kind>(is_container ? 6 + random.below(4) : random.below(6)),
                .variant = random.below(8)};
  if (!is_container) return recipe;
  const int parts = recipe.kind == Kind::any ? 1 : 1 + random.below(3);
  for (int i = 0; i < parts; ++i) recipe.parts.push_back(random_recipe(random, depth - 1));
  return recipe;
}

TransformerBlock block_of(int variant) {
  return TransformerBlock(
      TransformerBlockOptions{.width = kWidth,
                              .heads = 2,
                              .key_heads = variant % 2 == 0 ? 1 : 2,
                              .pre_norm = variant % 3 != 0,
                              .norm = variant % 2 == 0 ? NormKind::layer_norm : NormKind::rms_norm,
                              .bias = variant % 4 != 0,
                              .activation = static_cast<Activation>(variant % 4),
                              .qk_norm = variant > 3,
                              .attention_dropout = variant == 5 ? 0.25 : 0,
                              .residual_dropout = variant == 6 ? 0.25 : 0});
}
SelfAttention attention_of(int variant) {
  return SelfAttention(SelfAttentionOptions{
      .width = kWidth, .heads = 2, .bias = variant % 2 == 0, .qk_norm = variant > 3});
}
FeedForward feed_forward_of(int variant) {
  return FeedForward(FeedForwardOptions{.width = kWidth,
                                        .hidden = variant % 2 == 0 ? 0 : 12,
                                        .activation = static_cast<Activation>(variant % 4)});
}
Norm norm_of(int variant) {
  return Norm(NormOptions{.width = kWidth,
                          .kind = variant % 2 == 0 ? NormKind::layer_norm : NormKind::rms_norm,
                          .weight = variant != 7});
}

/// A container of a program's own around LibTorch's.
struct NestImpl : torch::nn::Cloneable<NestImpl> {
  explicit NestImpl(Recipe made_of) : recipe(std::move(made_of)) { NestImpl::reset(); }
  void reset() override;
  Tensor forward(const Tensor& x);

  Recipe recipe;
  torch::nn::Sequential stack{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::ModuleDict dict{nullptr};
  torch::nn::AnyModule any;
};
TORCH_MODULE(Nest);

torch::nn::AnyModule any_of(const Recipe& recipe) {
  const int variant = recipe.variant;
  switch (recipe.kind) {
    case Kind::block:
      return torch::nn::AnyModule(block_of(variant));
    case Kind::attention:
      return torch::nn::AnyModule(attention_of(variant));
    case Kind::feed_forward:
      return torch::nn::AnyModule(feed_forward_of(variant));
    case Kind::norm:
      return torch::nn::AnyModule(norm_of(variant));
    case Kind::linear:
      return torch::nn::AnyModule(torch::nn::Linear(kWidth, kWidth));
    case Kind::layer_norm:
      return torch::nn::AnyModule(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    default:
      return torch::nn::AnyModule(Nest(recipe));
  }
}

void NestImpl::reset() {
  using Parts = std::vector<std::pair<std::string, std::shared_ptr<Module>>>;
  const auto key = [](std::size_t i) { return "part" + std::to_string(i); };
  if (recipe.kind == Kind::sequential) stack = register_module("stack", torch::nn::Sequential());
  if (recipe.kind == Kind::list) list = register_module("list", torch::nn::ModuleList());
  if (recipe.kind == Kind::dict) dict = register_module("dict", torch::nn::ModuleDict());
  for (std::size_t i = 0; i < recipe.parts.size(); ++i) {
    torch::nn::AnyModule part = any_of(recipe.parts[i]);
    if (recipe.kind == Kind::sequential) stack->push_back(part);
    if (recipe.kind == Kind::list) list->push_back(part.ptr());
    if (recipe.kind == Kind::dict) dict->update(Parts{{key(i), part.ptr()}});
    if (recipe.kind == Kind::any) register_module("any", part.ptr()), any = part;
  }
}

template <class Impl>
bool ran(Module& module, Tensor& x) {
  auto* const found = module.as<Impl>();
  if (found) x = found->forward(x);
  return found != nullptr;
}

Tensor run(Module& module, Tensor x) {
  const bool known = ran<TransformerBlockImpl>(module, x) || ran<SelfAttentionImpl>(module, x) ||
                     ran<FeedForwardImpl>(module, x) || ran<NormImpl>(module, x) ||
                     ran<torch::nn::LinearImpl>(module, x) ||
                     ran<torch::nn::LayerNormImpl>(module, x) || ran<NestImpl>(module, x);
  EXPECT_TRUE(known) << module.name();
  return x;
}

Tensor NestImpl::forward(const Tensor& x) {
  if (stack) return stack->forward(x);
  Tensor y = x;
  if (list)
    for (const auto& part : *list) y = run(*part, y);
  if (dict)
    for (const auto& [key, part] : dict->items()) y = run(*part, y);
  return any.is_empty() ? y : any.forward(y);
}

/// The expected network, by names.
struct Expected {
  struct Parameter {
    Tensor value;
    bool is_trained;
    bool is_of_demi;  // in one of demi's modules, whose copies keep it frozen
  };
  std::map<std::string, Parameter> parameters;
  std::map<std::string, bool> modes;
  std::vector<std::string> containers;  // of LibTorch, whose copies are in training mode
  std::vector<std::pair<std::string, std::string>> policies;  // of parts, one after the other
};

bool is_within(const std::string& name, const std::string& part) {
  return part.empty() || name == part || name.starts_with(part + ".");
}

Expected expected_of(const Nest& network) {
  Expected expected;
  std::vector<std::string> of_demi;
  for (const auto& item : network->named_modules()) {
    expected.modes[item.key()] = item.value()->is_training();
    const std::string type = item.value()->name();
    if (type.ends_with("::SequentialImpl") || type.ends_with("::ModuleListImpl") ||
        type.ends_with("::ModuleDictImpl"))
      expected.containers.push_back(item.key());
    const bool is_nest = item.value()->as<NestImpl>() != nullptr;
    if (!is_nest && item.value()->name().starts_with("demi::nn::")) of_demi.push_back(item.key());
  }
  for (const auto& item : network->named_parameters()) {
    const auto holds = [&](const std::string& part) { return is_within(item.key(), part); };
    expected.parameters[item.key()] = {.value = item.value().detach().clone(),
                                       .is_trained = true,
                                       .is_of_demi = std::ranges::any_of(of_demi, holds)};
  }
  return expected;
}

std::shared_ptr<Module> part_of(const Nest& network, const std::string& name) {
  return name.empty() ? network.ptr() : network->named_modules()[name];
}

void apply_policies(const Nest& network, const Expected& expected) {
  for (const auto& [part, policy] : expected.policies) {
    if (policy.empty())
      unapply(*part_of(network, part));
    else
      demi::apply(Policy(policy), *part_of(network, part));
  }
}

void set_modes_and_frozen(const Nest& network, const Expected& expected) {
  for (const auto& item : network->named_modules())  // those around a part come before it
    item.value()->train(expected.modes.at(item.key()));
  for (const auto& item : network->named_parameters())
    item.value().set_requires_grad(expected.parameters.at(item.key()).is_trained);
}

Nest made_anew(const Recipe& recipe, const Expected& expected) {
  Nest network(recipe);
  apply_policies(network, expected);
  for (const auto& item : network->named_parameters())
    item.value().set_data(expected.parameters.at(item.key()).value.clone());
  set_modes_and_frozen(network, expected);
  return network;
}

Nest copy_of(const Nest& network) {
  return Nest(std::dynamic_pointer_cast<NestImpl>(network->clone()));
}

void forget_values(const Nest& network) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& p : network->parameters()) p.fill_(NAN);
}

/// One network and what is done to it.
class Episode {
 public:
  Episode(std::uint64_t seed, int& wrong, Counts& counts)
      : random_(seed), wrong_(wrong), counts_(counts), seed_(seed) {
    torch::manual_seed(seed);
    do recipe_ = random_recipe(random_, 3);
    while (!recipe_.is_container());
    network_ = Nest(recipe_);
    expected_ = expected_of(network_);
    for (const auto& [name, mode] : expected_.modes) parts_.push_back(name);
    for (const auto& [name, parameter] : expected_.parameters) names_.push_back(name);
  }

  int run(int calls) {
    int made = 0;
    for (int i = 0; i < calls; ++i) {
      if (!names_.empty()) change();
      made += call() ? 1 : 0;
    }
    return made;
  }

 private:
  void change() {
    const char* const kinds[] = {"copy",     "dtype", "mode",       "frozen",  "policy",
                                 "new file", "file",  "written to", "replicas"};
    const int kind = random_.below(std::size(kinds));
    last_ = kinds[kind];
    ++counts_[last_];
    switch (kind) {
      case 0:
        return copy();
      case 1:
        return to(random_.chance(50) ? torch::kDouble : torch::kFloat);
      case 2:
        return mode(random_.of(parts_), random_.chance(50));
      case 3:
        return freeze(random_.of(parts_), random_.chance(40));
      case 4:
        return policy(random_.of(parts_));
      case 5:
        return load_into_a_new_one();
      case 6:
        return load_into_itself();
      case 7:
        return write();
      default:
        return replicas();
    }
  }

  void copy() {
    const Nest before = network_;
    if (random_.chance(50)) {
      std::thread thread([&] { network_ = copy_of(before); });
      thread.join();
    } else {
      network_ = copy_of(before);
    }
    is_used_ = false;
    // LibTorch's own layers come back to life in a copy.
    for (auto& [name, parameter] : expected_.parameters)
      parameter.is_trained = parameter.is_trained || !parameter.is_of_demi;
    for (const std::string& name : expected_.containers) expected_.modes.at(name) = true;
    forget_values(before);
  }

  void to(torch::Dtype dtype) {
    network_->to(dtype);
    for (auto& [name, parameter] : expected_.parameters)
      parameter.value = parameter.value.to(dtype);
  }

  void mode(const std::string& part, bool train) {
    part_of(network_, part)->train(train);
    for (auto& [name, mode] : expected_.modes)
      if (is_within(name, part)) mode = train;
  }

  void freeze(const std::string& part, bool trains) {
    for (Tensor& p : part_of(network_, part)->parameters()) p.set_requires_grad(trains);
    for (auto& [name, parameter] : expected_.parameters)
      if (is_within(name, part)) parameter.is_trained = trains;
  }

  void policy(const std::string& part) {
    const std::string policy =
        random_.of(std::vector<std::string>{"float32", "mixed_bfloat16", "mixed_float16", ""});
    expected_.policies.emplace_back(part, policy);
    if (policy.empty()) return unapply(*part_of(network_, part));
    demi::apply(Policy(policy), *part_of(network_, part));
    for (auto& [name, parameter] : expected_.parameters)
      if (is_within(name, part)) parameter.value = parameter.value.to(torch::kFloat);
  }

  // Of the file's dtypes: torch::load takes the bits of another one as they are.
  void load_into_a_new_one() {
    std::stringstream file;
    torch::save(network_, file);
    network_ = made_anew(recipe_, expected_);
    forget_values(network_);
    torch::load(network_, file);
  }

  void load_into_itself() {
    if (!is_used_) use_in_a_region();
    std::stringstream file;
    torch::save(network_, file);
    forget_values(network_);
    torch::load(network_, file);
  }

  /// Until an op of a region has used it, a copy that gets other memory loses its policy.
  void use_in_a_region() {
    const torch::NoGradGuard no_grad;
    const Autocast region(torch::kCPU, torch::kBFloat16);
    for (const Tensor& p : network_->parameters()) at::cat({p});
    is_used_ = true;
  }

  void write() {
    const std::string& name = random_.of(names_);
    Tensor& value = expected_.parameters.at(name).value;
    const Tensor noise = 0.25 * torch::randn_like(value);
    value = value + noise;
    const torch::NoGradGuard no_grad;
    network_->named_parameters()[name].add_(noise);
  }

  // Without dropout, whose order is that of the threads.
  void replicas() {
    Nest one = copy_of(network_), other = made_anew(recipe_, expected_);
    one->eval(), other->eval();
    if (has_double()) return;
    const Tensor x = torch::randn({4, 3, kWidth});
    const auto got = outputs_of_replicas(one.ptr(), x.chunk(2));
    for (std::size_t i = 0; i < got.size(); ++i)
      if (!torch::allclose(got[i], other->forward(x.chunk(2)[i]), 1e-4, 1e-5)) tell("a replica");
  }

  bool has_double() const {
    for (const auto& [name, parameter] : expected_.parameters)
      if (parameter.value.scalar_type() == torch::kDouble) return true;
    return false;
  }

  /// Output and gradients by name; empty where LibTorch refuses the dtypes.
  using Result = std::map<std::string, Tensor>;
  static Result result_of(Nest network, const Tensor& input, bool in_region, std::uint64_t seed) {
    Result result;
    const Tensor x = input.clone().requires_grad_();
    torch::manual_seed(seed);
    network->zero_grad();
    try {
      {
        const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = in_region});
        result["output"] = network->forward(x);
      }
      (result["output"].to(torch::kFloat) * input).sum().backward();
    } catch (const c10::Error&) {
      return {};
    }
    result["input"] = x.grad();
    for (const auto& item : network->named_parameters())
      result["gradient of " + item.key()] = item.value().grad();
    return result;
  }

  bool call() {
    const bool in_region = random_.chance(60), is_double = random_.chance(has_double() ? 70 : 0);
    const Tensor x = torch::randn({2, 3, kWidth}, is_double ? torch::kDouble : torch::kFloat);
    const auto seed = static_cast<std::uint64_t>(random_.below(1000));
    compare_state();
    const Result theirs = result_of(made_anew(recipe_, expected_), x, in_region, seed);
    const Result ours = result_of(network_, x, in_region, seed);
    is_used_ = is_used_ || (in_region && !ours.empty());  // not all if it threw
    if (ours.size() != theirs.size()) tell("throws in one of the two");
    for (const auto& [name, tensor] : theirs) {
      const auto found = ours.find(name);
      if (found != ours.end() && !is_same(found->second, tensor)) tell(name);
    }
    return !theirs.empty();
  }

  void compare_state() {
    const auto parameters = network_->named_parameters();
    if (parameters.size() != expected_.parameters.size()) tell("names");
    for (const auto& item : parameters) {
      const Expected::Parameter& expected = expected_.parameters.at(item.key());
      if (!is_same(item.value(), expected.value)) tell("value of " + item.key());
      if (item.value().requires_grad() != expected.is_trained) tell("frozen " + item.key());
    }
    for (const auto& item : network_->named_modules())
      if (item.value()->is_training() != expected_.modes.at(item.key()))
        tell("mode of " + item.key());
  }

  static bool is_same(const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
  }

  void tell(const std::string& what) {
    if (++wrong_ <= 10)
      ADD_FAILURE() << "DEMI_RANDOM_SEED=" << seed_ << " after " << last_ << ": " << what;
  }

  Random random_;
  int& wrong_;
  Counts& counts_;
  std::uint64_t seed_;
  std::string last_ = "nothing";
  Recipe recipe_;
  Nest network_{nullptr};
  Expected expected_;
  std::vector<std::string> parts_, names_;
  bool is_used_ = true;
};

TEST(RandomModules, AreWhatAnEqualNetworkIs) { expect_no_wrong_call<Episode>(320, 40); }

}  // namespace
}  // namespace demi::nn
