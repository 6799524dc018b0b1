// Every eager way that LibTorch has to change a parameter is seen by the weight cache.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "demi/weights/mutation_hook.h"
#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

using testing::expect_right;
using Writes = testing::Weights;
using Write = std::function<void(at::Tensor&)>;

struct NamedWrite {
  const char* name;
  Write write;
};

template <class Optimizer, class Options>
Write step_of(Options options) {
  return [options](at::Tensor& p) {
    p.mutable_grad() = torch::ones_like(p);
    Optimizer optimizer({p}, options);
    optimizer.step([&] { return torch::ones({}); });
  };
}

void copy_into(at::Tensor& p, float value) {
  torch::NoGradGuard no_grad;
  p.copy_(torch::full_like(p, value));
}

// Writes by optimizers and their parts.
std::vector<NamedWrite> writes_of_optimizers() {
  using namespace torch::optim;
  return {
      {"SGD", step_of<SGD>(SGDOptions(0.5))},
      {"SGD with momentum", step_of<SGD>(SGDOptions(0.5).momentum(0.9))},
      {"Adam", step_of<Adam>(AdamOptions(0.5))},
      {"AdamW", step_of<AdamW>(AdamWOptions(0.5))},
      {"LBFGS", step_of<LBFGS>(LBFGSOptions(0.5))},
      {"RMSprop", step_of<RMSprop>(RMSpropOptions(0.5))},
      {"Adagrad", step_of<Adagrad>(AdagradOptions(0.5))},
      {"_fused_sgd_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         at::_fused_sgd_({p}, {torch::ones_like(p)}, {}, 0., 0., 0.5, 0., false, false, true);
       }},
      {"_fused_adamw_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         at::_fused_adamw_({p}, {torch::ones_like(p)}, {torch::zeros_like(p)},
                           {torch::zeros_like(p)}, {}, {torch::ones({})}, 0.5, 0.9, 0.99, 0., 1e-8,
                           false, false);
       }},
      {"_foreach_add_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         at::_foreach_add_({p}, 1);
       }},
  };
}

// Writes into the parameter's own memory.
std::vector<NamedWrite> writes_in_place() {
  return {
      {"mul_ under no_grad",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         p.mul_(3);
       }},
      {"copy_", [](at::Tensor& p) { copy_into(p, 7); }},
      {"data().copy_", [](at::Tensor& p) { p.data().copy_(torch::full_like(p, 7)); }},
      {"data().add_", [](at::Tensor& p) { p.data().add_(1); }},
      {"variable_data().add_", [](at::Tensor& p) { p.variable_data().add_(1); }},
      {"detach().add_", [](at::Tensor& p) { p.detach().add_(1); }},
      {"a view's fill_", [](at::Tensor& p) { p.data().view(-1).narrow(0, 0, 2).fill_(9); }},
      {"index_put_", [](at::Tensor& p) { p.data().index_put_({0}, torch::full({p.size(1)}, 5.)); }},
      {"out= variant",
       [](at::Tensor& p) {
         auto data = p.data();
         at::add_out(data, torch::ones_like(data), torch::ones_like(data));
       }},
      {"data_ptr taken now", [](at::Tensor& p) { p.data_ptr<float>()[0] = 42; }},
      {"mutable_data_ptr of data()",
       [](at::Tensor& p) { p.data().mutable_data_ptr<float>()[1] = 42; }},
      {"accessor",
       [](at::Tensor& p) {
         auto data = p.data();
         data.accessor<float, 2>()[0][0] = 42;
       }},
      {"init::normal_", [](at::Tensor& p) { torch::nn::init::normal_(p); }},
      {"init::xavier_uniform_", [](at::Tensor& p) { torch::nn::init::xavier_uniform_(p); }},
      {"clip by clamp_", [](at::Tensor& p) { p.data().clamp_(-0.01, 0.01); }},
      {"zero_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         p.zero_();
       }},
      {"in-place in inference mode",
       [](at::Tensor& p) {
         c10::InferenceMode guard;
         p.data().add_(1);
       }},
  };
}

// Replacements by other memory, sizes or strides.
std::vector<NamedWrite> replacements() {
  return {
      {"set_data", [](at::Tensor& p) { p.set_data(torch::full_like(p, 5)); }},
      {"set_data, transposed on the same storage", [](at::Tensor& p) { p.set_data(p.data().t()); }},
      {"set_data to double and back",
       [](at::Tensor& p) {
         p.set_data(p.data().to(torch::kDouble).add(1));
         p.set_data(p.data().to(torch::kFloat));
       }},
      {"vector_to_parameters",
       [](at::Tensor& p) {
         std::vector<at::Tensor> one{p};
         torch::nn::utils::vector_to_parameters(
             torch::arange(static_cast<double>(p.numel())).to(torch::kFloat), one);
       }},
      {"torch::load",
       [](at::Tensor& p) {
         std::stringstream file;
         torch::save(torch::full_like(p.detach(), 3), file);
         at::Tensor loaded;
         torch::load(loaded, file);
         p.data().copy_(loaded);
       }},
      {"module load",
       [](at::Tensor& p) {
         torch::serialize::OutputArchive out;
         out.write("p", torch::full_like(p.detach(), 3));
         std::stringstream file;
         out.save_to(file);
         torch::serialize::InputArchive in;
         in.load_from(file);
         in.read("p", p);
       }},
      {"resize_ of data",
       [](at::Tensor& p) {
         p.data().resize_({64, 64}).fill_(2);
       }},
      {"swap of storage data", [](at::Tensor& p) { p.set_data(torch::zeros_like(p)); }},
  };
}

