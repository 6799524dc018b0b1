#pragma once

#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// The name in `known` with the smallest edit distance to `word`, ignoring letter case (Levenshtein
/// 1966; a swap of neighbours counts as one edit, Damerau 1964). "" if even that name differs in
/// more than a third of the longer word; 2 edits are always allowed.
DEMI_API std::string nearest(std::string_view word, std::span<const std::string> known);

/// "did you mean X? known: A, B, C", without the question if no name is near.
DEMI_API std::string did_you_mean(std::string_view word, std::span<const std::string> known);

}  // namespace demi
