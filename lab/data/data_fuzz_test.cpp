#include "demi/core/fuzz_testing.h"
#include "lab/data/fuzz_testing.h"

namespace demi::data {
namespace {

TEST(DataFuzz, EveryInputEndsInAValueOrAnError) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 1000);
}

}  // namespace
}  // namespace demi::data
