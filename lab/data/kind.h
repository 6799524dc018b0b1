#pragma once

#include <string_view>

namespace demi::data {

/// The kind of an example: of a data set's, and of a model's input. A text has a label; tokens are
/// a running text, cut into windows, each of whose tokens is predicted.
enum class Kind { rows, pictures, texts, tokens };

/// "rows", "pictures", "texts", "tokens".
constexpr std::string_view name_of(Kind kind) {
  return kind == Kind::rows       ? "rows"
         : kind == Kind::pictures ? "pictures"
         : kind == Kind::texts    ? "texts"
                                  : "tokens";
}

}  // namespace demi::data
