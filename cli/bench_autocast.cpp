#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/option_values.h"
#include "lab/bench/autocast.h"
#include "lab/report/format.h"

namespace demi::cli {
namespace {

using report::format_fixed;

struct AutocastArguments {
  bench::AutocastBenchOptions bench;
  Output output;
};

std::string autocast_again(const bench::AutocastBenchOptions& options) {
  return fmt::format("demi bench autocast --rounds {} --iterations {} --width {} --batch {}",
                     options.rounds, options.iterations, options.width, options.batch);
}

nlohmann::ordered_json autocast_json(const bench::AutocastReport& report,
                                     const bench::ReductionsReport& fp32) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const auto& op : report.ops)
    ops.push_back({{"name", op.name},
                   {"plain_ns", op.plain_ns},
                   {"demi_ns", op.demi_ns},
                   {"libtorch_ns", op.libtorch_ns},
                   {"demi_over_plain", op.demi_over_plain},
                   {"libtorch_over_plain", op.libtorch_over_plain}});
  return {{"ops", ops},
          {"casts_per_step", report.casts_per_step},
          {"weight_casts_per_step", report.weight_casts_per_step},
          {"step",
           {{"width", report.step.width},
            {"batch", report.step.batch},
            {"demi_ms", report.step.demi_ms},
            {"bf16_parameters_ms", report.step.bf16_parameters_ms},
            {"demi_over_bf16_parameters", report.step.demi_over_bf16_parameters}}},
          {"fp32_reductions",
           {{"default_ms", fp32.default_ms},
            {"policy_ms", fp32.policy_ms},
            {"default_error", fp32.default_error},
            {"policy_error", fp32.policy_error}}}};
}

report::Table autocast_table(const AutocastArguments& a, const bench::AutocastReport& report,
                             const bench::ReductionsReport& fp32) {
  report::Table table{.title = "an op in an autocast region, 2 x 16 by 16 x 16, one thread"};
  table.columns = {{.name = "op", .align = report::Align::kLeft},
                   {.name = "plain", .unit = "ns a call"},
                   {.name = "demi", .unit = "ns a call"},
                   {.name = "libtorch", .unit = "ns a call"},
                   {.name = "demi over plain"},
                   {.name = "libtorch over plain"}};
  for (const auto& op : report.ops)
    table.rows.push_back({op.name, format_fixed(op.plain_ns, 0), format_fixed(op.demi_ns, 0),
                          format_fixed(op.libtorch_ns, 0), format_fixed(op.demi_over_plain, 3),
                          format_fixed(op.libtorch_over_plain, 3)});
  const bench::AutocastStep& step = report.step;
  table.notes = {
      fmt::format("Least of {} rounds of {} calls (conv2d: a tenth of them).", a.bench.rounds,
                  a.bench.iterations),
      fmt::format("A steady training step of 3 x Linear {}, batch {}, casts {} tensors, {} of them "
                  "weights. Forward and backward take {:.1f} ms, with bf16 parameters {:.1f} ms: "
                  "ratio {:.3f}.",
                  step.width, step.batch, report.casts_per_step, report.weight_casts_per_step,
                  step.demi_ms, step.bf16_parameters_ms, step.demi_over_bf16_parameters),
      fmt::format("The policy fp32_reductions takes {:.2f} ms on one attention block, the default "
                  "{:.2f} ms; their errors to FP64 are {:.2e} and {:.2e}.",
                  fp32.policy_ms, fp32.default_ms, fp32.policy_error, fp32.default_error),
      where_of(recipes::machine(c10::kCPU))};
  return table;
}

void bench_autocast(const AutocastArguments& a) {
  const bench::AutocastReport report = bench::measure_autocast(a.bench);
  const bench::ReductionsReport fp32 = bench::measure_fp32_reductions();
  show_measurement(a.output, autocast_table(a, report, fp32), autocast_json(report, fp32),
                   autocast_again(a.bench));
}

}  // namespace

void add_bench_autocast(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "autocast", "Host cost of an op in an autocast region over the plain op");
  const auto a = std::make_shared<AutocastArguments>();
  const auto add = [&](const char* name, int& value, const char* help) {
    command->add_option(name, value, help)->check(whole_number(1))->capture_default_str();
  };
  add("--rounds", a->bench.rounds, "Timed rounds of each variant; the fastest is reported");
  add("--iterations", a->bench.iterations, "Calls in a round");
  add("--width", a->bench.width, "Width of the perceptron's layers in the timed step");
  add("--batch", a->bench.batch, "Batch size of the timed step");
  a->output.add_to(*command);
  command->callback([a] { bench_autocast(*a); });
}

}  // namespace demi::cli
