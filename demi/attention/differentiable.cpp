#include "demi/attention/differentiable.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "demi/attention/blocks.h"
#include "demi/attention/fused.h"
#include "demi/attention/tiles.h"
#include "demi/core/error.h"
#include "demi/products/no_autocast.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/kept_results.h"

namespace demi::sdpa {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType dtype_of_products(const Problem& problem, Path path) {
  const auto dtype = problem.q.scalar_type();
  return tensor::is_16_bit(dtype) && path != Path::blocks_16_bit ? at::kFloat : dtype;
}

bool is_of_blocks(Path path) { return path == Path::blocks || path == Path::blocks_16_bit; }

/// Calls work(problem of one document, part), where part(tensor) is its part of a tensor
/// (N, H, T, E).
template <class Work>
void each_document(const Documents& documents, Work work) {
  if (documents.starts.empty()) return work(documents.all, [](const at::Tensor& t) { return t; });
  const std::int64_t tokens = documents.all.queries();
  for (std::size_t i = 0; i + 1 < documents.starts.size(); ++i) {
    const std::int64_t begin = documents.starts[i], length = documents.starts[i + 1] - begin;
    if (length == 0) continue;
    const auto part = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      return tensor.narrow(0, begin / tokens, 1).narrow(2, begin % tokens, length);
    };
    Problem one = documents.all;
    one.q = part(one.q), one.k = part(one.k), one.v = part(one.v);
    one.dropout.first_row = begin / tokens, one.dropout.first_token = begin % tokens;
    work(one, part);
  }
}

Result computed(const Documents& documents, Path path) {
  const Problem& all = documents.all;
  if (path == Path::fused) return forward_fused(all);
  const std::int64_t n = all.q.size(0), heads = all.q.size(1), tokens = all.q.size(2);
  Result result{at::empty({n, tokens, heads, all.v.size(3)}, all.q.options()).transpose(1, 2), {}};
  if (path == Path::tiles)
    result.log_sum_exp = at::empty({n, heads, tokens}, all.q.options().dtype(at::kFloat));
  each_document(documents, [&](const Problem& one, auto part) {
    RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, "demi.attention",
                               std::vector<c10::IValue>({one.q, one.k, one.v}));
    if (path == Path::tiles)
      forward_by_tiles(one, {part(result.out), part(result.log_sum_exp)});
    else
      forward_by_blocks(one, dtype_of_products(one, path), part(result.out));
  });
  return result;
}

/// Found, where a recomputation has kept it.
Result result_of(const Documents& documents, Path path) {
  auto* kept = tensor::KeptResults::of_this_thread;
  if (!kept) return computed(documents, path);
  auto all = kept->results("demi::attention", [&] {
    auto made = computed(documents, path);
    return tensor::KeptResults::Tensors{std::move(made.out), std::move(made.log_sum_exp)};
  });
  return {std::move(all[0]), std::move(all[1])};
}

void make_gradients(const Documents& documents, Path path, const Result& result,
                    const at::Tensor& of_out, Gradients& to) {
  if (path == Path::fused) return backward_fused(documents.all, result, of_out, to);
  each_document(documents, [&](const Problem& one, auto part) {
    RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, "demi.attention_backward",
                               std::vector<c10::IValue>({part(of_out), one.q, one.k, one.v}));
    Gradients some{part(to.q), part(to.k), part(to.v), to.mask};
    if (path == Path::tiles)
      backward_by_tiles(one, {part(result.out), part(result.log_sum_exp)}, part(of_out), some);
    else
      backward_by_blocks(one, dtype_of_products(one, path), part(of_out), some);
  });
}

constexpr std::array kIntegers{"path", "causal", "past", "seed", "offset"};

