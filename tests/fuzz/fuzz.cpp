// For libFuzzer (scripts/fuzz.sh): one reader of a module, which $DEMI_FUZZ_TARGET names.
// DEMI_FUZZ_HEADER is the module's fuzz_testing.h, DEMI_FUZZ_NAMESPACE its namespace.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "demi/core/error.h"
#include DEMI_FUZZ_HEADER

namespace {

const demi::FuzzTarget& target() {
  const char* const asked = std::getenv("DEMI_FUZZ_TARGET");
  const auto& all = DEMI_FUZZ_NAMESPACE::kFuzzTargets;
  const auto* const found = std::find_if(std::begin(all), std::end(all), [&](const auto& one) {
    return asked != nullptr && std::string(asked) == one.name;
  });
  if (found != std::end(all)) return *found;
  for (const demi::FuzzTarget& one : all) std::puts(one.name);  // which there are
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t bytes) {
  static const demi::FuzzTarget& chosen = target();
  try {
    chosen.read({reinterpret_cast<const char*>(data), bytes});
  } catch (const demi::Error&) {
  }
  return 0;
}
