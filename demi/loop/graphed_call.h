#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/loop/graph_mode.h"

namespace demi::loop {

class Step;

/// How a GraphedCall computes.
struct CallOptions {
  c10::Device device = c10::kCPU;  // of the modules and of what is given
  /// The first three calls of each kind run plainly on a stream of their own, the next is recorded;
  /// what makes another kind: shapes, dtypes and strides of the tensors, train and eval of a
  /// module, an address of a parameter or buffer, backends, policies, the weight cache's mode. At
  /// most 16 are kept. Weights may change between two calls. Needs a CUDA device and LibTorch 2.15.
  GraphMode graph = GraphMode::automatic;
  std::string name = "the call";  // in messages
};

/// A function without gradients that is called many times, such as an evaluation's batch or the
/// action of a policy. On a GPU its work is recorded in a CUDA graph and replayed.
///
///     demi::loop::GraphedCall act({&*policy},
///                                 [&](const auto& in) {
///                                   const demi::Autocast region(torch::kCUDA);
///                                   return std::vector{policy->forward(in[0])};
///                                 },
///                                 {.device = torch::kCUDA});
///     const torch::Tensor logits = act({observation}).front();
///
/// Calls outside of a graph give the same bits. One thread.
class DEMI_API GraphedCall {
 public:
  /// Some may be undefined.
  using Tensors = std::vector<at::Tensor>;
  /// Has to do the same work each time: what it reads beside the tensors that it is given are the
  /// modules' and such as stay the same objects. It is not called for a replay. An autocast region
  /// is opened inside: the caller's do not reach it.
  using Function = std::function<Tensors(const Tensors& given)>;

  /// The modules whose tensors it reads outlive the object. Throws UsageError without a module or
  /// function, and with GraphMode::on where nothing can be recorded.
  GraphedCall(std::vector<torch::nn::Module*> modules, Function function, CallOptions options = {});
  /// Its graphs share memory with those of a Step; calls stand between its calls, and on its
  /// device. The Step need not outlive it.
  GraphedCall(std::vector<torch::nn::Module*> modules, Function function, CallOptions options,
              Step& beside);
  ~GraphedCall();
  GraphedCall(GraphedCall&&) noexcept;
  GraphedCall& operator=(GraphedCall&&) noexcept;

  /// What the function gives, in memory of its own and without gradients. Throws what the function
  /// throws, and UsageError for a tensor of another device, unless nothing is recorded, and with
  /// GraphMode::on for a function that cannot be recorded. Waits for nothing.
  Tensors operator()(const Tensors& given);
  /// The same, without a graph.
  Tensors plainly(const Tensors& given);

  /// What has become of CallOptions::graph. Waits for nothing.
  GraphCounts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::loop
