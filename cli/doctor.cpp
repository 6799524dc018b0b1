#include "lab/doctor/doctor.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/output.h"
#include "lab/report/format.h"

namespace demi::cli {
namespace {

using doctor::Diagnosis;
using nlohmann::ordered_json;

struct DoctorArguments {
  doctor::DiagnoseOptions options;
  Output output;
};

// null where there is no text, and where nothing was measured.
ordered_json text_or_null(const std::string& text) {
  return text.empty() ? ordered_json() : ordered_json(text);
}

ordered_json positive_or_null(double value) {
  return value > 0 ? ordered_json(value) : ordered_json();
}

ordered_json json_of(const doctor::DeviceReport& device) {
  ordered_json json{{"device", device.device},
                    {"name", device.name},
                    {"architecture", text_or_null(device.architecture)},
                    {"compute_capability", text_or_null(device.compute_capability)},
                    {"memory_bytes",
                     device.memory_bytes > 0 ? ordered_json(device.memory_bytes) : ordered_json()},
                    {"driver", text_or_null(device.driver)},
                    {"cuda", text_or_null(device.cuda)},
                    {"copy_gb_per_s", positive_or_null(device.copy_gb_per_s)}};
  json["formats"] = ordered_json::array();
  for (const doctor::Format& format : device.formats)
    json["formats"].push_back({{"dtype", format.dtype},
                               {"has_unit", format.has_unit},
                               {"unit", format.unit},
                               {"tflops", positive_or_null(format.tflops)},
                               {"size", positive_or_null(static_cast<double>(format.size))},
                               {"over_fp32", positive_or_null(format.over_fp32)},
                               {"failure", text_or_null(format.failure)}});
  if (device.bf16)
    json["bf16_products"] = {{"in_use", name_of(device.bf16->choice.products)},
                             {"because", device.bf16->choice.because},
                             {"bf16_tflops", positive_or_null(device.bf16->bf16_tflops)},
                             {"fp32_tflops", positive_or_null(device.bf16->fp32_tflops)}};
  json["advice"] = ordered_json::array();
  for (const doctor::Advice& one : device.advice)
    json["advice"].push_back(
        {{"topic", one.topic}, {"gain", one.gain}, {"what", one.what}, {"how", one.how}});
  return json;
}

ordered_json json_of(const doctor::ModelCheck& check) {
  ordered_json json{{"recipe", check.recipe},
                    {"model", check.model},
                    {"batch_size", check.batch_size},
                    {"products", check.products},
                    {"convolutions", check.convolutions}};
  json["dimensions"] = ordered_json::array();
  for (const doctor::Dimension& one : check.dimensions)
    json["dimensions"].push_back({{"module", one.module},
                                  {"name", one.name},
                                  {"value", one.value},
                                  {"next", one.next},
                                  {"speedup", positive_or_null(one.speedup)}});
  return json;
}

ordered_json json_of(const doctor::Cores& cores) {
  return {{"threads", cores.threads},
          {"cores_online", cores.online},
          {"cores_allowed", cores.allowed},
          {"cores_quota", cores.quota ? ordered_json(*cores.quota) : ordered_json()},
          {"pinning", cores.pinning},
          {"allocator", cores.allocator}};
}

ordered_json json_of(const Diagnosis& d) {
  ordered_json json;
  json["devices"] = ordered_json::array();
  for (const doctor::DeviceReport& device : d.devices) json["devices"].push_back(json_of(device));
  json["no_cuda"] = text_or_null(d.no_cuda);
  json["no_graphs"] = text_or_null(d.no_graphs);
  json["faults"] = d.faults;
  json["cores"] = json_of(d.cores);
  for (const auto& [name, version] : d.libraries) json["libraries"][name] = version;
  json["paths"] = ordered_json::array();
  for (const doctor::PathReport& path : d.paths)
    json["paths"].push_back(
        {{"name", path.name}, {"usable", path.usable}, {"reason", path.reason}});
  json["cpu_path"] = text_or_null(d.cpu_path);
  json["cuda_path"] = text_or_null(d.cuda_path);
  json["backends"] = ordered_json::array();
  for (const doctor::BackendSetting& one : d.backends)
    json["backends"].push_back({{"name", one.name},
                                {"option", text_or_null(one.option)},
                                {"value", one.value},
                                {"default", one.by_default},
                                {"gain", one.gain},
                                {"cost", one.cost}});
  json["variables"] = ordered_json::array();
  for (const doctor::Variable& one : d.variables)
    json["variables"].push_back({{"name", one.name},
                                 {"value", one.value ? ordered_json(*one.value) : ordered_json()},
                                 {"meaning", one.meaning}});
  json["data_sets"] = ordered_json::array();
  for (const doctor::DataSetReport& one : d.data_sets)
    json["data_sets"].push_back({{"name", one.name}, {"folder", text_or_null(one.folder)}});
  json["model"] = d.model ? json_of(*d.model) : ordered_json();
  json["cores_share"] = d.cores_share ? ordered_json(*d.cores_share) : ordered_json();
  json["disturbed"] = !doctor::disturbance(d.cores_share).empty();
  json["seconds"] = d.seconds;
  return json;
}

std::string title_of(const doctor::DeviceReport& device) {
  std::string title = device.device + ": " + device.name;
  if (!device.architecture.empty())
    title += fmt::format(", {} (compute capability {}), {}", device.architecture,
                         device.compute_capability,
                         report::format_bytes(static_cast<double>(device.memory_bytes)));
  if (!device.driver.empty()) title += ", driver " + device.driver;
  if (!device.cuda.empty()) title += ", CUDA " + device.cuda;
  return title;
}

std::string note_of(const doctor::Format& format) {
  return format.failure.empty() ? format.unit : format.unit + "; not measured: " + format.failure;
}

// Notes that the 16-bit formats gain no time, if they were measured and do not.
void note_no_gain(const doctor::DeviceReport& device, std::vector<std::string>& notes) {
  const std::string mixed = doctor::best_mixed(device.formats);
  for (const doctor::Format& format : device.formats)
    if (format.dtype == mixed && format.over_fp32 < doctor::kLeastGain)
      notes.push_back(
          fmt::format("{} products, the fastest of 16 bits, run at {:.2f} times FP32's "
                      "rate: mixed precision gains no time in products here.",
                      mixed, format.over_fp32));
}

// `disturbance`: why figures are marked; "": they are not.
report::Table table_of(const doctor::DeviceReport& device, const std::string& disturbance) {
  const std::string mark = disturbance.empty() ? "" : "* ";
  report::Table table{.title = title_of(device)};
  table.columns = {{.name = "format", .align = report::Align::kLeft},
                   {.name = "products", .unit = "TFLOP/s"},
                   {.name = "size"},
                   {.name = "over fp32"},
                   {.name = "computed by", .align = report::Align::kLeft}};
  for (const doctor::Format& format : device.formats) {
    const bool has = format.tflops > 0;
    table.rows.push_back({format.dtype, has ? mark + report::format_fixed(format.tflops, 3) : "",
                          has ? report::format_count(format.size) : "",
                          has ? report::format_factor(format.over_fp32) : "", note_of(format)});
  }
  if (device.bf16)
    if (const std::string both = doctor::describe(*device.bf16); !both.empty())
      table.notes.push_back(mark + both);
  if (device.copy_gb_per_s > 0)
    table.notes.push_back(
        fmt::format("A plain copy reads and writes {}{:.1f} GB/s.", mark, device.copy_gb_per_s));
  if (!disturbance.empty() && device.copy_gb_per_s > 0) table.notes.push_back(disturbance);
  note_no_gain(device, table.notes);
  table.notes.emplace_back(
      "Short of memory: a weight, its bf16 copy and gradient, and AdamW's states take 16 bytes; "
      "--weight-mode split takes 14 and loses no bit, split24 with --moments int8 takes 7.1.");
  return table;
}

std::vector<Entry> advice_of(const doctor::DeviceReport& device) {
  std::vector<Entry> entries;
  for (const doctor::Advice& one : device.advice)
    entries.push_back({report::format_factor(one.gain), {one.what + ":", one.how}});
  return entries;
}

report::Table table_of(const doctor::ModelCheck& check) {
  report::Table table{
      .title = fmt::format("{}: {} at batch size {}", check.recipe, check.model, check.batch_size)};
  table.columns = {{.name = "dimension", .align = report::Align::kLeft},
                   {.name = "is"},
                   {.name = "next multiple of 8"},
                   {.name = "speedup of the product"}};
  for (const doctor::Dimension& one : check.dimensions)
    table.rows.push_back({one.module.empty() ? one.name : one.module + "." + one.name,
                          report::format_count(one.value), report::format_count(one.next),
                          one.speedup > 0 ? report::format_factor(one.speedup) : ""});
  table.notes.push_back(fmt::format(
      "{} product{}, {}; {} convolution{}, exempt since cuDNN 7.3.", check.products,
      check.products == 1 ? "" : "s",
      check.dimensions.empty() ? "all of multiples of 8" : "of which those above have others",
      check.convolutions, check.convolutions == 1 ? "" : "s"));
  return table;
}

std::vector<Entry> machine_entries(const Diagnosis& d) {
  const doctor::Cores& cores = d.cores;
  std::string threads = fmt::format("{} for one operation; {} of {} cores are this process's",
                                    cores.threads, cores.allowed, cores.online);
  if (cores.quota) threads += fmt::format(", its control group limits it to {:g}", *cores.quota);
  std::vector<Entry> entries{{"threads", {threads}},
                             {"pinning", {cores.pinning}},
                             {"allocator", {cores.allocator + " on the host"}}};
  if (!d.no_cuda.empty()) entries.push_back({"CUDA", {"none: " + d.no_cuda}});
  entries.push_back(
      {"CUDA graphs",
       {d.no_graphs.empty() ? "work can be recorded" : "nothing can be recorded: " + d.no_graphs}});
  for (const auto& [name, version] : d.libraries) entries.push_back({name, {version}});
  return entries;
}

std::vector<Entry> path_entries(const Diagnosis& d) {
  std::vector<Entry> entries;
  for (const doctor::PathReport& path : d.paths) {
    std::string text = (path.usable ? "usable: " : "declined: ") + path.reason;
    if (path.name == d.cpu_path) text += "; in use on the CPU";
    if (path.name == d.cuda_path) text += "; in use on CUDA";
    entries.push_back({path.name, {text}});
  }
  return entries;
}

std::vector<Entry> backend_entries(const Diagnosis& d) {
  std::vector<Entry> entries;
  for (const doctor::BackendSetting& one : d.backends)
    entries.push_back({one.name,
                       {fmt::format("{} (PyTorch: {}){}", one.value, one.by_default,
                                    one.option.empty() ? "" : ", " + one.option),
                        "buys: " + one.gain, "costs: " + one.cost}});
  return entries;
}

std::vector<Entry> variable_entries(const Diagnosis& d) {
  std::vector<Entry> entries;
  for (const doctor::Variable& one : d.variables)
    entries.push_back(
        {one.name, {(one.value ? *one.value : "not set") + "  (" + one.meaning + ")"}});
  return entries;
}

std::vector<Entry> data_entries(const Diagnosis& d) {
  std::vector<Entry> entries;
  for (const doctor::DataSetReport& one : d.data_sets)
    entries.push_back({one.name, {one.folder.empty() ? "not here: " + one.advice : one.folder}});
  return entries;
}

void show_part(const Output& output, const std::string& title, const std::vector<Entry>& entries) {
  Output::print_lines("\n" + title + "\n");
  output.show(entries, {});
}

void show_text(const Output& output, const Diagnosis& d) {
  std::vector<report::Table> tables;
  const std::string disturbance = doctor::disturbance(d.cores_share);
  for (const doctor::DeviceReport& device : d.devices)
    tables.push_back(table_of(device, disturbance));
  if (d.model) tables.push_back(table_of(*d.model));
  Output::print(tables);
  show_part(output, "Machine and libraries", machine_entries(d));
  show_part(output, "Kernel paths (DEMI_KERNELS), in order of preference", path_entries(d));
  show_part(output, "LibTorch's settings (torch.backends)", backend_entries(d));
  show_part(output, "Environment", variable_entries(d));
  show_part(output, "Data sets", data_entries(d));
  if (!d.faults.empty()) {
    std::vector<Entry> entries;
    for (const std::string& fault : d.faults) entries.push_back({"-", {fault}});
    show_part(output, "To be put right first", entries);
  }
  for (const doctor::DeviceReport& device : d.devices) {
    if (device.copy_gb_per_s == 0) continue;
    if (device.advice.empty())
      Output::print_lines(
          "\nNothing that was measured on " + device.device + " would make it faster" +
          (disturbance.empty() ? ".\n" : ", as far as can be measured here (*).\n"));
    else
      show_part(output, "Advice for " + device.device + ", the greatest gain first",
                advice_of(device));
  }
}

void run_doctor(const DoctorArguments& a) {
  const Diagnosis diagnosis = doctor::diagnose(a.options);
  if (a.output.is_json())
    Output::print(json_of(diagnosis));
  else
    show_text(a.output, diagnosis);
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto* command = app.add_subcommand(
      "doctor", "This machine and build: fast formats, kernels, settings, and advice");
  const auto a = std::make_shared<DoctorArguments>();
  command->add_option("--model", a->options.recipe,
                      "Recipe or .pt2 file whose model's dimensions are checked; `demi train "
                      "--list` names recipes");
  command
      ->add_option("--seconds", a->options.seconds,
                   "Longest time of one measurement, 0 to 1; 0: nothing is measured")
      ->capture_default_str();
  a->output.add_to(*command);
  command->callback([a] { run_doctor(*a); });
}

}  // namespace demi::cli
