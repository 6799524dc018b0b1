#include "demi/core/nearest.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace demi {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Optimal string alignment: three rows of the usual table.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t differs = lower(a[i - 1]) != lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + differs});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> known) {
  std::string best;
  std::size_t best_distance = static_cast<std::size_t>(-1);
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(word, name);
    const std::size_t allowed = std::max<std::size_t>(2, std::max(word.size(), name.size()) / 3);
    if (distance <= allowed &&
        distance < std::min(best_distance, std::max(word.size(), name.size()))) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> known) {
  std::string text;
  const std::string near = nearest(word, known);
  if (!near.empty()) text = "did you mean " + near + "? ";
  text += "known: ";
  for (std::size_t i = 0; i < known.size(); ++i) text += (i ? ", " : "") + known[i];
  return text;
}

}  // namespace demi
