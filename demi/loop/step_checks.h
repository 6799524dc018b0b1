#pragma once

#include <vector>

#include "demi/loop/step.h"

// Checks of what a Step is given. All of these throw UsageError.
namespace demi::loop {

constexpr auto kStep = "loop.Step";

void check(const Options& options);
/// Checks optimizers, schedules and DistributedDataParallels; Job::module() checks the models.
void check(const Job& job);
/// LibTorch's messages about losses name neither loss nor caller.
void check_losses(const std::vector<at::Tensor>& losses);
void check_weight(double weight);

}  // namespace demi::loop
