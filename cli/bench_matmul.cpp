#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/option_values.h"
#include "cli/status_line.h"
#include "demi/core/atomic_file.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/bench/layer_products.h"
#include "lab/bench/matmul.h"
#include "lab/report/format.h"
#include "lab/report/html_page.h"
#include "lab/results/machine_json.h"
#include "lab/shell_word.h"

namespace demi::cli {
namespace {

constexpr const char* kLayersFlag = "--layers{all}";  // CLI11: the value of a bare flag

struct MatmulArguments {
  bench::MatmulBenchOptions bench;
  bench::LayerProductsOptions layers;
  std::string device = "auto", html, layer;
  Output output;
};

std::string matmul_again(const MatmulArguments& a) {
  std::string line = "demi bench matmul";
  if (a.layer.empty()) {
    line +=
        fmt::format(" --sizes {} --iterations {} --seconds {} --device {}",
                    fmt::join(a.bench.sizes, ","), a.bench.iterations, a.bench.seconds, a.device);
  } else {
    line += fmt::format(" --layers={} --rounds {}", lab::shell_word(a.layer), a.layers.rounds);
  }
  if (!a.bench.dtypes.empty()) line += fmt::format(" --dtypes {}", fmt::join(a.bench.dtypes, ","));
  return line;
}

nlohmann::ordered_json matmul_json(const MatmulArguments& a,
                                   const bench::MatmulBenchResult& result) {
  nlohmann::ordered_json json;
  json["rows"] = nlohmann::ordered_json::array();
  for (const bench::MatmulRow& row : result.rows)
    json["rows"].push_back({{"dtype", row.kind.dtype},
                            {"size", row.size},
                            {"in_region", row.kind.in_region},
                            {"seconds", row.seconds},
                            {"tflops", row.tflops},
                            {"speedup", row.speedup},
                            {"of_peak", row.of_peak},
                            {"iterations", row.iterations},
                            {"error", row.error}});
  json["left_out"] = nlohmann::ordered_json::array();
  for (const bench::MatmulLeftOut& one : result.left_out)
    json["left_out"].push_back({{"dtype", one.kind.dtype},
                                {"size", one.size},
                                {"in_region", one.kind.in_region},
                                {"foreseen_seconds", one.foreseen_seconds}});
  json["peak_tflops"] = result.peak_tflops;
  json["copy_gb_per_s"] = result.copy_gb_per_s;
  json["iterations"] = a.bench.iterations;
  json["machine"] = results::json_of(result.machine);
  return json;
}

std::string way_of(const bench::ProductKind& kind) {
  if (kind.dtype == "fp32" || kind.dtype == "tf32") return "plain";
  return kind.in_region ? "in a region" : "plain";
}

report::Table matmul_table(const MatmulArguments& a, const bench::MatmulBenchResult& result) {
  report::Table table{.title = "products of square matrices: " + recipes::title(result.machine)};
  table.columns = {{.name = "size"},
                   {.name = "dtype", .align = report::Align::kLeft},
                   {.name = "product", .align = report::Align::kLeft},
                   {.name = "time", .unit = "ms"},
                   {.name = "rate", .unit = "TFLOP/s"},
                   {.name = "speedup"},
                   {.name = "of the roofline"},
                   {.name = "products timed"}};
  for (const bench::MatmulRow& row : result.rows)
    table.rows.push_back({report::format_count(row.size), row.kind.dtype, way_of(row.kind),
                          report::format_fixed(1e3 * row.seconds, 3),
                          report::format_fixed(row.tflops, 3), report::format_factor(row.speedup),
                          report::format_percent(row.of_peak, 0),
                          report::format_count(row.iterations)});
  std::string peaks;
  for (const auto& [dtype, tflops] : result.peak_tflops)
    peaks += fmt::format("{}{} {:.3f}", peaks.empty() ? "" : ", ", dtype, tflops);
  table.notes = {
      fmt::format("Medians of {} products, fewer where {} s were over, the kinds in turn, after "
                  "each was compared with FP64. FP32 is without TF32.",
                  a.bench.iterations, a.bench.seconds),
      fmt::format("The roofline is of this run: the fastest product of the dtype (TFLOP/s: {}), or "
                  "what a plain copy's {:.1f} GB/s let through.",
                  peaks, result.copy_gb_per_s),
      where_of(result.machine)};
  for (const bench::MatmulLeftOut& one : result.left_out)
    table.notes.push_back(fmt::format(
        "{} {} of size {} is left out: one product was foreseen to take {:.2g} s (--seconds).",
        one.kind.dtype, way_of(one.kind), one.size, one.foreseen_seconds));
  return table;
}

report::Chart matmul_chart(const bench::MatmulBenchResult& result) {
  report::Chart chart{.title = "Rate of a product",
                      .x = {.label = "size", .scale = report::Scale::kLog2},
                      .y = {.label = "rate", .unit = "TFLOP/s"}};
  for (const bench::MatmulRow& row : result.rows) {
    std::string name = row.kind.dtype;
    if (row.kind.in_region) name += " in a region";
    auto series = std::ranges::find(chart.series, name, &report::Series::name);
    if (series == chart.series.end())
      series = chart.series.insert(chart.series.end(), report::Series{.name = name});
    series->x.push_back(static_cast<double>(row.size));
    series->y.push_back(row.tflops);
  }
  return chart;
}

void write_html(const MatmulArguments& a, const report::Table& table,
                const bench::MatmulBenchResult& result) {
  const report::Page page{.title = "demi bench matmul",
                          .subtitle = recipes::describe(result.machine),
                          .sections = {{"Rates", {matmul_chart(result)}},
                                       {"Figures", {table}},
                                       {"Again", {report::Code{matmul_again(a)}}}}};
  write_atomically(a.html, report::to_html(page), "name another file with --html");
  note("plot: " + a.html);
}

void bench_squares(MatmulArguments& a) {
  a.bench.on_part = PartProgress();
  const bench::MatmulBenchResult result = bench::bench_matmul(a.bench, pick_device(a.device));
  const report::Table table = matmul_table(a, result);
  show_measurement(a.output, table, matmul_json(a, result), matmul_again(a));
  if (!a.html.empty()) write_html(a, table, result);
}

nlohmann::ordered_json layers_json(const std::vector<bench::LayerProductsRow>& rows,
                                   const recipes::Machine& machine) {
  nlohmann::ordered_json json;
  json["layers"] = nlohmann::ordered_json::array();
  for (const bench::LayerProductsRow& row : rows)
    json["layers"].push_back({{"op", row.layer},
                              {"dtype", row.dtype},
                              {"fp32_ms", row.fp32_ms},
                              {"demi_ms", row.demi_ms},
                              {"libtorch_ms", row.libtorch_ms},
                              {"speedup", row.speedup()},
                              {"libtorch_over_demi", row.libtorch_over_demi()},
                              {"error", row.error}});
  json["machine"] = results::json_of(machine);
  return json;
}

report::Table layers_table(const MatmulArguments& a,
                           const std::vector<bench::LayerProductsRow>& rows,
                           const recipes::Machine& machine) {
  report::Table table{.title = "layers in a region, forward and backward"};
  table.columns = {{.name = "layer", .align = report::Align::kLeft},
                   {.name = "dtype", .align = report::Align::kLeft},
                   {.name = "fp32", .unit = "ms"},
                   {.name = "demi", .unit = "ms"},
                   {.name = "libtorch", .unit = "ms"},
                   {.name = "speedup"},
                   {.name = "libtorch over demi"}};
  for (const bench::LayerProductsRow& row : rows)
    table.rows.push_back(
        {row.layer, row.dtype, report::format_fixed(row.fp32_ms, 3),
         report::format_fixed(row.demi_ms, 3), report::format_fixed(row.libtorch_ms, 3),
         report::format_factor(row.speedup()), report::format_factor(row.libtorch_over_demi())});
  table.notes = {fmt::format("Medians of {} rounds in turn, after results and gradients were "
                             "compared with FP32's. LibTorch's products are those of "
                             "DEMI_KERNELS=aten.",
                             a.layers.rounds),
                 where_of(machine)};
  return table;
}

void bench_layers(MatmulArguments& a) {
  const c10::Device device = pick_device(a.device == "auto" ? "cpu" : a.device);
  if (!device.is_cpu() || !a.html.empty())
    throw UsageError({.where = "--layers",
                      .what = "layers are compared on a CPU, as a table: elsewhere demi's products "
                              "are LibTorch's",
                      .advice = "leave out --device and --html"});
  if (a.layer != "all") a.layers.only = a.layer;
  if (!a.bench.dtypes.empty()) a.layers.dtypes = a.bench.dtypes;
  a.layers.on_part = PartProgress();
  const std::vector<bench::LayerProductsRow> rows = bench::bench_layer_products(a.layers);
  const recipes::Machine machine = recipes::machine(device);
  show_measurement(a.output, layers_table(a, rows, machine), layers_json(rows, machine),
                   matmul_again(a));
}

}  // namespace

void add_bench_matmul(CLI::App& bench) {
  auto* command = bench.add_subcommand(
      "matmul", "Products of matrices by dtype and size, against FP32 and the roofline");
  const auto a = std::make_shared<MatmulArguments>();
  command->add_option("--sizes", a->bench.sizes, "Rows and columns of the matrices, by comma")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--dtypes", a->bench.dtypes,
                   "Of fp32, tf32 (CUDA), fp16 and bf16, by comma; fp32 is always timed [all]")
      ->delimiter(',');
  command->add_option("--iterations", a->bench.iterations, "Products of each row that are timed")
      ->capture_default_str();
  command
      ->add_option("--seconds", a->bench.seconds, "Time after which a row ends with fewer products")
      ->capture_default_str();
  add_device_option(*command, a->device);
  command->add_option("--html", a->html, "File for a page with the rates as a plot");
  command
      ->add_flag(kLayersFlag, a->layer,
                 "In place of square products: linear layers and convolutions in a region on a "
                 "CPU, demi's against LibTorch's and FP32; --layers=TEXT: those with that name")
      ->type_name("TEXT");
  command->add_option("--rounds", a->layers.rounds, "Timed rounds of --layers")
      ->check(whole_number(1))
      ->capture_default_str();
  a->output.add_to(*command);
  command->callback([a] { a->layer.empty() ? bench_squares(*a) : bench_layers(*a); });
}

}  // namespace demi::cli
