#include "demi/autocast/lstm_kernel.h"

#include <ATen/Operators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "demi/autocast/call.h"
#include "demi/rnn/lstm_layer.h"

namespace demi {
namespace {

using Op = at::_ops::mkldnn_rnn_layer;
constexpr auto kKey = c10::DispatchKey::AutocastCPU;
constexpr int64_t kLstm = 2;  // of `mode`, as in ATen/native/RNN.h's cuDNN numbering

int lstm_number = 0;

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> layer(
    c10::DispatchKeySet keys, const at::Tensor& input, const at::Tensor& w_ih,
    const at::Tensor& w_hh, const at::Tensor& b_ih, const at::Tensor& b_hh,
    const at::Tensor& hidden, const at::Tensor& cell, bool reverse, at::IntArrayRef batch_sizes,
    int64_t mode, int64_t hidden_size, int64_t num_layers, bool has_biases, bool bidirectional,
    bool batch_first, bool train) {
  Call now(c10::DeviceType::CPU, lstm_number, /*handles=*/0);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  for (const auto* tensor : {&input, &w_ih, &w_hh, &b_ih, &b_hh, &hidden, &cell}) now.see(*tensor);
  now.decide();
  const at::Tensor x = *now.cast(input), h = *now.cast(hidden), c = *now.cast(cell);
  const auto bias = [&](const at::Tensor& b) { return has_biases ? *now.cast(b) : at::Tensor(); };
  const rnn::LstmWeights w{*now.cast(w_ih), *now.cast(w_hh), bias(b_ih), bias(b_hh)};
  if (mode == kLstm && batch_sizes.empty() && rnn::lstm_layer_takes(x, w, h, c)) {
    auto [output, last_hidden, last_cell] = rnn::lstm_layer(x, w, h, c, reverse);
    return {std::move(output), std::move(last_hidden), std::move(last_cell), at::Tensor()};
  }
  return Op::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), x,
                        w.w_ih, w.w_hh, *now.cast(b_ih), *now.cast(b_hh), h, c, reverse,
                        batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional,
                        batch_first, train);
}

}  // namespace

bool register_lstm_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                          int number) {
  if (device != c10::DeviceType::CPU || op != "aten::mkldnn_rnn_layer") return false;
  lstm_number = number;
  library.impl(op.c_str(), TORCH_FN(layer));
  return true;
}

}  // namespace demi
