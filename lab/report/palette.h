#pragma once

#include <array>
#include <cstddef>

namespace demi::report {

/// Colours of runs, in order; further runs repeat the colours with another dash pattern. On their
/// background each has the contrast of text (WCAG 2.1, 1.4.3: 4.5 to 1), and any two stay apart
/// under protanopia, deuteranopia and tritanopia as simulated by Machado, Oliveira and Fernandes
/// 2009. chart_test.cpp checks both.
struct Palette {
  const char* background;
  std::array<const char*, 7> runs;
};

inline constexpr Palette kLight = {
    "#ffffff", {"#1d5fd6", "#d14900", "#00483a", "#b0409f", "#5a1e08", "#737373", "#280048"}};
inline constexpr Palette kDark = {
    "#14171c", {"#5f9cff", "#ff7a33", "#7df5c4", "#d04fb8", "#ffe97a", "#9aa0a8", "#b08060"}};

/// Dash patterns, so that a curve is known without its colour.
inline constexpr std::array<const char*, 5> kDashes = {"", "7 3", "2 2.5", "9 3 2 3", "4 2"};

inline std::size_t colour_of(std::size_t run) { return run % kLight.runs.size(); }
inline const char* dash_of(std::size_t run) { return kDashes[run % kDashes.size()]; }

}  // namespace demi::report
