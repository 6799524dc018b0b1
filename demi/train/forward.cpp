#include "demi/train/forward.h"

#include <c10/util/Exception.h>

#include <array>

namespace demi::train {
namespace {

using Precisions = at::Float32Precision;

struct Key {
  at::Float32Backend backend;
  at::Float32Op op;
};
constexpr std::array<Key, 6> kKeys{{{at::Float32Backend::CUDA, at::Float32Op::MATMUL},
                                    {at::Float32Backend::CUDA, at::Float32Op::CONV},
                                    {at::Float32Backend::CUDA, at::Float32Op::RNN},
                                    {at::Float32Backend::MKLDNN, at::Float32Op::MATMUL},
                                    {at::Float32Backend::MKLDNN, at::Float32Op::CONV},
                                    {at::Float32Backend::MKLDNN, at::Float32Op::RNN}}};

Precisions get(const Key& key) { return at::globalContext().float32Precision(key.backend, key.op); }

void set(const Key& key, Precisions precision) {
  at::globalContext().setFloat32Precision(key.backend, key.op, precision);
}

// What follows a setting above it cannot be told from the same value set here; where following
// gives the value again, it follows again. Convolutions and recurrent layers on CUDA begin in a
// state of LibTorch's own that nobody else can set (TF32 unless a setting above says otherwise);
// they end with TF32 set.
void give_back(const Key& key, Precisions before) {
  set(key, Precisions::NONE);
  if (get(key) != before) set(key, before);
}

const char* name_of(at::Float32MatmulPrecision precision) {
  switch (precision) {
    case at::Float32MatmulPrecision::HIGHEST:
      return "highest";
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
  }
  return "highest";
}

// LibTorch's older getters throw where newer functions set something else; so they are asked when
// nothing can be in their way.
at::Float32MatmulPrecision older_matmul() {
  set(kKeys[0], Precisions::IEEE);
  set(kKeys[3], Precisions::IEEE);
  return at::globalContext().float32MatmulPrecision();
}

bool older_convolution() {
  set(kKeys[1], Precisions::TF32);
  set(kKeys[2], Precisions::TF32);
  try {
    return at::globalContext().allowTF32CuDNN();
  } catch (const c10::Error&) {  // it is not what was just set
    return false;
  }
}

}  // namespace

Tf32Mode::Tf32Mode(bool allow) {
  for (const Key& key : kKeys) before_.push_back(get(key));
  matmul_before_ = older_matmul();
  convolution_before_ = older_convolution();
  // By the older setters, which set both, so that neither kind of getter throws meanwhile.
  at::globalContext().setAllowTF32CuBLAS(allow);
  at::globalContext().setAllowTF32CuDNN(allow);
  // Their "not allowed" leaves convolutions to a setting above, hence the newer ones as well.
  for (std::size_t i = 0; i < kKeys.size(); ++i)
    set(kKeys[i], allow && i < 3 ? Precisions::TF32 : Precisions::IEEE);
}

Tf32Mode::~Tf32Mode() {
  at::globalContext().setFloat32MatmulPrecision(name_of(matmul_before_));
  at::globalContext().setAllowTF32CuDNN(convolution_before_);
  for (std::size_t i = 0; i < kKeys.size(); ++i) give_back(kKeys[i], before_[i]);
}

Autocast region_of(const Precision& precision, c10::Device device,
                   const std::optional<OpPolicy>& ops) {
  const Policy policy = global_policy();
  if (!ops && policy.is_mixed() && precision.autocast == policy.compute_dtype())
    return Autocast(device.type(), policy);  // softmax in FP32, as Keras has it
  return Autocast(
      device.type(),
      AutocastOptions{.dtype = precision.autocast, .enabled = precision.is_mixed(), .policy = ops});
}

data::Batch input_for(const Precision& precision, const data::Batch& batch) {
  data::Batch result = batch;
  if (!precision.is_mixed() && batch.input.is_floating_point())
    result.input = batch.input.to(precision.weights);
  return result;
}

at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device, const std::optional<OpPolicy>& ops) {
  const Autocast region = region_of(precision, device, ops);
  return network.forward(input_for(precision, batch));
}

}  // namespace demi::train
