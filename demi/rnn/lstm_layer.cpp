#include "demi/rnn/lstm_layer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "demi/core/error.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/products/block_product.h"
#include "demi/products/matrix_product.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/rnn/step_product.h"
#include "demi/tensor/dtype.h"

namespace demi::rnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kSequencesPerThread = 8;  // a product with fewer rows waits for its weights

// DEMI_KERNELS may have changed since lstm_layer_takes() was asked, before backward at that.
const kernels::CpuKernels& kernels_now() {
  const kernels::CpuKernels* best = kernels::cpu_kernels();
  return best ? *best : *kernels::cpu_kernels(kernels::Path::reference);
}

std::unique_ptr<float[]> scratch(int64_t n) {
  return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n));
}

/// Element `row` of the first dimension of a dense tensor, byte by byte for any dtype.
const void* row_of(const at::Tensor& tensor, int64_t row) {
  return static_cast<const char*>(tensor.const_data_ptr()) +
         row * tensor.stride(0) * tensor.element_size();
}
void* row_of_mutable(const at::Tensor& tensor, int64_t row) {
  return static_cast<char*>(tensor.mutable_data_ptr()) +
         row * tensor.stride(0) * tensor.element_size();
}

/// The steps of a layer. Sequence n at time t is row t N + n of every array over time; arrays of h
/// and c have one time more, for the state before the first step, so that a step leads from one row
/// to the one N before or after it.
///
/// Sequences of several lengths are sorted longest first, so that the first `running[time]` rows
/// are those that have a step at this time. Rows past a sequence's end hold finite numbers that
/// nothing depends on.
struct Steps {
  int64_t times, sequences, inputs, hidden;
  bool reverse;
  std::vector<int64_t> running;  // (T), not increasing, the first one N; empty: all run to the end

  /// How many of the sequences from begin to end have a step at this time.
  int64_t rows(int64_t time, int64_t begin, int64_t end) const {
    if (running.empty()) return end - begin;
    return std::clamp<int64_t>(running[static_cast<size_t>(time)] - begin, 0, end - begin);
  }
  int64_t all_rows() const {
    return running.empty() ? times * sequences
                           : std::accumulate(running.begin(), running.end(), int64_t{0});
  }
  at::Tensor lengths() const {  // (N)
    const at::Tensor result = at::zeros({sequences}, at::kLong);
    for (const int64_t n : running) result.narrow(0, 0, n) += 1;
    return result;
  }
  at::Tensor zeros_or_empty(at::IntArrayRef sizes, const at::TensorOptions& options) const {
    return running.empty() ? at::empty(sizes, options) : at::zeros(sizes, options);
  }

  int64_t time(int64_t step) const { return reverse ? times - 1 - step : step; }
  int64_t row(int64_t time, int64_t sequence) const { return time * sequences + sequence; }
  int64_t row_before(int64_t time, int64_t sequence) const { return row(time + reverse, sequence); }
  int64_t row_after(int64_t time, int64_t sequence) const { return row(time + !reverse, sequence); }

  // Parts of an array over times + 1, by time: the states before the steps, and those after them.
  at::Tensor before(const at::Tensor& all) const { return all.narrow(0, reverse, times); }
  at::Tensor after(const at::Tensor& all) const { return all.narrow(0, !reverse, times); }

  /// Puts each sequence's state before its first step into such an array.
  void set_first(const at::Tensor& all, const at::Tensor& state) const {
    if (!reverse) {
      all[0].copy_(state);
    } else if (running.empty()) {
      all[times].copy_(state);
    } else {
      at::Tensor to = all;
      to.index_put_({lengths(), at::arange(sequences)}, state.to(all.scalar_type()));
    }
  }
  /// Each sequence's state after its last step, in memory of its own.
  at::Tensor last(const at::Tensor& all) const {
    if (reverse) return all[0].clone();
    if (running.empty()) return all[times].clone();
    return all.index({lengths(), at::arange(sequences)});
  }
};

/// The results of forward: h (T + 1, N, H) 16-bit, c (T + 1, N, H) FP32, gates (T, N, 4 H) 16-bit.
/// If there will be no backward, gates is undefined and c (1, N, H), which each step overwrites.
struct Trace {
  at::Tensor hidden, cell, gates;
};

