#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/commands.h"
#include "demi/tensor/device.h"
#include "lab/bench/step.h"
#include "lab/report/format.h"

namespace demi::cli {
namespace {

using report::format_count;
using report::format_fixed;

struct StepArguments {
  bench::StepBenchOptions bench;
  Output output;
};

std::string step_again(const bench::StepBenchOptions& options) {
  return fmt::format(
      "demi bench step --optimizer {} --parameters {} --tensors {} --rounds {} --device {}{}{}{}",
      options.optimizer, options.parameters, options.tensors, options.rounds, options.device,
      options.moments == "fp32" ? "" : " --moments " + options.moments,
      options.weight_mode == "master" ? "" : " --weight-mode " + options.weight_mode,
      options.peer ? "" : " --no-peer");
}

nlohmann::ordered_json step_json(const bench::StepBenchResult& r) {
  nlohmann::ordered_json json{{"optimizer", r.optimizer},
                              {"parameters", r.parameters},
                              {"tensors", r.tensors},
                              {"threads", r.threads},
                              {"device", r.device},
                              {"kernels", r.kernels},
                              {"ms", r.ms},
                              {"ms_spread", r.ms_spread},
                              {"bytes_per_parameter", r.bytes_per_parameter},
                              {"state_bytes_per_parameter", r.state_bytes_per_parameter},
                              {"held_bytes_per_parameter", r.held_bytes_per_parameter},
                              {"gb_per_s", r.gb_per_s},
                              {"copy_gb_per_s", r.copy_gb_per_s},
                              {"fraction_of_copy", r.fraction_of_copy},
                              {"in_place_gb_per_s", r.in_place_gb_per_s},
                              {"fraction_of_in_place", r.fraction_of_in_place},
                              {"host_us_40_tensors", r.host_us},
                              {"host_loop_us_40_tensors", r.host_loop_us}};
  if (r.torch_optim_ms > 0) {
    json["torch_optim_ms"] = r.torch_optim_ms;
    json["torch_optim_host_us_40_tensors"] = r.torch_optim_host_us;
    json["ratios"] = {{"torch_optim_over_demi", r.torch_optim_over_demi}};
  }
  return json;
}

report::Table step_table(const bench::StepBenchResult& r, int rounds) {
  report::Table table{.title = fmt::format("{} step, {} parameters in {} tensors", r.optimizer,
                                           format_count(r.parameters), format_count(r.tensors))};
  table.columns = {{.name = "optimizer", .align = report::Align::kLeft},
                   {.name = "step", .unit = "ms"},
                   {.name = "median above it", .unit = "%"},
                   {.name = "bytes per parameter"},
                   {.name = "bandwidth", .unit = "GB/s"},
                   {.name = "of a plain copy's", .unit = "%"},
                   {.name = "of a pass in place", .unit = "%"},
                   {.name = "40 small tensors", .unit = "us"},
                   {.name = "with scaler and clipping", .unit = "us"}};
  table.rows = {{"demi", format_fixed(r.ms, 2), format_fixed(100 * r.ms_spread, 0),
                 format_fixed(r.bytes_per_parameter, 0), format_fixed(r.gb_per_s, 1),
                 format_fixed(100 * r.fraction_of_copy, 0),
                 format_fixed(100 * r.fraction_of_in_place, 0), format_fixed(r.host_us, 1),
                 format_fixed(r.host_loop_us, 1)}};
  if (r.torch_optim_ms > 0)
    table.rows.push_back({"torch::optim", format_fixed(r.torch_optim_ms, 2), "", "", "", "", "",
                          format_fixed(r.torch_optim_host_us, 1), ""});
  table.notes = {
      fmt::format("Least of {} rounds; each step unscales, clips, checks for Inf and NaN, "
                  "and updates. A plain copy reaches {} GB/s, a pass that negates an array in "
                  "place {} GB/s.",
                  rounds, format_fixed(r.copy_gb_per_s, 1), format_fixed(r.in_place_gb_per_s, 1))};
  table.notes.push_back(fmt::format(
      "The optimizer holds {} bytes per parameter; with the weight, its 16-bit copy and gradient "
      "{}.",
      format_fixed(r.state_bytes_per_parameter, 1), format_fixed(r.held_bytes_per_parameter, 1)));
  if (r.torch_optim_ms > 0)
    table.notes.push_back(fmt::format("torch::optim takes {} x demi's time for the same work.",
                                      format_fixed(r.torch_optim_over_demi, 1)));
  table.notes.push_back(fmt::format(
      "The {} kernels were checked against the reference before: equal bits.", r.kernels));
  return table;
}

void bench_step(const StepArguments& a) {
  const bench::StepBenchResult result = bench::bench_step(a.bench);
  report::Table table = step_table(result, a.bench.rounds);
  table.notes.push_back(where_of(recipes::machine(pick_device(a.bench.device))));
  show_measurement(a.output, std::move(table), step_json(result), step_again(a.bench));
}

std::string optimizer_names() {
  std::string text;
  for (const std::string& name : bench::step_bench_optimizers())
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "step", "The optimizer step: time, bytes and bandwidth against LibTorch's");
  const auto a = std::make_shared<StepArguments>();
  command->add_option("--optimizer", a->bench.optimizer, "Optimizer to time: " + optimizer_names())
      ->capture_default_str();
  command->add_option("--parameters", a->bench.parameters, "Number of parameters in all")
      ->capture_default_str();
  command
      ->add_option("--tensors", a->bench.tensors, "Number of tensors the parameters are split into")
      ->capture_default_str();
  command->add_option("--rounds", a->bench.rounds, "Timed rounds; the fastest is reported")
      ->capture_default_str();
  command->add_option("--moments", a->bench.moments, "Storage of the moments: fp32, bf16 or int8")
      ->capture_default_str();
  command
      ->add_option(
          "--weight-mode", a->bench.weight_mode,
          "Weights: master (FP32 with bf16 copies), or bf16 with what is kept beside them: "
          "split, split24 or stochastic")
      ->capture_default_str();
  add_device_option(*command, a->bench.device);
  command->add_flag("!--no-peer", a->bench.peer, "Leave out LibTorch's optimizer");
  a->output.add_to(*command);
  command->callback([a] { bench_step(*a); });
}

}  // namespace demi::cli
