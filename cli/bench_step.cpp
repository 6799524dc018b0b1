#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "lab/bench/step.h"

namespace demi::cli {
namespace {

nlohmann::ordered_json json_of(const bench::StepBenchResult& r) {
  nlohmann::ordered_json json{{"optimizer", r.optimizer},
                              {"parameters", r.parameters},
                              {"tensors", r.tensors},
                              {"threads", r.threads},
                              {"device", r.device},
                              {"kernels", r.kernels},
                              {"ms", r.ms},
                              {"ms_spread", r.ms_spread},
                              {"bytes_per_parameter", r.bytes_per_parameter},
                              {"gb_per_s", r.gb_per_s},
                              {"copy_gb_per_s", r.copy_gb_per_s},
                              {"fraction_of_copy", r.fraction_of_copy},
                              {"host_us_40_tensors", r.host_us},
                              {"host_loop_us_40_tensors", r.host_loop_us}};
  if (r.torch_optim_ms > 0) {
    json["torch_optim_ms"] = r.torch_optim_ms;
    json["torch_optim_host_us_40_tensors"] = r.torch_optim_host_us;
    json["ratios"] = {{"torch_optim_over_demi", r.torch_optim_over_demi}};
  }
  return json;
}

void print(const bench::StepBenchResult& r) {
  std::printf("%-30s %s, %lld parameters in %lld tensors, %d threads, %s kernels\n", "step",
              r.optimizer.c_str(), static_cast<long long>(r.parameters),
              static_cast<long long>(r.tensors), r.threads, r.kernels.c_str());
  std::printf("%-30s equal bits\n", "checked against the reference");
  std::printf("%-30s %.2f ms (median + %.0f %%)\n", "clipped, scaled, checked step", r.ms,
              100 * r.ms_spread);
  std::printf("%-30s %.0f\n", "bytes per parameter", r.bytes_per_parameter);
  std::printf("%-30s %.1f GB/s, %.0f %% of a plain copy's %.1f GB/s\n", "bandwidth", r.gb_per_s,
              100 * r.fraction_of_copy, r.copy_gb_per_s);
  std::printf("%-30s %.1f us, with scaler and clipping %.1f us\n", "host cost of 40 small tensors",
              r.host_us, r.host_loop_us);
  if (r.torch_optim_ms == 0) return;
  std::printf("%-30s %.2f ms, %.1f x demi's; 40 small tensors %.1f us\n", "torch::optim, same work",
              r.torch_optim_ms, r.torch_optim_over_demi, r.torch_optim_host_us);
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "step", "The optimizer step: time, bytes and bandwidth against LibTorch's");
  auto options = std::make_shared<bench::StepBenchOptions>();
  auto json = std::make_shared<bool>(false);
  command
      ->add_option("--optimizer", options->optimizer,
                   "sgd, sgd-momentum, adam, adamw, lamb or lion")
      ->capture_default_str();
  command->add_option("--parameters", options->parameters, "elements in all")
      ->capture_default_str();
  command->add_option("--tensors", options->tensors, "that they are spread over")
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "the least time of them counts")
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_flag("!--no-peer", options->peer, "without LibTorch's optimizer beside it");
  command->add_flag("--json", *json, "one JSON object");
  command->callback([options, json] {
    const bench::StepBenchResult result = bench::bench_step(*options);
    if (*json) {
      std::printf("%s\n", json_of(result).dump().c_str());
      return;
    }
    print(result);
    std::printf(
        "again: demi bench step --optimizer %s --parameters %lld --tensors %lld --rounds %d "
        "--device "
        "%s\n",
        options->optimizer.c_str(), static_cast<long long>(options->parameters),
        static_cast<long long>(options->tensors), options->rounds, options->device.c_str());
  });
}

}  // namespace demi::cli
