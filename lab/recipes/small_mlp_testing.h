#pragma once

#include "lab/settings/config.h"
#include "lab/settings/recipe.h"

namespace demi::recipes {

// Three layers of 8 by 8, 8 batches of 8 rows, one epoch.
inline settings::Config small_mlp() {
  settings::Config config = settings::find_recipe("mlp").config;
  for (const char* name : {"in", "out", "batches", "batch-size"})
    settings::set(config, name, "8", name);
  settings::set(config, "epochs", "1", "epochs");
  return config;
}

}  // namespace demi::recipes
