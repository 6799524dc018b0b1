#pragma once

#include "lab/models/model_info.h"

// What each model brings of itself: NAME_model() for each line of list.h.
namespace demi::models {

#define MODEL(name) ModelInfo name##_model();
#include "lab/models/list.h"
#undef MODEL

}  // namespace demi::models
