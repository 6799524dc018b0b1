#include "demi/train/forward.h"

#include <ATen/Context.h>

namespace demi::train {

// One pair of setters everywhere: LibTorch throws where its older and newer ones are mixed.
Tf32Mode::Tf32Mode(bool allow)
    : matmul_before_(at::globalContext().allowTF32CuBLAS()),
      convolution_before_(at::globalContext().allowTF32CuDNN()) {
  at::globalContext().setAllowTF32CuBLAS(allow);
  at::globalContext().setAllowTF32CuDNN(allow);
}

Tf32Mode::~Tf32Mode() {
  at::globalContext().setAllowTF32CuBLAS(matmul_before_);
  at::globalContext().setAllowTF32CuDNN(convolution_before_);
}

Autocast region_of(const Precision& precision, c10::Device device) {
  const Policy policy = global_policy();
  if (policy.is_mixed() && precision.autocast == policy.compute_dtype())
    return Autocast(device.type(), policy);  // softmax in FP32, as Keras has it
  return Autocast(device.type(),
                  AutocastOptions{.dtype = precision.autocast, .enabled = precision.is_mixed()});
}

data::Batch input_for(const Precision& precision, const data::Batch& batch) {
  data::Batch result = batch;
  if (!precision.is_mixed() && batch.input.is_floating_point())
    result.input = batch.input.to(precision.weights);
  return result;
}

at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device) {
  const Autocast region = region_of(precision, device);
  return network.forward(input_for(precision, batch));
}

}  // namespace demi::train
