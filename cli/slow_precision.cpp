#include "cli/slow_precision.h"

#include "cli/output.h"

namespace demi::cli {

void note_slow_precisions(const std::vector<train::RunSpec>& runs, c10::Device device) {
  std::vector<train::Precision> used;
  if (runs.empty()) used.push_back(train::mixed_precision_of(device.type()));
  for (const train::RunSpec& run : runs) used.push_back(run.precision);
  for (const train::Precision& precision : used) {
    const std::string warning = train::slow_precision_warning(precision, device);
    if (!warning.empty()) note(warning);
  }
}

}  // namespace demi::cli
