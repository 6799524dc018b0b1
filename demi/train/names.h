#pragma once

#include "demi/loop/observer.h"
#include "demi/loop/precision.h"

namespace demi::train {

// The words of the training step that a Trainer's options, records and callbacks use.
using loop::global_precision;
using loop::LossScale;
using loop::mixed_precision_of;
using loop::parse_loss_scale;
using loop::parse_precision;
using loop::Precision;
using loop::precisions;
using loop::RepeatOptions;
using loop::StepMetrics;
using loop::StepObserver;
using loop::StepView;

}  // namespace demi::train
