#include "lab/doctor/doctor.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <string_view>

#include "demi/backends/backends.h"
#include "demi/core/cuda_library.h"
#include "demi/core/error.h"
#include "demi/core/instruction_set.h"
#include "demi/core/libtorch.h"
#include "demi/graph/device_graph.h"
#include "demi/kernels/path.h"
#include "demi/profile/core_share.h"
#include "demi/profile/gpu.h"
#include "lab/bench/roofline.h"
#include "lab/data/registry.h"
#include "lab/recipes/compare.h"
#include "lab/settings/recipe.h"

namespace demi::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kFormatSeconds = 4.5;  // of all formats together

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(const DiagnoseOptions& options) {
  if (!(options.seconds >= 0 && options.seconds <= 1))
    refuse({.where = "doctor.diagnose",
            .what = "seconds are out of range",
            .seen = fmt::format("{}", options.seconds),
            .accepted = "0 (nothing is measured) to 1"});
  if (!options.recipe.empty()) settings::find_recipe(options.recipe);
}

DeviceReport cpu_report(std::vector<std::string>& faults) {
  DeviceReport report{.device = "cpu", .name = processor_name()};
  Bf16Choice choice;
  try {
    choice = bf16_choice();
    report.bf16 = Bf16Rates{.choice = choice};
  } catch (const UsageError& error) {
    faults.emplace_back(error.what());
  }
  report.formats = formats_of(onednn_instruction_set(), choice.products);
  return report;
}

DeviceReport gpu_report(int ordinal) {
  DeviceReport report{.device = fmt::format("cuda:{}", ordinal)};
  const profile::Gpu gpu = profile::gpu(ordinal).value_or(profile::Gpu());
  const GpuArchitecture architecture = gpu_architecture(std::string_view(gpu.compute_capability));
  report.name = gpu.name;
  report.architecture = architecture.name;
  report.compute_capability = gpu.compute_capability;
  report.driver = gpu.driver;
  report.cuda = gpu.cuda;
  report.memory_bytes = gpu.memory_bytes;
  report.formats = formats_of(architecture);
  return report;
}

