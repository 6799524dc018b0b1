#include "demi/core/fuzz_testing.h"
#include "lab/huggingface/fuzz_testing.h"

namespace demi::huggingface {
namespace {

TEST(HuggingFaceFuzz, EveryInputEndsInAValueOrAnError) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 1000);
}

}  // namespace
}  // namespace demi::huggingface
