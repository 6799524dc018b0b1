#include "demi/train/forward.h"

#include "demi/core/error.h"
#include "demi/loop/region.h"
#include "demi/tensor/device.h"
#include "demi/tensor/place.h"

namespace demi::train {

void check_device(c10::Device device) {
  if (device.is_cuda()) pick_device(device.str());
}

void check(const Network& network, std::string_view where, bool needs_forward) {
  const char* what = !network.module                     ? "the network has no module"
                     : needs_forward && !network.forward ? "the network has no forward function"
                                                         : nullptr;
  if (what)
    throw UsageError({.where = where,
                      .what = what,
                      .accepted = "a module and a function that computes its output for a batch",
                      .advice = "train::network(model) makes both from a module holder"});
}

data::Batch input_for(const Precision& precision, const data::Batch& batch) {
  data::Batch result = batch;
  if (!batch.input.defined() || !batch.input.is_floating_point()) return result;
  if (!precision.is_mixed() || batch.input.scalar_type() == c10::kDouble)
    result.input = batch.input.to(precision.weights);
  return result;
}

at::Tensor choice_on(c10::Device device, const data::Loader& loader, int64_t epoch,
                     int64_t position) {
  at::Tensor choice = loader.choice(epoch, position);
  return choice.defined() && tensor::is_on(choice, device) ? choice : at::Tensor();
}

at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device, const std::optional<OpPolicy>& ops) {
  const Autocast region = loop::region_of(precision, device, ops);
  return network.forward(input_for(precision, batch));
}

}  // namespace demi::train
