#pragma once

#include <vector>

#include "demi/core/export.h"
#include "demi/monitor/recipe_what_if.h"

namespace demi::monitor {

/// Says of each harmed layer where its error comes from. `shares`: of each layer the squared errors
/// that the recipe gives it in each of the layers alone; none: not measured. `harmed_in_region`:
/// whether a region without recipe harms the layer as well.
///
/// The cause is the layer that has half of the sum or more, and the worst of its products that can
/// reach the harmed layer: its own weight gradient, its output, the input gradient of one behind
/// it.
DEMI_API void find_causes(RecipeWhatIfResult& result,
                          const std::vector<std::vector<double>>& shares,
                          const std::vector<bool>& harmed_in_region);

}  // namespace demi::monitor