// Why no GPU can be used; empty if one can.
std::string why_no_cuda() {
  const CudaLibrary& library = load_cuda();
  if (!library.loaded) return library.reason;
  try {
    return torch::cuda::device_count() > 0 ? "" : "the driver shows no GPU";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

std::vector<DeviceReport> devices_here(const std::string& no_cuda,
                                       std::vector<std::string>& faults) {
  std::vector<DeviceReport> all{cpu_report(faults)};
  if (!no_cuda.empty()) return all;
  for (int i = 0; i < static_cast<int>(torch::cuda::device_count()); ++i)
    all.push_back(gpu_report(i));
  return all;
}

void measure_device(DeviceReport& report, const Cores& cores, double seconds) {
  const c10::Device device(report.device);
  measure(report.formats, device, seconds);
  if (report.bf16) report.bf16 = measure_bf16_rates(report.bf16->choice, seconds);
  report.copy_gb_per_s = bench::copy_gb_per_s(device);
  std::vector<Advice> all = of_formats(report.formats);
  if (report.bf16)
    if (auto other_way = of_bf16_rates(*report.bf16)) all.push_back(*std::move(other_way));
  if (const std::string dtype = best_mixed(report.formats); !dtype.empty())
    std::ranges::move(of_shapes(dtype, device), std::back_inserter(all));
  if (device.is_cpu()) std::ranges::move(of_memory(cores.allocator), std::back_inserter(all));
  report.advice = in_order(std::move(all));
}

// The CPU and the first GPU: several of one kind say the same.
void measure_devices(Diagnosis& diagnosis, const DiagnoseOptions& options) {
  const std::size_t count = std::min<std::size_t>(diagnosis.devices.size(), 2);
  std::size_t formats = 0;
  for (std::size_t i = 0; i < count; ++i)
    formats += diagnosis.devices[i].formats.size() + (diagnosis.devices[i].bf16 ? 2 : 0);
  const double seconds = std::min(options.seconds, kFormatSeconds / static_cast<double>(formats));
  for (std::size_t i = 0; i < count; ++i) {
    try {
      measure_device(diagnosis.devices[i], diagnosis.cores, seconds);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      diagnosis.faults.push_back(diagnosis.devices[i].device +
                                 " cannot be measured: " + text.substr(0, text.find('\n')));
    }
  }
}

void check_model(Diagnosis& diagnosis, const DiagnoseOptions& options) {
  diagnosis.model = check_recipe(options.recipe);
  if (options.seconds == 0) return;
  const DeviceReport& report =
      diagnosis.devices[std::min<std::size_t>(1, diagnosis.devices.size() - 1)];
  const std::string dtype = best_mixed(report.formats);
  if (!dtype.empty()) measure(*diagnosis.model, dtype, c10::Device(report.device));
}

// Another patch version than the one that demi was compiled against is named with it.
std::string libtorch() {
  const std::string loaded = loaded_libtorch().version, compiled(compiled_libtorch());
  return loaded == compiled ? loaded : loaded + " (demi is compiled against " + compiled + ")";
}

Facts libraries(const std::string& no_cuda) {
  Facts facts{{"demi", DEMI_VERSION},
              {"LibTorch", libtorch()},
              {"LibTorch's operators", at::get_cpu_capability()},
              {"oneDNN", at::Context::hasMKLDNN() ? at::get_mkldnn_version() : "none"},
              {"MKL", at::Context::hasMKL() ? at::get_mkl_version() : "none"},
              {"OpenMP", at::get_openmp_version()}};
  for (auto& [name, version] : facts) version = version.substr(0, version.find('\n'));
  if (!no_cuda.empty()) return facts;
  facts.emplace_back("CUDA runtime", std::to_string(at::Context::versionCUDART()));
  facts.emplace_back(
      "cuDNN", at::Context::hasCuDNN() ? std::to_string(at::Context::versionCuDNN()) : "none");
  return facts;
}

// The name of the path in use; a forced one that cannot be used is a fault.
std::string path_in_use(kernels::Device device, std::vector<std::string>& faults) {
  try {
    return std::string(kernels::name_of(kernels::path_for(device)));
  } catch (const UsageError& error) {
    if (std::ranges::find(faults, error.what()) == faults.end()) faults.emplace_back(error.what());
    return "";
  }
}

void read_paths(Diagnosis& diagnosis) {
  for (const kernels::PathStatus& status : kernels::paths())
    diagnosis.paths.push_back({std::string(status.name), status.usable, status.reason});
  diagnosis.cpu_path = path_in_use(kernels::Device::cpu, diagnosis.faults);
  if (diagnosis.no_cuda.empty())
    diagnosis.cuda_path = path_in_use(kernels::Device::cuda, diagnosis.faults);
}

std::vector<DataSetReport> data_sets() {
  std::vector<DataSetReport> all;
  for (const data::DataSet& set : data::data_sets()) {
    if (!set.is_published()) continue;
    DataSetReport report{.name = set.name, .advice = set.advice};
    try {
      report.folder = data::find_data_set(set.name).string();
    } catch (const DataError&) {  // NOLINT(bugprone-empty-catch): not on this machine
    }
    all.push_back(std::move(report));
  }
  return all;
}

void add_faults(Diagnosis& diagnosis) {
  for (const std::string& fault : faults(diagnosis.cores)) diagnosis.faults.push_back(fault);
  for (const std::string& fault : unknown_variables()) diagnosis.faults.push_back(fault);
  const std::string has = describe(instruction_set()), uses = describe(onednn_instruction_set());
  if (has != uses)
    diagnosis.faults.push_back("ONEDNN_MAX_CPU_ISA limits products to " + uses +
                               ", and the processor has " + has);
}

}  // namespace

std::string disturbance(std::optional<double> cores_share) {
  if (cores_share.value_or(1) >= recipes::kQuietShare) return "";
  return fmt::format(
      "* The measurements got {:.0f} % of the cores that they asked for: another program ran "
      "at the same time. Their figures are too low, and advice may be missing or wrong: run it "
      "again on a "
      "quiet "
      "machine.",
      100 * *cores_share);
}

Diagnosis diagnose(const DiagnoseOptions& options) {
  const auto start = Clock::now();
  check(options);
  Diagnosis diagnosis;
  diagnosis.no_cuda = why_no_cuda();
  diagnosis.no_graphs = graph::machine_graphs().obstacle(c10::Device(c10::kCUDA, 0));
  diagnosis.devices = devices_here(diagnosis.no_cuda, diagnosis.faults);
  diagnosis.cores = cores();
  diagnosis.libraries = libraries(diagnosis.no_cuda);
  read_paths(diagnosis);
  diagnosis.backends = backend_settings(Backends::current());
  diagnosis.variables = variables();
  diagnosis.data_sets = data_sets();
  add_faults(diagnosis);
  profile::CoreMeter meter;
  meter.begin();
  if (options.seconds > 0) measure_devices(diagnosis, options);
  if (!options.recipe.empty()) check_model(diagnosis, options);
  meter.end();
  if (options.seconds > 0) diagnosis.cores_share = profile::cores_share(meter.readings());
  diagnosis.seconds = since(start);
  return diagnosis;
}

}  // namespace demi::doctor
