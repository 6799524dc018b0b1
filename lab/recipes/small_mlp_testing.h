#pragma once

#include "lab/recipes/config.h"
#include "lab/recipes/recipe.h"

namespace demi::recipes {

// Three layers of 8 by 8, 8 batches of 8 rows, one epoch.
inline Config small_mlp() {
  Config config = find_recipe("mlp").config;
  for (const char* name : {"in", "out", "batches", "batch-size"}) set(config, name, "8", name);
  set(config, "epochs", "1", "epochs");
  return config;
}

}  // namespace demi::recipes
