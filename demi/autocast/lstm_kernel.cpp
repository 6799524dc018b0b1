#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "demi/autocast/call.h"
#include "demi/autocast/kernels.h"
#include "demi/core/instruction_set.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/rnn/lstm_layer.h"

namespace demi {
namespace {

namespace ops = at::_ops;
using Tensors = std::vector<at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
constexpr auto kCpuKey = c10::DispatchKey::AutocastCPU;
constexpr int64_t kLstm = 2;  // of `mode`, as in ATen/native/RNN.h's cuDNN numbering

int layer_number = 0, input_number = 0, data_number = 0;

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCpuKey);
}

void add_arguments(Call& now, at::TensorList tensors) {
  for (const auto& tensor : tensors) now.add_argument(tensor);
}
Tensors cast_all(const Call& now, at::TensorList tensors) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(*now.cast(tensor));
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> layer(
    c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& w_ih,
    const at::Tensor& w_hh, const at::Tensor& b_ih, const at::Tensor& b_hh,
    const at::Tensor& hidden, const at::Tensor& cell, bool reverse, at::IntArrayRef batch_sizes,
    int64_t mode, int64_t hidden_size, int64_t num_layers, bool has_biases, bool bidirectional,
    bool batch_first, bool train) {
  Call now(c10::DeviceType::CPU, layer_number, /*held=*/0, keys);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kCpuKey);
  for (const auto* tensor : {&input, &w_ih, &w_hh, &b_ih, &b_hh, &hidden, &cell})
    now.add_argument(*tensor);
  now.choose_dtype();
  const at::Tensor x = *now.cast(input), h = *now.cast(hidden), c = *now.cast(cell);
  const auto bias = [&](const at::Tensor& b) { return has_biases ? *now.cast(b) : at::Tensor(); };
  const rnn::LstmWeights w{*now.cast(w_ih), *now.cast(w_hh), bias(b_ih), bias(b_hh)};
  if (now.plain && mode == kLstm && batch_sizes.empty() && rnn::lstm_layer_takes(x, w, h, c)) {
    auto [output, last_hidden, last_cell] = rnn::lstm_layer(x, w, h, c, reverse);
    return {std::move(output), std::move(last_hidden), std::move(last_cell), at::Tensor()};
  }
  return ops::mkldnn_rnn_layer::redispatch(
      below(keys), x, w.w_ih, w.w_hh, *now.cast(b_ih), *now.cast(b_hh), h, c, reverse, batch_sizes,
      mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train);
}

/// Whether LibTorch's LSTM might not be made of the layer above for this input: it is for FP32, and
/// for 16 bits only where oneDNN has them on this processor, in fp16 without gradients at that.
bool may_leave_the_layer(const at::Tensor& input) {
  const auto dtype = input.scalar_type();
  return input.device().is_cpu() && kernels::cpu_kernels() &&
         (dtype == at::kHalf || (dtype == at::kBFloat16 && !has_bf16_hardware()));
}

