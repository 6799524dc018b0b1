#include "cli/commands.h"

#include <vector>

#include "cli/command_tree.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::cli {

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "Device: auto, cpu, cuda or cuda:N")
      ->capture_default_str();
}

void require_one_of(CLI::App& app) {
  app.callback([&app] {
    if (!app.get_subcommands().empty()) return;
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
    const std::string first =
        app.get_parent() ? "" : "a first training, in seconds: demi train mlp --mp --steps 10; ";
    throw UsageError({.where = app.get_name(),
                      .what = "a command is missing",
                      .advice = first + "what each does: " + full_name(app) + " --help; " +
                                did_you_mean("", names)});
  });
}

void add_commands(CLI::App& app) {
  require_one_of(app);
  add_compare(app);
  add_train(app);
  add_eval(app);
  add_predict(app);
  add_generate(app);
  add_export(app);
  add_inspect(app);
  add_data(app);
  add_policy(app);
  add_number(app);
  add_doctor(app);
  add_profile(app);
  // `demi bench WHAT`: each measurement is a subcommand of this one.
  CLI::App* bench = app.add_subcommand("bench", "Check against a reference, then time");
  require_one_of(*bench);
  add_bench_recipe(*bench);
  add_bench_model(*bench);
  add_bench_matmul(*bench);
  add_bench_memory(*bench);
  add_bench_autocast(*bench);
  add_bench_step(*bench);
  add_completion(app);
  add_manual(app);
}

}  // namespace demi::cli
