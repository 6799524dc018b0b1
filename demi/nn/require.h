#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "demi/core/error.h"

namespace demi::nn {

/// Throws UsageError unless `holds`.
template <class Value>
void require(std::string_view where, bool holds, std::string_view what, const Value& seen,
             const std::string& accepted) {
  if (holds) return;
  std::ostringstream text;
  text << seen;
  refuse({.where = where, .what = what, .seen = text.str(), .accepted = accepted});
}

inline void require_size(std::string_view where, std::string_view option, std::int64_t value) {
  require(where, value >= 1, std::string(option) + " is too small", value, "1 or more");
}

inline void require_probability(std::string_view where, std::string_view option, double value) {
  require(where, value >= 0 && value <= 1, std::string(option) + " is no probability", value,
          "0 to 1");
}

/// `what`: "the input".
inline void require_floating(std::string_view where, std::string_view what, const at::Tensor& x) {
  require(where, x.defined() && x.is_floating_point(),
          std::string(what) + " is no floating point tensor",
          x.defined() ? c10::toString(x.scalar_type()) : "no tensor", "fp64, fp32, fp16, bf16");
}

/// An input whose last dimension is that of a token's features.
inline void require_features(std::string_view where, const at::Tensor& x, std::int64_t width) {
  require_floating(where, "the input", x);
  require(where, x.dim() >= 1 && x.size(-1) == width, "the input does not fit", x.sizes(),
          "(*, " + std::to_string(width) + ")");
}

}  // namespace demi::nn
