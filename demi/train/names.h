#pragma once

#include "demi/loop/observer.h"

namespace demi::train {

// The words of the training step that a Trainer's options, records and callbacks use.
using loop::RepeatOptions;
using loop::StepMetrics;
using loop::StepObserver;
using loop::StepView;

}  // namespace demi::train
