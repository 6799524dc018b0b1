#include "demi/optim/multi_optimizer.h"

namespace demi::optim {

MultiOptimizer::MultiOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               StepOptions step)
    : Optimizer(groups, step) {}

MultiOptimizer::MultiOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               StepOptions step, const Backend& backend)
    : Optimizer(groups, step, &backend) {}

}  // namespace demi::optim
