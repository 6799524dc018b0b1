#include "demi/core/fuzz_testing.h"
#include "lab/report/fuzz_testing.h"

namespace demi::report {
namespace {

TEST(ReportFuzz, EveryInputEndsInAValueOrAnError) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 3000);
}

}  // namespace
}  // namespace demi::report