at::Tensor in_fp32(const at::Tensor& tensor) {
  return is_16_bit(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

/// 16-bit input goes in as FP32, which holds it exactly; the layer rounds it to what it was.
Results lstm_of_input(c10::DispatchKeySet keys, const at::Tensor& input, at::TensorList hx,
                      at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                      bool train, bool bidirectional, bool batch_first) {
  Call now(c10::DeviceType::CPU, input_number, /*held=*/0, keys);
  const auto run = [&](const at::Tensor& x, at::TensorList states, at::TensorList weights) {
    return ops::lstm_input::redispatch(below(keys), x, states, weights, has_biases, num_layers,
                                       dropout, train, bidirectional, batch_first);
  };
  if (now.category == OpCategory::unchanged) {  // the ops that it calls run by the region's rules
    if (!now.plain || !may_leave_the_layer(input)) return run(input, hx, params);
    Tensors states;
    for (const auto& state : hx) states.push_back(in_fp32(state));
    return run(in_fp32(input), states, params);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kCpuKey);
  now.add_argument(input);
  add_arguments(now, hx);
  add_arguments(now, params);
  now.choose_dtype();
  return run(*now.cast(input), cast_all(now, hx), cast_all(now, params));
}

/// A PackedSequence's arguments, all of one dtype but the data.
struct Packed {
  at::Tensor data;  // (sum of lengths, I), as given
  at::Tensor batch_sizes;
  Tensors states, weights;
  bool has_biases;
  int64_t layers, directions;

  size_t weights_of_one() const { return has_biases ? 4 : 2; }
  int64_t cells() const { return layers * directions; }

  rnn::LstmWeights weights_of(int64_t cell) const {
    const at::Tensor* first = &weights[static_cast<size_t>(cell) * weights_of_one()];
    return {first[0], first[1], has_biases ? first[2] : at::Tensor(),
            has_biases ? first[3] : at::Tensor()};
  }

  /// Whether the weights have the shapes that layers of demi's can be made of: no projections,
  /// nothing that LibTorch refuses.
  bool is_plain() const {
    const bool is_cast = data.scalar_type() == at::kFloat || is_16_bit(data.scalar_type());
    return is_cast && data.dim() == 2 && batch_sizes.dim() == 1 &&
           batch_sizes.scalar_type() == at::kLong && batch_sizes.numel() > 0 &&
           states.size() == 2 && layers >= 1 &&
           weights.size() == static_cast<size_t>(cells()) * weights_of_one() &&
           std::ranges::all_of(
               states, [&](const at::Tensor& s) { return s.dim() == 3 && s.size(0) == cells(); });
  }
};

/// Null where a layer does not take its arguments: LibTorch's own, or its complaint.
std::optional<Results> lstm_of_packed(const Packed& all, double dropout, bool train) {
  if (!all.is_plain()) return std::nullopt;
  const at::Tensor sizes = all.batch_sizes.contiguous();
  const at::IntArrayRef running(sizes.const_data_ptr<int64_t>(),
                                static_cast<size_t>(sizes.numel()));
  if (running.back() < 1 || !std::ranges::is_sorted(running, std::greater<>()) ||
      sizes.sum().item<int64_t>() != all.data.size(0))
    return std::nullopt;
  auto [x, lengths] =
      at::_pad_packed_sequence(all.data, sizes, /*batch_first=*/false, 0, sizes.numel());
  const auto packed = [&, &to = lengths](const at::Tensor& padded) {
    return std::get<0>(at::_pack_padded_sequence(padded, to, /*batch_first=*/false));
  };
  Tensors hidden, cell;
  for (int64_t l = 0; l < all.layers; ++l) {
    if (l > 0 && dropout > 0 && train) {  // of as many numbers as LibTorch draws
      const at::Tensor dropped = at::dropout(packed(x), dropout, train);
      x = std::get<0>(at::_pad_packed_sequence(dropped, sizes, false, 0, sizes.numel()));
    }
    Tensors outputs;
    for (int64_t d = 0; d < all.directions; ++d) {
      const int64_t one = l * all.directions + d;
      const at::Tensor h = all.states[0][one], c = all.states[1][one];
      const rnn::LstmWeights weights = all.weights_of(one);
      // Cast for each direction, so that their gradients of FP32 data are added in FP32.
      const at::Tensor low = x.to(h.scalar_type());
      if (!rnn::lstm_layer_takes(low, weights, h, c)) return std::nullopt;
      auto [output, h_last, c_last] = rnn::lstm_layer(low, weights, h, c, d == 1, running);
      outputs.push_back(std::move(output));
      hidden.push_back(std::move(h_last));
      cell.push_back(std::move(c_last));
    }
    x = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
  }
  return Results{packed(x), at::stack(hidden), at::stack(cell)};
}

/// Sequences of several lengths, which LibTorch makes of single products, with c in 16 bits.
Results lstm_of_data(c10::DispatchKeySet keys, const at::Tensor& data,
                     const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
                     bool has_biases, int64_t num_layers, double dropout, bool train,
                     bool bidirectional) {
  // A policy that names this op has its own casts; otherwise the layer's are used.
  Call named(c10::DeviceType::CPU, data_number, /*held=*/0, keys);
  const bool is_named = named.category != OpCategory::unchanged;
  Call now = is_named ? named : Call(c10::DeviceType::CPU, layer_number, /*held=*/0, keys);
  now.add_argument(data);
  add_arguments(now, hx);
  add_arguments(now, params);
  now.choose_dtype();
  const bool casts_here = is_named || (now.plain && is_16_bit(now.dtype) && kernels::cpu_kernels());
  if (casts_here) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(kCpuKey);
    const Packed all{data,       batch_sizes, cast_all(now, hx),    cast_all(now, params),
                     has_biases, num_layers,  bidirectional ? 2 : 1};
    if (now.plain && is_16_bit(now.dtype))
      if (auto result = lstm_of_packed(all, dropout, train)) return *std::move(result);
    if (is_named)
      return ops::lstm_data::redispatch(below(keys), *now.cast(data), batch_sizes, all.states,
                                        all.weights, has_biases, num_layers, dropout, train,
                                        bidirectional);
  }
  return ops::lstm_data::redispatch(below(keys), data, batch_sizes, hx, params, has_biases,
                                    num_layers, dropout, train, bidirectional);
}

}  // namespace

std::vector<std::string> lstm_ops() { return {"lstm.input", "lstm.data"}; }

bool register_lstm_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                          int number) {
  if (device != c10::DeviceType::CPU) return false;
  if (op == "aten::mkldnn_rnn_layer") {
    layer_number = number;
    library.impl(op.c_str(), TORCH_FN(layer));
  } else if (op == "aten::lstm.input") {
    input_number = number;
    library.impl(op.c_str(), TORCH_FN(lstm_of_input));
  } else if (op == "aten::lstm.data") {
    data_number = number;
    library.impl(op.c_str(), TORCH_FN(lstm_of_data));
  } else {
    return false;
  }
  return true;
}

}  // namespace demi
