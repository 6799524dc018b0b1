#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace demi::data {

/// What is wrong with a file of a data set: all of it goes into the message of the DataError.
struct Damage {
  std::string_view where;      // module.function
  std::filesystem::path file;  //
  std::string_view what;       // "the magic number is wrong"
  std::string place;           // "offset 0", "line 7"; empty: the whole file
  std::string found;           //
  std::string expected;        //
  std::string_view advice = "get an undamaged copy of the file";
};

[[noreturn]] void report_damage(const Damage& damage);

}  // namespace demi::data
