#pragma once

#include <string_view>

namespace demi::data {

/// What one example is: what a data set holds, and what a model reads.
enum class Kind { rows, pictures, texts };

/// "rows", "pictures", "texts".
constexpr std::string_view name_of(Kind kind) {
  return kind == Kind::rows ? "rows" : kind == Kind::pictures ? "pictures" : "texts";
}

}  // namespace demi::data
