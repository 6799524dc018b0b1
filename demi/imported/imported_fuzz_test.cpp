#include "demi/core/fuzz_testing.h"
#include "demi/imported/fuzz_testing.h"

namespace demi::imported {
namespace {

TEST(ImportedFuzz, EveryInputEndsInAValueOrAnError) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 1500);
}

}  // namespace
}  // namespace demi::imported
