#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::lab {

/// The names of the entries of a table, in its order.
template <class Entry>
std::vector<std::string> names_of(std::span<const Entry> entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.emplace_back(entry.name);
  return names;
}

/// The entry of that name. Throws UsageError with the nearest right name.
template <class Entry>
const Entry& find_by_name(std::span<const Entry> entries, std::string_view name,
                          std::string_view where, std::string_view what) {
  for (const Entry& entry : entries)
    if (entry.name == name) return entry;
  refuse({.where = where,
          .what = what,
          .seen = name,
          .advice = did_you_mean(name, names_of(entries))});
}

}  // namespace demi::lab