std::vector<NamedWrite> writes() {
  std::vector<NamedWrite> all;
  for (const auto& some : {writes_of_optimizers(), writes_in_place(), replacements()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

TEST_F(Writes, HookWorksHere) { EXPECT_TRUE(hook_works()); }

TEST_F(Writes, EveryWriteIsSeenAtTheNextUseOfAnOwnedParameter) {
  for (const auto& [name, write] : writes()) {
    auto p = owned_parameter();
    expect_right(p, name);
    const auto before = stats().casts;
    const auto old = p.detach().clone();
    write(p);
    EXPECT_FALSE(p.sizes() == old.sizes() && p.detach().equal(old)) << name << " wrote nothing";
    expect_right(p, name);
    EXPECT_EQ(stats().casts - before, 2) << name << ": one cast for each dtype";
    expect_right(p, name);
    EXPECT_EQ(stats().casts - before, 2) << name << ": and no other";
  }
}

TEST_F(Writes, EveryWriteInsideARegionIsSeen) {
  for (const auto& [name, write] : writes()) {
    auto p = parameter();
    enter_region();
    expect_right(p, name);
    write(p);
    expect_right(p, name);
    leave_region();
    EXPECT_EQ(stats().copies, 0);
  }
}

// The new storage of a parameter may lie in the memory of the old one, with the same version on the
// leaf: the allocator hands freed memory out again, and a caller's own buffer stays where it is.
TEST_F(Writes, MemoryThatIsUsedAgainIsNotMistakenForTheOld) {
  std::vector<float> memory(16);
  for (const Mode in : {Mode::keep, Mode::region}) {
    set_mode(in);
    auto p = in == Mode::keep ? owned_parameter() : parameter();
    enter_region();
    for (int i = 0; i < 300; ++i) {
      std::fill(memory.begin(), memory.end(), float(i));
      if (i % 2) p.set_data(torch::empty({0}));  // frees the StorageImpl before the next is made
      p.set_data(torch::from_blob(memory.data(), {4, 4}));
      expect_right(p, i % 2 ? "after the old one was freed" : "beside the old one");
    }
    leave_region();
    p.set_data(torch::zeros({4, 4}));
  }
}

// LibTorch 2.11's hook cannot hold such memory: the first write would lose it.
TEST_F(Writes, AParameterInACallersOwnMemoryStaysThere) {
  std::vector<float> memory(16, 1);
  auto p = owned_parameter();
  p.set_data(torch::from_blob(memory.data(), {4, 4}));
  expect_right(p, "before");
  p.data().mul_(2);
  EXPECT_EQ(p.const_data_ptr(), memory.data());
  EXPECT_EQ(memory.back(), 2);
  expect_right(p, "after");
  p.set_data(torch::zeros({4, 4}));
}

TEST_F(Writes, AWriteThroughOneTensorOfAStorageIsSeenByAll) {
  const auto flat = torch::randn({32});
  auto p = owned_parameter(), q = owned_parameter();
  p.set_data(flat.narrow(0, 0, 16).view({4, 4}));
  q.set_data(flat.narrow(0, 16, 16).view({4, 4}));
  expect_right(p, "p");
  expect_right(q, "q");
  flat.mul_(2);
  expect_right(p, "p after");  // hooks the storage again, which must not make q's copy look valid
  expect_right(q, "q after");
}

TEST_F(Writes, ReadingKeepsTheCopy) {
  auto p = owned_parameter();
  expect_right(p, "before");
  const auto before = stats().casts;
  torch::mm(p, p).sum().backward();
  p.detach().sum().item<float>();
  p.detach().clone();
  torch::linear(torch::ones({2, 4}), p);
  expect_right(p, "after");
  EXPECT_EQ(stats().casts, before);
}

TEST_F(Writes, ARawPointerHeldFromBeforeNeedsMarkDirty) {
  auto p = owned_parameter();
  float* raw = p.data_ptr<float>();
  expect_right(p, "before");
  raw[0] = 1234;
  mark_dirty(p);
  expect_right(p, "after mark_dirty");
}

TEST_F(Writes, APointerKeptAcrossAUseAndOneHandedOutForReadingNeedMarkDirty) {
  auto p = owned_parameter();
  expect_right(p, "before");
  float* kept = p.data_ptr<float>();
  kept[0] = 1;
  expect_right(p, "the first write");
  kept[0] = 2;
  mark_dirty(p);
  expect_right(p, "the second write");
  static_cast<float*>(p.storage().data_ptr().get())[0] = 3;
  mark_dirty(p);
  expect_right(p, "a pointer for reading");
}

}  // namespace
}  // namespace demi::weights
