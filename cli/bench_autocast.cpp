#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "lab/bench/autocast.h"
#include "lab/bench/reductions.h"

namespace demi::cli {
namespace {

void print_json(const bench::AutocastReport& report, const bench::ReductionsReport& fp32) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const auto& op : report.ops)
    ops.push_back({{"name", op.name},
                   {"plain_ns", op.plain_ns},
                   {"demi_ns", op.demi_ns},
                   {"libtorch_ns", op.libtorch_ns},
                   {"demi_over_plain", op.demi_over_plain},
                   {"libtorch_over_plain", op.libtorch_over_plain}});
  const nlohmann::ordered_json all{
      {"ops", ops},
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
  std::printf("%s\n", all.dump(2).c_str());
}

void print_table(const bench::AutocastReport& report, const bench::ReductionsReport& fp32) {
  std::printf("Nanoseconds a call, 2 x 16 by 16 x 16, one thread, smallest of several rounds\n\n");
  std::printf("%-18s %9s %9s %9s %12s %15s\n", "op", "plain", "demi", "libtorch", "demi/plain",
              "libtorch/plain");
  for (const auto& op : report.ops)
    std::printf("%-18s %9.0f %9.0f %9.0f %12.3f %15.3f\n", op.name.c_str(), op.plain_ns, op.demi_ns,
                op.libtorch_ns, op.demi_over_plain, op.libtorch_over_plain);
  std::printf("\ncasts in a steady training step: %lld, of weights: %lld\n",
              static_cast<long long>(report.casts_per_step),
              static_cast<long long>(report.weight_casts_per_step));
  std::printf(
      "its forward and backward (3 x Linear %d, batch %d): %.1f ms, with bf16 parameters %.1f ms, "
      "ratio %.3f\n",
      report.step.width, report.step.batch, report.step.demi_ms, report.step.bf16_parameters_ms,
      report.step.demi_over_bf16_parameters);
  std::printf(
      "policy fp32_reductions on one attention block: %.2f ms against %.2f, error to FP64 %.2e "
      "against %.2e\n",
      fp32.policy_ms, fp32.default_ms, fp32.policy_error, fp32.default_error);
}

}  // namespace

void add_bench_autocast(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "autocast", "Host cost of an op in an autocast region over the plain op");
  const auto options = std::make_shared<bench::AutocastOptions>();
  const auto json = std::make_shared<bool>(false);
  command->add_option("--rounds", options->rounds, "Rounds of each way; the smallest counts")
      ->check(CLI::PositiveNumber);
  command->add_option("--iterations", options->iterations, "Calls in a round")
      ->check(CLI::PositiveNumber);
  command->add_option("--width", options->width, "Of the perceptron whose step is timed")
      ->check(CLI::PositiveNumber);
  command->add_option("--batch", options->batch, "Of that step")->check(CLI::PositiveNumber);
  command->add_flag("--json", *json, "One JSON object to stdout");
  command->callback([options, json] {
    const auto report = bench::measure_autocast(*options);
    const auto fp32 = bench::measure_fp32_reductions();
    *json ? print_json(report, fp32) : print_table(report, fp32);
  });
}

}  // namespace demi::cli