/// first_hidden: h before the first step, (N, H) 16-bit.
void forward_steps(const Steps& steps, const at::Tensor& input, const at::Tensor& first_hidden,
                   const at::Tensor& w_ih, const at::Tensor& w_hh, const at::Tensor& bias,
                   const Trace& trace) {
  const kernels::CpuKernels& k = kernels_now();
  const kernels::Storage storage = tensor::storage_of(input.scalar_type());
  const int64_t h = steps.hidden;
  const bool keeps = trace.gates.defined();
  const StepProduct from_input(w_ih.t()), from_hidden(w_hh.t());
  RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, "demi.lstm",
                             std::vector<c10::IValue>({input, w_ih, w_hh, steps.all_rows()}));
  const at::Tensor x = input.reshape({-1, steps.inputs}), all_hidden = trace.hidden.view({-1, h}),
                   all_cell = trace.cell.view({-1, h}),
                   gates = keeps ? trace.gates.view({-1, 4 * h}) : at::Tensor();
  at::parallel_for(0, steps.sequences, kSequencesPerThread, [&](int64_t begin, int64_t end) {
    const int64_t most = end - begin;
    const auto sums = scratch(most * 4 * h);
    const auto wide_x = from_input.reads_fp32() ? scratch(most * steps.inputs) : nullptr;
    const auto wide_h = from_hidden.reads_fp32() ? scratch(most * h) : nullptr;
    if (wide_h) k.widen(wide_h.get(), row_of(first_hidden, begin), storage, most * h);
    for (int64_t step = 0; step < steps.times; ++step) {
      const int64_t time = steps.time(step), row = steps.row(time, begin),
                    before = steps.row_before(time, begin), after = steps.row_after(time, begin),
                    rows = steps.rows(time, begin, end);
      if (rows == 0) continue;
      if (wide_x) k.widen(wide_x.get(), row_of(x, row), storage, rows * steps.inputs);
      from_input(wide_x ? wide_x.get() : row_of(x, row), sums.get(), rows, /*add=*/false);
      from_hidden(wide_h ? wide_h.get() : row_of(all_hidden, before), sums.get(), rows,
                  /*add=*/true);
      k.lstm_forward(
          {.rows = rows,
           .hidden = h,
           .storage = storage,
           .sums = sums.get(),
           .bias = bias.const_data_ptr<float>(),
           .cell_before = static_cast<const float*>(row_of(all_cell, keeps ? before : begin)),
           .cell = static_cast<float*>(row_of_mutable(all_cell, keeps ? after : begin)),
           .gates = keeps ? row_of_mutable(gates, row) : nullptr,
           .output = row_of_mutable(all_hidden, after),
           .widened = wide_h.get()});
    }
    StepProduct::release();
  });
}

/// Gradients of the gates' sums, (T, N, 4 H) 16-bit. of_hidden and of_cell (N, H) FP32: of the last
/// state, and at the end of the first.
at::Tensor backward_steps(const Steps& steps, const at::Tensor& of_output, const at::Tensor& w_hh,
                          const Trace& trace, const at::Tensor& of_hidden,
                          const at::Tensor& of_cell) {
  const kernels::CpuKernels& k = kernels_now();
  const kernels::Storage storage = tensor::storage_of(w_hh.scalar_type());
  const int64_t h = steps.hidden;
  RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, "demi.lstm_backward",
                             std::vector<c10::IValue>({w_hh, steps.all_rows()}));
  const StepProduct to_hidden(w_hh);
  const at::Tensor of_sums =
      steps.zeros_or_empty({steps.times * steps.sequences, 4 * h}, trace.hidden.options());
  const at::Tensor all_cell = trace.cell.view({-1, h}), gates = trace.gates.view({-1, 4 * h}),
                   outputs = of_output.defined() ? of_output.view({-1, h}) : at::Tensor();
  at::parallel_for(0, steps.sequences, kSequencesPerThread, [&](int64_t begin, int64_t end) {
    auto* hidden_gradient = static_cast<float*>(row_of_mutable(of_hidden, begin));
    auto* cell_gradient = static_cast<float*>(row_of_mutable(of_cell, begin));
    const auto wide = to_hidden.reads_fp32() ? scratch((end - begin) * 4 * h) : nullptr;
    for (int64_t step = steps.times; step-- > 0;) {
      const int64_t time = steps.time(step), row = steps.row(time, begin),
                    rows = steps.rows(time, begin, end);
      if (rows == 0) continue;
      k.lstm_backward(
          {.rows = rows,
           .hidden = h,
           .storage = storage,
           .output_gradient = outputs.defined() ? row_of(outputs, row) : nullptr,
           .hidden_gradient = hidden_gradient,
           .cell_gradient = cell_gradient,
           .gates = row_of(gates, row),
           .cell_before =
               static_cast<const float*>(row_of(all_cell, steps.row_before(time, begin))),
           .cell = static_cast<const float*>(row_of(all_cell, steps.row_after(time, begin))),
           .sums_gradient = row_of_mutable(of_sums, row),
           .widened = wide.get()});
      to_hidden(wide ? wide.get() : row_of(of_sums, row), hidden_gradient, rows, /*add=*/false);
    }
    StepProduct::release();
  });
  return of_sums;
}

