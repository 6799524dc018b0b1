#include "demi/scaler/inspected_gradients.h"

#include <unordered_map>

#include "demi/optim/optimizer.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/version.h"

namespace demi {

InspectedGradients::InspectedGradients(torch::optim::Optimizer& optimizer, bool in_place) {
  const bool own = dynamic_cast<optim::Optimizer*>(&optimizer) != nullptr;
  for (const auto& group : optimizer.param_groups()) {
    all_.reserve(all_.size() + group.params().size());
    for (const auto& parameter : group.params()) {
      const at::TensorImpl* holder = parameter.unsafeGetTensorImpl();
      const at::Tensor& gradient = holder->grad();
      if (!gradient.defined()) continue;
      const at::TensorImpl* impl = gradient.unsafeGetTensorImpl();
      const bool narrow = tensor::is_16_bit(gradient.scalar_type());
      all_.push_back({holder, impl, tensor::version_of(*impl), !own || (in_place && !narrow)});
    }
  }
}

bool InspectedGradients::would_be_divided_again(const InspectedGradients& later,
                                                bool pending) const {
  std::unordered_map<const at::TensorImpl*, const Seen*> here;
  for (const Seen& seen : all_) here[seen.parameter] = &seen;
  for (const Seen& next : later.all_) {
    const auto found = here.find(next.parameter);
    if (found == here.end()) continue;
    const Seen& seen = *found->second;
    if (seen.gradient != next.gradient || seen.version != next.version) continue;
    if (seen.divided || (pending && next.divided)) return true;
  }
  return false;
}

}  // namespace demi
