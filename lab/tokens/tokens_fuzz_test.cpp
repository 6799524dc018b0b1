#include "demi/core/fuzz_testing.h"
#include "lab/tokens/fuzz_testing.h"

namespace demi::tokens {
namespace {

TEST(TokensFuzz, EveryInputEndsInAValueOrAnError) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 1000);
}

}  // namespace
}  // namespace demi::tokens
