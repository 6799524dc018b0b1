#pragma once

#include "demi/train/network.h"
#include "lab/models/model_info.h"

namespace demi::models {

/// A network for pictures: `options` with the sizes that are given.
template <typename Holder, typename Options>
train::Network make_for_pictures(const ModelOptions& given, Options options = {}) {
  options.channels = given.channels.value_or(options.channels);
  options.classes = given.classes.value_or(options.classes);
  if constexpr (requires { options.recompute; }) options.recompute = given.recompute;
  if constexpr (requires { options.size; }) options.size = given.size.value_or(options.size);
  return train::network(Holder(options));
}

}  // namespace demi::models
