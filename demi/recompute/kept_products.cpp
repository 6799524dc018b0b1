#include "demi/recompute/kept_products.h"

#include <ATen/Operators.h>
#include <torch/library.h>

#include <tuple>

#include "demi/recompute/other_run.h"
#include "demi/recompute/sharing.h"

namespace demi::recomputation {
namespace {

using tensor::KeptResults;
using tensor::KeptResultsScope;
using Tensors = KeptResults::Tensors;

Tensors as_list(at::Tensor result) { return {std::move(result)}; }
template <class... T>
Tensors as_list(std::tuple<T...> result) {
  return std::apply([](auto&... tensors) { return Tensors{std::move(tensors)...}; }, result);
}

template <class Result>
Result from_list(Tensors list) {
  if constexpr (std::is_same_v<Result, at::Tensor>)
    return std::move(list[0]);
  else
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return Result(std::move(list[i])...);
    }
  (std::make_index_sequence<std::tuple_size_v<Result>>());
}

template <class Op, class Signature = typename Op::schema>
struct Below;

// A kernel between an op's autograd kernel and the device's. It passes through if the thread keeps
// nothing.
template <class Op, class Result, class... Arguments>
struct Below<Op, Result(Arguments...)> {
  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    return kept_if(true, keys, arguments...);
  }
  static Result kept_if(bool is_kept, c10::DispatchKeySet keys, Arguments... arguments) {
    const auto compute = [&] {
      return Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, arguments...);
    };
    KeptResults* kept = KeptResults::of_this_thread;
    if (!kept) [[likely]]
      return compute();
    if (is_kept)
      return from_list<Result>(kept->results(Op::name, [&] { return as_list(compute()); }));
    const KeptResultsScope not_within(nullptr);
    return compute();
  }
};

// Attention that draws is not kept: the second run has to draw as well, or all that is drawn after
// it would be other numbers.
using Efficient = at::_ops::_scaled_dot_product_efficient_attention;
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    c10::DispatchKeySet keys, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& bias, bool compute_log_sumexp, double dropout, bool causal,
    std::optional<double> scale) {
  return Below<Efficient>::kept_if(dropout == 0, keys, q, k, v, bias, compute_log_sumexp, dropout,
                                   causal, scale);
}

void share_version(const at::Tensor& of, const at::Tensor& with) {
  of.unsafeGetTensorImpl()->set_version_counter(with.unsafeGetTensorImpl()->version_counter());
}
void share_version(const std::vector<at::Tensor>& of, const at::Tensor& with) {
  for (const auto& tensor : of) share_version(tensor, with);
}

// Views with a version of their own, as matmul makes of its product: a write to one, such as the
// bias that torch::nn::Linear adds, has to show on the product that is kept.
template <class Op, class Signature = typename Op::schema>
struct UnsafeView;

template <class Op, class Result, class... Rest>
struct UnsafeView<Op, Result(const at::Tensor&, Rest...)> {
  static Result call(c10::DispatchKeySet keys, const at::Tensor& self, Rest... rest) {
    Result views = Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, self, rest...);
    if (KeptResults::of_this_thread) [[unlikely]]
      share_version(views, self);
    return views;
  }
};

// Does not register bmm: its products are often those of attention, which are larger than their
// operands.
void register_kernels() {
  namespace ops = at::_ops;
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::ADInplaceOrView,
                                __FILE__, __LINE__);
  library.impl("mm", TORCH_FN((Below<ops::mm>::call)));
  library.impl("addmm", TORCH_FN((Below<ops::addmm>::call)));
  library.impl("convolution", TORCH_FN((Below<ops::convolution>::call)));
  library.impl("_unsafe_view", TORCH_FN((UnsafeView<ops::_unsafe_view>::call)));
  library.impl("unsafe_split.Tensor", TORCH_FN((UnsafeView<ops::unsafe_split_Tensor>::call)));
  library.impl("unsafe_split_with_sizes",
               TORCH_FN((UnsafeView<ops::unsafe_split_with_sizes>::call)));
  library.impl("_scaled_dot_product_flash_attention_for_cpu",
               TORCH_FN((Below<ops::_scaled_dot_product_flash_attention_for_cpu>::call)));
  library.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient_attention));
}

Tensors computed(c10::function_ref<Tensors()> compute) {
  const KeptResultsScope not_within(nullptr);
  return compute();
}

}  // namespace

KeptProducts::KeptProducts() {
  static const bool once = (register_kernels(), true);
  static_cast<void>(once);
}

void KeptProducts::drop_from(std::size_t saved) {
  for (One& one : all_)
    if (one.saved >= saved) one.tensors.clear();
}

KeptProducts::Tensors KeptProducts::Storing::results(const char* op,
                                                     c10::function_ref<Tensors()> compute) {
  Tensors results = computed(compute);
  One one{.op = op, .tensors = {}, .versions = {}, .saved = saved_()};
  for (const auto& result : results) {
    one.tensors.push_back(sharing(result));
    one.versions.push_back(version_of(result));
  }
  kept_.all_.push_back(std::move(one));
  return results;
}

KeptProducts::Tensors KeptProducts::Finding::results(const char* op,
                                                     c10::function_ref<Tensors()> compute) {
  const std::size_t number = next_++;
  const bool is_known = number < kept_.all_.size();
  if (!is_known || std::string_view(kept_.all_[number].op) != op)
    refuse_other_run("the function ran another product when it was run again", op,
                     is_known ? kept_.all_[number].op : "none");
  const One& one = kept_.all_[number];
  bool is_as_stored = !one.tensors.empty();
  for (std::size_t i = 0; i < one.tensors.size(); ++i)
    is_as_stored = is_as_stored && version_of(one.tensors[i]) == one.versions[i];
  if (!is_as_stored) return computed(compute);
  Tensors results;
  for (const auto& tensor : one.tensors) results.push_back(sharing(tensor));
  return results;
}

}  // namespace demi::recomputation