/// Gradients through the gates' sums, 16-bit, summed in FP32 and rounded once; undefined if not
/// wanted.
struct ThroughSums {
  at::Tensor input, w_ih, w_hh, bias;
};

/// of_sums (rows, 4 H), input (rows, I), before (rows, H): h of the step before.
ThroughSums gradients_through_sums(const at::Tensor& of_sums, const at::Tensor& input,
                                   const at::Tensor& before, const at::Tensor& w_ih,
                                   const std::array<bool, 3>& wanted) {
  const auto [wants_input, wants_w_ih, wants_w_hh] = wanted;
  const auto product = [&](bool is_wanted, const at::Tensor& a, const at::Tensor& b) {
    if (!is_wanted) return at::Tensor();
    return products::slow_in(a.scalar_type()) ? products::matrix_product({}, a, b) : at::mm(a, b);
  };
  return {product(wants_input, of_sums, w_ih), product(wants_w_ih, of_sums.t(), input),
          product(wants_w_hh, of_sums.t(), before), of_sums.sum(0)};
}

at::Tensor bias_of(const std::optional<at::Tensor>& b_ih, const std::optional<at::Tensor>& b_hh,
                   const at::Tensor& w_ih) {
  at::Tensor bias = at::zeros({w_ih.size(0)}, w_ih.options().dtype(at::kFloat));
  if (b_ih) bias += *b_ih;
  if (b_hh) bias += *b_hh;
  return bias;
}

std::optional<at::Tensor> given(const at::Tensor& bias) {
  return bias.defined() ? std::optional(bias) : std::nullopt;
}

