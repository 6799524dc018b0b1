#pragma once

#include <string>
#include <vector>

#include "demi/imported/graph.h"
#include "demi/imported/model_state.h"

namespace demi::imported {

/// Throws UsageError, with module and Python line, for a weight to be trained that every operation
/// of the training graph reads under torch.no_grad(), and none writes to: a reentrant checkpoint,
/// which the exporter takes for such a part, would silently train nothing.
void refuse_weights_without_gradients(const Program& program,
                                      const std::vector<StateTensor>& state);

/// The places of a decomposed graph's operations at which Python may stop a gradient:
/// run_decompositions() writes aten::alias for detach().
std::vector<std::string> aliases_of_trained(const Program& program,
                                            const std::vector<StateTensor>& state);

}  // namespace demi::imported
