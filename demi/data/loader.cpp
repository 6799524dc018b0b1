#include "demi/data/loader.h"

#include "demi/core/error.h"

namespace demi::data {

at::Tensor Loader::choice(int64_t, int64_t) const { return {}; }

Batch Loader::chosen(const at::Tensor&) const {
  refuse({.where = "data.Loader",
          .what = "the loader makes no batch of a choice",
          .seen = "a loader without choices",
          .accepted = "one whose choice() is defined",
          .advice = "call batch()"});
}

}  // namespace demi::data
