#include "demi/core/fuzz_testing.h"
#include "lab/recipes/fuzz_testing.h"

namespace demi::recipes {
namespace {

TEST(RecipesFuzz, EveryInputEndsInAValueOrAnError) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 1000);
}

}  // namespace
}  // namespace demi::recipes
