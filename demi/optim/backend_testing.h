#pragma once

#include <vector>

#include "demi/optim/optimizer.h"
#include "demi/step/backend.h"

namespace demi::optim::testing {

/// An optimizer on a backend of the test's choice.
template <class Base>
class On : public Base {
 public:
  template <class Options>
  On(const Backend& backend, std::vector<at::Tensor> parameters, const Options& options,
     StepOptions step = {})
      : Base({torch::optim::OptimizerParamGroup(std::move(parameters))}, options, step, backend) {}
};

}  // namespace demi::optim::testing