void save(AutogradContext* context, const Documents& documents, Path path) {
  const Problem& all = documents.all;
  const std::array<std::int64_t, kIntegers.size()> integers{
      std::int64_t(path), all.causal, all.past, std::int64_t(all.dropout.seed), all.dropout.offset};
  for (std::size_t i = 0; i < kIntegers.size(); ++i)
    context->saved_data[kIntegers[i]] = integers[i];
  context->saved_data["scale"] = all.scale;
  context->saved_data["p"] = all.dropout.p;
  context->saved_data["starts"] = documents.starts;
}

Documents restored(AutogradContext* context, const variable_list& saved) {
  const auto integer = [&](const char* name) { return context->saved_data[name].toInt(); };
  Problem all{.q = saved[0],
              .k = saved[1],
              .v = saved[2],
              .mask = saved[3],
              .causal = integer("causal") != 0,
              .past = integer("past"),
              .scale = context->saved_data["scale"].toDouble(),
              .dropout = {.p = context->saved_data["p"].toDouble(),
                          .seed = std::uint64_t(integer("seed")),
                          .offset = std::uint32_t(integer("offset"))}};
  return {std::move(all), context->saved_data["starts"].toIntVector()};
}

void refuse_gradients_of_gradients() {
  if (!at::GradMode::is_enabled()) return;
  refuse({.where = "attention.attention",
          .what = "gradients of its gradients are not made (create_graph)",
          .advice = "set DEMI_ATTENTION=libtorch, or write it out with matmul and softmax"});
}

// The mask comes last, since an undefined tensor has no edge of its own.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& mask,
                            const Documents& documents, Path path) {
    save(context, documents, path);
    const auto [out, log_sum_exp] = result_of(documents, path);
    const at::Tensor kept = is_of_blocks(path) ? at::Tensor() : out;
    context->save_for_backward({q, k, v, mask.value_or(at::Tensor()), kept, log_sum_exp});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_outs) {
    refuse_gradients_of_gradients();
    const products::NoAutocast no_autocast;
    variable_list result(6);
    const at::Tensor& of_out = of_outs[0];
    if (!of_out.defined()) return result;
    const auto saved = context->get_saved_variables();
    const Documents documents = restored(context, saved);
    const auto path = Path(context->saved_data["path"].toInt());
    const auto wanted = [&](std::size_t i) {
      return context->needs_input_grad(i) ? at::empty_like(saved[i]) : at::Tensor();
    };
    Gradients to{wanted(0), wanted(1), wanted(2), {}};
    if (saved[3].defined() && context->needs_input_grad(3))
      to.mask = at::zeros(saved[3].sizes(), dtype_of_mask_gradient(saved[0]));
    make_gradients(documents, path, {saved[4], saved[5]}, of_out, to);
    result[0] = to.q, result[1] = to.k, result[2] = to.v;
    if (to.mask.defined()) result[3] = to.mask.to(saved[3].scalar_type());
    return result;
  }

  static at::ScalarType dtype_of_mask_gradient(const at::Tensor& q) {
    return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  }
};

}  // namespace

at::Tensor differentiable(const Documents& documents, Path path) {
  const products::NoAutocast no_autocast;
  const Problem& all = documents.all;
  const bool mask_has_gradient =
      at::GradMode::is_enabled() && all.mask.defined() && all.mask.requires_grad();
  if (path == Path::tiles && !fits_tiles(all, mask_has_gradient))
    path = path_without_tiles(all.q.scalar_type(), all.queries() * all.keys(),
                              onednn_instruction_set(), bf16_products());
  if (path == Path::fused && (!documents.starts.empty() || !is_fused(all, mask_has_gradient)))
    path = Path::blocks;
  Documents detached = documents;
  detached.all.q = all.q.detach(), detached.all.k = all.k.detach(), detached.all.v = all.v.detach();
  if (all.mask.defined()) detached.all.mask = all.mask.detach();
  return AttentionFunction::apply(all.q, all.k, all.v,
                                  all.mask.defined() ? std::optional(all.mask) : std::nullopt,
                                  detached, path);
}

}  // namespace demi::sdpa
