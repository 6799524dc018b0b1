#pragma once

#include <ATen/core/Tensor.h>

namespace demi::distributed {
class ProcessGroup;
}

namespace demi::batch_norm {

using distributed::ProcessGroup;

// Which batch normalisations are synchronised, and over which group, by their running mean: a
// layer's forward passes it to the operator, and no two layers share one. Of the whole process;
// from any thread.

/// From now on over this group, whatever it was before. Whether that changed anything.
bool synchronise(const at::Tensor& running_mean, ProcessGroup& group);
/// Null: it is not synchronised.
ProcessGroup* group_of(const at::Tensor& running_mean);
/// Whether a layer that lives is synchronised over the group.
bool has_layers(const ProcessGroup& group);
/// The group ends.
void forget_layers_of(const ProcessGroup& group);

}  // namespace demi::batch_norm
