#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "lab/doctor/advice.h"
#include "lab/doctor/backend_settings.h"
#include "lab/doctor/bf16_rates.h"
#include "lab/doctor/cores.h"
#include "lab/doctor/dimensions.h"
#include "lab/doctor/formats.h"
#include "lab/doctor/variables.h"

/// The findings of `demi doctor`: what this machine and this build can do, and advice.
namespace demi::doctor {

/// Options of the diagnosis.
struct DiagnoseOptions {
  /// The recipe whose dimensions are checked; empty: none.
  std::string recipe = {};
  /// Seconds of each measurement, 0 to 1; all of them together take about five times as long at
  /// most. 0: nothing is measured.
  double seconds = 1;
};

/// A device of this machine.
struct DeviceReport {
  std::string device;  // cpu, cuda:0
  std::string name;    // of the processor or GPU
  /// A GPU's architecture by name, compute capability, and versions of driver and CUDA; empty for
  /// a CPU.
  std::string architecture, compute_capability, driver, cuda;
  std::int64_t memory_bytes = 0;  // of the GPU
  std::vector<Format> formats;    // those that it can compute in
  std::optional<Bf16Rates> bf16;  // of a CPU: both ways to multiply bf16 numbers
  double copy_gb_per_s = 0;       // 0: not measured
  std::vector<Advice> advice;     // in_order
};

/// A way to compute an optimizer's step and 16-bit products (DEMI_KERNELS).
struct PathReport {
  std::string name;     // as `DEMI_KERNELS` spells it
  bool usable = false;  // whether it can run here
  std::string reason;   // why not, or what it runs on
};

/// A data set, and whether it is there.
struct DataSetReport {
  std::string name;    // as `--data` names it
  std::string folder;  // empty: not on this machine
  std::string advice;  // how to get it
};

/// Names and values, for people.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// The findings.
struct Diagnosis {
  std::vector<DeviceReport> devices;     // the CPU first
  std::string no_cuda;                   // why there is no CUDA device; empty: there is one
  std::string no_graphs;                 // why a GPU's work cannot be recorded; empty: it can
  Cores cores;                           // threads of the process, and cores that they can have
  Facts libraries;                       // LibTorch and its parts with their versions
  std::vector<PathReport> paths;         // in order of preference
  std::string cpu_path, cuda_path;       // those in use; empty: none, and a fault says why
  std::vector<BackendSetting> backends;  // LibTorch's settings
  std::vector<Variable> variables;       // of the environment
  std::vector<DataSetReport> data_sets;  // published ones
  std::optional<ModelCheck> model;       // of the model that was asked for
  std::vector<std::string> faults;       // settings in the way, to be put right before all else
  /// Share of the cores that the measurements asked for and got; none if nothing was measured, or
  /// if this kernel does not say.
  std::optional<double> cores_share;
  double seconds = 0;  // that the diagnosis took
};

/// A sentence on what a share of the cores below recipes::kQuietShare means for the figures; "" for
/// another share.
DEMI_API std::string disturbance(std::optional<double> cores_share);

/// Throws UsageError for an unknown recipe and `seconds` out of range, before anything is measured.
DEMI_API Diagnosis diagnose(const DiagnoseOptions& options);

}  // namespace demi::doctor
