#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/train/history.h"
#include "demi/train/loss.h"
#include "demi/train/metric.h"
#include "demi/train/network.h"
#include "demi/train/precision.h"

namespace demi::train {

struct EvaluateOptions {
  Precision precision = parse_precision("fp32");
  c10::Device device = c10::kCPU;
  LossFunction loss = Loss::cross_entropy;
  std::vector<Metric> metrics;
  bool per_class = false;             // accuracy of each class, for classifications
  bool flush_subnormals = true;       // on a CPU (core/flush_subnormals.h)
  std::function<bool()> should_stop;  // asked before each batch; true ends it with what there is
};

/// Loss, accuracy and metrics over all of `loader`, in evaluation mode, without gradients. Batches
/// are moved to the device (data/to_device.h); the weights must be there already. Leaves the
/// module's mode as it was. Synchronises once, at the end.
DEMI_API Evaluation evaluate(const Network& network, const data::Loader& loader,
                             const EvaluateOptions& options);

}  // namespace demi::train
