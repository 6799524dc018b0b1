#pragma once

#include <ATen/core/Tensor.h>

namespace demi::distributed {
class ProcessGroup;
}

namespace demi::batch_norm {

using distributed::ProcessGroup;

// The batch normalisations of the process that are synchronised, and their groups, by running mean:
// a layer's forward passes it to the operator, and no two layers share one. From any thread.

/// Synchronises the layer over this group from now on. Returns whether that changed anything.
bool synchronise(const at::Tensor& running_mean, ProcessGroup& group);
/// Null: it is not synchronised.
ProcessGroup* group_of(const at::Tensor& running_mean);
/// Whether a layer that lives is synchronised over the group.
bool has_layers(const ProcessGroup& group);
/// The group ends.
void forget_layers_of(const ProcessGroup& group);

}  // namespace demi::batch_norm
