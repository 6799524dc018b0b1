#pragma once

#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// The name out of `known` with the smallest edit distance (Levenshtein 1966; a swap of neighbours
/// counts one, Damerau 1964) to `word`, letter case aside, or "" where even that one differs in
/// more than a third of the longer word (at least 2 edits are allowed).
DEMI_API std::string nearest(std::string_view word, std::span<const std::string> known);

/// "did you mean X? known: A, B, C", without the question where nothing is near.
DEMI_API std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace demi
