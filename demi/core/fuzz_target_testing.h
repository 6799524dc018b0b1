#pragma once

#include <string_view>

namespace demi {

/// A reader of bytes that other programs wrote, for tests and for libFuzzer (scripts/fuzz.sh). It
/// returns, or throws one of demi's errors; whatever else it does is a fault.
struct FuzzTarget {
  const char* name;  // of its folder in tests/fuzz/corpus
  void (*read)(std::string_view bytes);
};

}  // namespace demi