struct LstmFunction : torch::autograd::Function<LstmFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input,
                               const at::Tensor& w_ih, const at::Tensor& w_hh,
                               const std::optional<at::Tensor>& b_ih,
                               const std::optional<at::Tensor>& b_hh, const at::Tensor& hidden,
                               const at::Tensor& cell, bool reverse, at::IntArrayRef running,
                               bool keep) {
    const products::NoAutocast no_autocast;
    // The output is a part of trace.hidden, which autograd must not follow as a view.
    const at::AutoDispatchBelowADInplaceOrView below;
    const Steps steps{input.size(0), input.size(1), input.size(2),
                      w_hh.size(1),  reverse,       running.vec()};
    const at::Tensor x = input.contiguous(), first_hidden = hidden.contiguous();
    const std::vector<int64_t> states{steps.times + 1, steps.sequences, steps.hidden};
    Trace trace{steps.zeros_or_empty(states, x.options()), {}, {}};
    if (keep) {
      trace.gates = at::empty({steps.times, steps.sequences, 4 * steps.hidden}, x.options());
      trace.cell = at::empty(states, x.options().dtype(at::kFloat));
      steps.set_first(trace.cell, cell);
    } else {
      trace.cell = cell.to(at::kFloat).contiguous().unsqueeze(0);
    }
    steps.set_first(trace.hidden, first_hidden);
    forward_steps(steps, x, first_hidden, w_ih, w_hh, bias_of(b_ih, b_hh, w_ih), trace);
    const at::Tensor output = steps.after(trace.hidden);
    if (keep) {
      // The output too, so that a write into it before backward is noticed.
      context->save_for_backward({x, w_ih, w_hh, trace.hidden, trace.cell, trace.gates, output});
      context->saved_data["b_ih"] = b_ih.has_value();
      context->saved_data["b_hh"] = b_hh.has_value();
      context->saved_data["reverse"] = reverse;
      context->saved_data["running"] = steps.running;
    }
    return {output, steps.last(trace.hidden),
            (keep ? steps.last(trace.cell) : trace.cell[0]).to(x.scalar_type())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled())
      throw UsageError({.where = "rnn.lstm_layer",
                        .what = "an LSTM in an autocast region on a CPU has no second derivative",
                        .seen = "create_graph = true",
                        .advice = "run the LSTM in FP32: a region with enabled = false around it"});
    const products::NoAutocast no_autocast;
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &w_ih = saved[1], &w_hh = saved[2];
    const Trace trace{saved[3], saved[4], saved[5]};
    const Steps steps{x.size(0),
                      x.size(1),
                      x.size(2),
                      w_hh.size(1),
                      context->saved_data["reverse"].toBool(),
                      context->saved_data["running"].toIntVector()};
    const auto dtype = x.scalar_type();
    // These are gradients of 16-bit results, so `to` makes a tensor of its own, which the steps
    // then write.
    const auto fp32_or_zero = [&](const at::Tensor& gradient) {
      return gradient.defined()
                 ? gradient.to(at::kFloat).contiguous()
                 : at::zeros({steps.sequences, steps.hidden}, x.options().dtype(at::kFloat));
    };
    const at::Tensor of_output =
        gradients[0].defined() ? gradients[0].to(dtype).contiguous() : at::Tensor();
    const at::Tensor of_hidden = fp32_or_zero(gradients[1]), of_cell = fp32_or_zero(gradients[2]);
    const at::Tensor of_sums =
        backward_steps(steps, of_output, w_hh.contiguous(), trace, of_hidden, of_cell);

    variable_list result(10);
    const ThroughSums of = gradients_through_sums(
        of_sums, x.view({-1, steps.inputs}), steps.before(trace.hidden).reshape({-1, steps.hidden}),
        w_ih.contiguous(),
        {context->needs_input_grad(0), context->needs_input_grad(1), context->needs_input_grad(2)});
    const bool has_b_ih = context->saved_data["b_ih"].toBool(),
               has_b_hh = context->saved_data["b_hh"].toBool();
    if (of.input.defined()) result[0] = of.input.view_as(x);
    result[1] = of.w_ih;
    result[2] = of.w_hh;
    if (has_b_ih) result[3] = of.bias;
    if (has_b_hh) result[4] = has_b_ih ? of.bias.clone() : of.bias;
    result[5] = of_hidden.to(dtype);
    result[6] = of_cell.to(dtype);
    return result;
  }
};

}  // namespace

bool lstm_layer_takes(const at::Tensor& input, const LstmWeights& weights, const at::Tensor& hidden,
                      const at::Tensor& cell) {
  const auto fits = [&](const at::Tensor& tensor, at::IntArrayRef shape) {
    return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
           tensor.scalar_type() == input.scalar_type() && tensor.sizes() == shape;
  };
  if (!tensor::is_16_bit(input.scalar_type()) || input.dim() != 3 || input.numel() == 0 ||
      weights.w_hh.dim() != 2)
    return false;
  const int64_t sequences = input.size(1), inputs = input.size(2), h = weights.w_hh.size(1);
  return h > 0 && fits(input, input.sizes()) && fits(weights.w_ih, {4 * h, inputs}) &&
         fits(weights.w_hh, {4 * h, h}) &&
         (!weights.b_ih.defined() || fits(weights.b_ih, {4 * h})) &&
         (!weights.b_hh.defined() || fits(weights.b_hh, {4 * h})) && fits(hidden, {sequences, h}) &&
         fits(cell, {sequences, h}) && kernels::cpu_kernels() &&
         products::has_fp32_block_products();
}

LstmResult lstm_layer(const at::Tensor& input, const LstmWeights& weights, const at::Tensor& hidden,
                      const at::Tensor& cell, bool reverse, at::IntArrayRef running) {
  const auto wants = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool keep = at::GradMode::is_enabled() &&
                    (wants(input) || wants(weights.w_ih) || wants(weights.w_hh) ||
                     wants(weights.b_ih) || wants(weights.b_hh) || wants(hidden) || wants(cell));
  auto result = LstmFunction::apply(input, weights.w_ih, weights.w_hh, given(weights.b_ih),
                                    given(weights.b_hh), hidden, cell, reverse, running, keep);
  return {std::move(result[0]), std::move(result[1]), std::move(result[2])};
}

}  // namespace demi::rnn
