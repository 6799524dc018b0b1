#include "demi/weights/accumulator.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>

namespace demi::weights {
namespace {

namespace autograd = torch::autograd;

void set_grad_dtype(const Node& node, std::size_t input, std::optional<c10::ScalarType> dtype) {
  const_cast<autograd::InputMetadata&>(node.input_metadata(input)).set_grad_dtype(dtype);
}

// Adds in FP32, even if both have 16 bits. Dense + sparse is LibTorch's order.
at::Tensor add_in_fp32(const at::Tensor& a, const at::Tensor& b) {
  if (a.layout() != at::kStrided || b.layout() != at::kStrided) {
    const at::Tensor x = a.to(at::kFloat), y = b.to(at::kFloat);
    return x.layout() == at::kStrided ? x + y : y + x;
  }
  return a.scalar_type() == at::kFloat ? a + b : a.to(at::kFloat) + b;
}

}  // namespace

class Accumulator::AddUp final : public autograd::FunctionPreHook {
 public:
  explicit AddUp(const Accumulator& of) : of_(of) {}

  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    autograd::variable_list sum{of_.sum_of(gradients)};
    for (const auto& hook : autograd::impl::hooks(of_.variable)) sum = (*hook)(sum);
    return sum;
  }

 private:
  const Accumulator& of_;
};

Accumulator::Accumulator(const at::Tensor& leaf) : AccumulateGrad(leaf) {
  while (num_inputs() < kInputs) add_input_metadata(leaf);
  for (const auto input : {kLibTorch, kWide}) set_grad_dtype(*this, input, at::kFloat);
  for (const auto input : {kDirect, kByToken, kView, kView2})
    set_grad_dtype(*this, input, std::nullopt);
  hooks_.push_back(std::make_unique<AddUp>(*this));
}

at::Tensor Accumulator::sum_of(const autograd::variable_list& gradients) const {
  at::Tensor sum;
  for (const auto& gradient : gradients)
    if (gradient.defined()) sum = sum.defined() ? add_in_fp32(sum, gradient) : gradient;
  const auto& meta = *autograd::impl::get_autograd_meta(variable);
  const bool as_it_came = !sum.defined() || meta.allow_grad_dtype_mismatch_;
  return as_it_came ? sum : sum.to(meta.grad_dtype_.value_or(variable.scalar_type()));
}

autograd::variable_list Accumulator::apply(autograd::variable_list&& gradients) {
  if (gradients.size() == 1) return AccumulateGrad::apply(std::move(gradients));
  return AccumulateGrad::apply({sum_of(gradients)});  // called without the hooks
}

NodePointer Accumulator::token(const NodePointer& self) {
  const std::lock_guard lock(mutex_);
  NodePointer token = token_.lock();
  if (!token) {
    token = make_node<Token>(self, variable);
    token_ = WeakNodePointer(token);
  }
  return token;
}

autograd::Edge Accumulator::edge_of_one_use(const NodePointer& self) {
  const std::lock_guard lock(mutex_);
  const NodePointer known = token_.lock();
  if (static_cast<std::int64_t>(self.use_count()) == kept + 1 + (known ? 1 : 0))
    return {self, kDirect};
  if (known) return {self, kWide};
  NodePointer made = make_node<Token>(self, variable);
  token_ = WeakNodePointer(made);
  return {std::move(made), 0};
}

Accumulator::Input Accumulator::claim_for_view(const NodePointer& view) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const NodePointer claimed_by = views_[i].lock();
    if (claimed_by && claimed_by != view) continue;
    views_[i] = WeakNodePointer(view);
    return static_cast<Input>(kView + i);
  }
  return kLibTorch;
}

Token::Token(const NodePointer& accumulator, const at::Tensor& leaf)
    : Node(autograd::edge_list{autograd::Edge(accumulator, Accumulator::kByToken)}) {
  add_input_metadata(leaf);
  set_grad_dtype(*this, 0, std::nullopt);
}

Handover::Handover(const autograd::Edge& to_view, const at::Tensor& view)
    : Node(autograd::edge_list{to_view}) {
  add_input_metadata(view);
  set_grad_dtype(*this, 0, std::nullopt);
}

autograd::variable_list Handover::apply(autograd::variable_list&& gradients) {
  const autograd::Edge& to_view = next_edge(0);
  Node& node = *to_view.function;
  const bool alone = to_view.function.use_count() == 1 && node.tensor_pre_hooks().empty() &&
                     node.retains_grad_hooks().empty() && !is_captured(node);
  set_grad_dtype(node, to_view.input_nr, alone ? std::nullopt : std::optional(at::kFloat));
  if (!alone && gradients[0].defined()) gradients[0] = gradients[0].to(at::kFloat);
  return std::move(gradients);
}

bool is_captured(const Node& node) {
  const auto* asked_for = autograd::get_current_graph_task_exec_info();
  if (!asked_for || asked_for->empty()) return false;
  const auto found = asked_for->find(const_cast<Node*>(&node));
  return found != asked_for->end() && found->second.captures_;
}

}  // namespace demi::weights
