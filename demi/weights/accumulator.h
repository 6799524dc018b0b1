#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace demi::weights {

using torch::autograd::Node;
/// LibTorch's own kind of pointer: std::shared_ptr before 2.15, intrusive since.
using NodePointer = decltype(torch::autograd::Edge::function);
using WeakNodePointer = decltype(torch::autograd::AutogradMeta::grad_accumulator_);

/// Whether the leaf's .grad may have this 16-bit dtype: a demi optimizer allowed any grad_dtype, or
/// the user set grad_dtype to `dtype`.
inline bool takes_16_bit(const torch::autograd::AutogradMeta& meta, c10::ScalarType dtype) {
  return meta.allow_grad_dtype_mismatch_ || meta.grad_dtype_ == dtype;
}

/// LibTorch's accumulator of a leaf's gradient, with several inputs.
///
/// The autograd engine adds up the gradients that arrive at one input of a node in their own dtype:
/// 400 gradients of 4 in bf16 add up to 1024 instead of 1600. So each 16-bit input of this node
/// serves one use of the leaf, and the node adds up its inputs in FP32. A single 16-bit gradient
/// keeps its dtype.
class Accumulator final : public torch::autograd::AccumulateGrad {
 public:
  enum Input : std::uint32_t {
    kLibTorch,  // FP32 gradients of LibTorch's own edges to the leaf
    kWide,      // any number of uses; the engine widens each gradient to FP32 before it adds it
    kDirect,    // one use, in 16 bits
    kByToken,   // a second use in 16 bits, through a Token
    kView,      // one view of the leaf, in 16 bits
    kView2,     // and a second one
    kInputs,    // their number
  };

  /// The leaf is FP32.
  explicit Accumulator(const at::Tensor& leaf);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "torch::autograd::AccumulateGrad"; }

  /// Adds up the inputs before any hook of the leaf runs.
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept
      override {
    return hooks_;
  }

  /// The edge for one use of the leaf: 16-bit if no other use has that edge, else wide. `self` is
  /// the caller's only reference to this node.
  torch::autograd::Edge edge_of_one_use(const NodePointer& self);

  /// The input for the gradient of this view of the leaf, whose node leads here alone: 16-bit if a
  /// view's input is free, else kLibTorch. An input is free again once its view's node is gone.
  Input claim_for_view(const NodePointer& view);

  /// The token; makes it if there is none.
  NodePointer token(const NodePointer& self);

  // Kept aliases: how many references they hold, and whether one of them has the 16-bit edges.
  std::atomic<std::int64_t> kept{0};
  std::atomic<bool> is_claimed{false};

 private:
  at::Tensor sum_of(const torch::autograd::variable_list& gradients) const;
  class AddUp;

  /// A single hook, which calls the leaf's hooks.
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> hooks_;
  std::mutex mutex_;  // guards those below
  WeakNodePointer token_{NodePointer()};
  std::array<WeakNodePointer, 2> views_{WeakNodePointer(NodePointer()),
                                        WeakNodePointer(NodePointer())};
};

/// Passes a gradient on to an Accumulator's kByToken. An accumulator lives as long as any graph
/// that uses the leaf; a token's reference count shows whether one certain use is still alive.
/// Loops that keep the loss of the previous step need this, because two graphs are alive there.
class Token final : public Node {
 public:
  Token(const NodePointer& accumulator, const at::Tensor& leaf);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

/// Passes the gradient of one use of a view, in 16 bits, on to the view's own node. It becomes FP32
/// first if it is used elsewhere: another use of the view, whose gradient is added to it, a tensor
/// hook, retain_grad() or torch::autograd::grad. Only the time of backward knows.
class Handover final : public Node {
 public:
  Handover(const torch::autograd::Edge& to_view, const at::Tensor& view);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
};

/// Whether torch::autograd::grad asks for what arrives at this node. Called by backward.
bool is_captured(const Node& node);

/// `known` as an Accumulator; null if it is LibTorch's own.
inline Accumulator* as_ours(const NodePointer& known) {
  return dynamic_cast<Accumulator*>(known.get());
}

/// A new node, held by LibTorch's kind of pointer.
template <class N, class... Arguments>
NodePointer make_node(const Arguments&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>)
    return std::make_shared<N>(arguments...);
  else
    return c10::make_intrusive<N>(arguments...);
}

/// The target of `weak`, without checking whether it is alive.
template <class Weak>
const Node* target_of(const Weak& weak) {
  if constexpr (requires { weak._unsafe_get_target(); })
    return weak._unsafe_get_target();
  else
    return weak.lock().get();
}

}  // namespace demi::weights
