#include <ATen/Operators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "demi/autocast/call.h"
#include "demi/autocast/kernels.h"

namespace demi {
namespace {

using Op = at::_ops::_cudnn_rnn;
using Flatten = at::_ops::_cudnn_rnn_flatten_weight;
using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <c10::DeviceType device>
struct CudnnRnn {
  static constexpr c10::DispatchKey kKey = device == c10::DeviceType::CPU
                                               ? c10::DispatchKey::AutocastCPU
                                               : c10::DispatchKey::AutocastCUDA;
  static inline int number = 0;

  // cuDNN reads one buffer, in its own order for the weights' dtype; autograd sends gradients to
  // the weights that are passed with it. So cuDNN lays the buffer out again, as LibTorch does for
  // FP16, from weights that are cast once.
  static Result call(c10::DispatchKeySet keys, const at::Tensor& input, at::TensorList weight,
                     int64_t weight_stride0, const std::optional<at::Tensor>& weight_buf,
                     const at::Tensor& hx, const std::optional<at::Tensor>& cx, int64_t mode,
                     c10::SymInt hidden_size, c10::SymInt proj_size, int64_t num_layers,
                     bool batch_first, double dropout, bool train, bool bidirectional,
                     c10::SymIntArrayRef batch_sizes,
                     const std::optional<at::Tensor>& dropout_state) {
    Call now(device, number, /*held=*/0, keys);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
    c10::SmallVector<c10::ScalarType, 8> dtypes;
    const auto see = [&](const at::Tensor& tensor) {
      now.add_argument(tensor);
      if (tensor.defined()) dtypes.push_back(tensor.scalar_type());
    };
    see(input);
    for (const auto& one : weight) see(one);
    see(hx);
    if (cx) see(*cx);
    now.choose_dtype();
    try {
      std::vector<at::Tensor> weights;
      bool are_cast = false;
      for (const auto& one : weight) {
        weights.push_back(*now.cast(one));
        are_cast = are_cast || !weights.back().is_same(one);
      }
      std::optional<at::Tensor> buffer = weight_buf;
      if (are_cast) {
        const at::NoGradGuard no_grad;
        std::vector<at::Tensor> parts;  // which the op points into the buffer: not the kept copies
        parts.reserve(weights.size());
        for (const auto& one : weights) parts.push_back(one.detach());
        buffer = Flatten::call(parts, weight_stride0, input.sym_size(-1), mode, hidden_size,
                               proj_size, num_layers, batch_first, bidirectional);
      }
      const auto state = [&](const at::Tensor& one) {  // no weight, even if others hold it
        return now.dtype == kAsGiven || !now.eligible(one) ? one : one.to(now.dtype);
      };
      const auto cell = cx ? std::optional<at::Tensor>(state(*cx)) : std::nullopt;
      return Op::redispatch(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
                            state(input), weights, weight_stride0, buffer, state(hx), cell, mode,
                            hidden_size, proj_size, num_layers, batch_first, dropout, train,
                            bidirectional, batch_sizes, dropout_state);
    } catch (c10::Error& error) {
      explain(error, now, dtypes);
      throw;
    }
  }

  static void add_to(torch::Library& library, const std::string& op, int op_number) {
    number = op_number;
    library.impl(op.c_str(), TORCH_FN(call));
  }
};

}  // namespace

bool register_cudnn_rnn_kernel(torch::Library& library, c10::DeviceType device,
                               const std::string& op, int number) {
  if (op != "aten::_cudnn_rnn") return false;
  if (device == c10::DeviceType::CUDA)
    CudnnRnn<c10::DeviceType::CUDA>::add_to(library, op, number);
  else if (device == c10::DeviceType::CPU)
    CudnnRnn<c10::DeviceType::CPU>::add_to(library, op, number);
  else
    return false;
  return true;
}

}  // namespace demi
