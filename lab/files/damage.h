#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::files {

/// The damage of a data set's file: all of it goes into the message of the DataError.
struct Damage {
  std::string_view where;      // module.function
  std::filesystem::path file;  // the damaged one
  std::string_view what;       // "the magic number is wrong"
  std::string place;           // "offset 0", "line 7"; empty: the whole file
  std::string found;           // there
  std::string expected;        // in its place
  /// The advice to the user.
  std::string_view advice = "get an undamaged copy of the file";
};

/// Throws the DataError.
[[noreturn]] DEMI_API void report_damage(const Damage& damage);

/// Called with each damage. Readers with another one than report_damage skip what is damaged and
/// continue, so that all of it is found in one pass.
using DamageReport = std::function<void(const Damage&)>;

}  // namespace demi::files
