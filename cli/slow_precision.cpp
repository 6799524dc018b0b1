#include "cli/slow_precision.h"

#include <set>
#include <string>

#include "cli/output.h"
#include "lab/recipes/machine.h"

namespace demi::cli {

void note_slow_precisions(const std::vector<recipes::RunSpec>& runs, c10::Device device) {
  std::vector<train::Precision> used;
  if (runs.empty()) used.push_back(train::mixed_precision_of(device.type()));
  for (const recipes::RunSpec& run : runs) used.push_back(run.precision);
  std::set<std::string> said{""};
  for (const train::Precision& precision : used) {
    const std::string warning = recipes::slow_precision_warning(precision, device);
    if (said.insert(warning).second) note(warning);
  }
}

}  // namespace demi::cli
