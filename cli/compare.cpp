#include "cli/commands.h"

namespace demi::cli {

void add_compare(CLI::App& app) {
  app.add_subcommand("compare",
                     "Train the same model in FP32 and in mixed precision, side by side");
}

}  // namespace demi::cli
