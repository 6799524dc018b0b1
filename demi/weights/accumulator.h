#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace demi::weights {

using torch::autograd::Node;
using NodePointer =
    decltype(torch::autograd::Edge::function);  // of LibTorch's kind: 2.15 made it intrusive
using WeakNodePointer = decltype(torch::autograd::AutogradMeta::grad_accumulator_);

/// Whether the leaf's .grad may have this 16-bit dtype: a demi optimizer opened grad_dtype, or
/// somebody set it to `dtype`.
inline bool takes_16_bit(const torch::autograd::AutogradMeta& meta, c10::ScalarType dtype) {
  return meta.allow_grad_dtype_mismatch_ || meta.grad_dtype_ == dtype;
}

/// LibTorch's accumulator of a leaf's gradient, with several inputs.
///
/// The engine adds up what arrives at one input of a node, in the dtype in which it arrives: 400
/// gradients of 4 in bf16 come to 1024, for 1600. So each 16-bit input here is for one use of the
/// leaf, and the inputs are added up in FP32. A single gradient in 16 bits stays as it is.
class Accumulator final : public torch::autograd::AccumulateGrad {
 public:
  enum Input : std::uint32_t {
    kLibTorch,  // what LibTorch itself connects with the leaf: FP32
    kWide,      // any number of uses; the engine widens each gradient before it adds it
    kDirect,    // one use, in 16 bits
    kByToken,   // one more, through a Token
    kInputs,
  };

  /// The leaf has FP32.
  explicit Accumulator(const at::Tensor& leaf);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "torch::autograd::AccumulateGrad"; }

  /// Adds up the inputs before any hook of the leaf runs.
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept
      override {
    return hooks_;
  }

  /// The edge for one use of the leaf: 16-bit if no other use has it. `self` is the caller's only
  /// reference.
  torch::autograd::Edge edge_of_one_use(const NodePointer& self);

  /// The token, made if there is none.
  NodePointer token(const NodePointer& self);

  // Of kept aliases: how many references they hold, and whether some of them have the 16-bit edges.
  std::atomic<std::int64_t> kept{0};
  std::atomic<bool> is_claimed{false};

 private:
  at::Tensor sum_of(const torch::autograd::variable_list& gradients) const;
  class AddUp;

  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>
      hooks_;         // one, which calls the leaf's
  std::mutex mutex_;  // of token_
  WeakNodePointer token_{NodePointer()};
};

/// Hands a gradient on to an Accumulator's kByToken. An accumulator lives as long as any graph that
/// uses the leaf; a token tells, by its count of references, whether one certain use still does.
/// Loops that keep the loss of the step before need it: there two graphs live at once.
class Token final : public Node {
 public:
  Token(const NodePointer& accumulator, const at::Tensor& leaf);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

/// `known` as our own; null where it is LibTorch's.
inline Accumulator* as_ours(const NodePointer& known) {
  return dynamic_cast<Accumulator*>(known.get());
}

template <class N, class... Arguments>
NodePointer make_node(const Arguments&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>)
    return std::make_shared<N>(arguments...);
  else
    return c10::make_intrusive<N>(arguments...);
}

/// What `weak` points to, without a look whether it is alive.
template <class Weak>
const Node* target_of(const Weak& weak) {
  if constexpr (requires { weak._unsafe_get_target(); })
    return weak._unsafe_get_target();
  else
    return weak.lock().get();
}

}  // namespace demi::weights
