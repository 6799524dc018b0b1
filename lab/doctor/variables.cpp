#include "lab/doctor/variables.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "demi/core/nearest.h"
#include "lab/settings/config.h"
#include "lab/settings/config_source.h"

namespace demi::doctor {
namespace {

// The variables in the order of docs/reference/environment.md: first demi's own, then those of
// others.
constexpr std::pair<std::string_view, std::string_view> kRead[] = {
    {"DEMI_ATTENTION", "attention on a CPU: libtorch, fused, tiles, blocks, blocks_16_bit"},
    {"DEMI_BATCH_NORM", "cuda: batch norm with ReLU and pooling by demi's kernels on a GPU"},
    {"DEMI_BF16_PRODUCTS", "how bf16 products run on a CPU: bf16, fp32"},
    {"DEMI_CACHE", "folder of fetched data sets and tokenized texts"},
    {"DEMI_CUDA_LIBRARY", "off: LibTorch's CUDA part is not loaded"},
    {"DEMI_DEBUG", "1: LibTorch's C++ stack traces in error messages"},
    {"DEMI_FP8_PRODUCTS", "how FP8 layers multiply: emulated, native"},
    {"DEMI_KERNELS", "kernels of the optimizers and products: reference, avx2, avx512, cuda, aten"},
    {"DEMI_RUNS", "folder in which run folders are made"},
    {"DEMI_WEIGHT_CACHE", "how long low precision copies live: keep, region, off"},
    {"XDG_CACHE_HOME", "parent of DEMI_CACHE's default"},
    {"HOME", "parent of XDG_CACHE_HOME's default"},
    {"SSL_CERT_FILE", "certificates by which servers of data sets are trusted"},
    {"TERM", "what the terminal can show"},
    {"COLUMNS", "the width of --help"},
    {"NO_COLOR", "no colours"},
    {"LC_ALL", "character set of the terminal"},
    {"LC_CTYPE", "the same, if LC_ALL is not set"},
    {"LANG", "the same, if neither is set"},
    {"ONEDNN_MAX_CPU_ISA", "the newest instructions that oneDNN may use"},
    {"DNNL_MAX_CPU_ISA", "its older name"},
    {"ATEN_CPU_CAPABILITY", "the newest instructions that LibTorch's operators may use"},
    {"GOMP_SPINCOUNT",
     "how long OpenMP's threads spin before they sleep; if neither is set, demi sets 5000"},
    {"OMP_WAIT_POLICY", "the same by name"},
};

// Read by tests and scripts, which set them themselves (docs/reference/environment.md).
constexpr std::string_view kOfTestsAndScripts[] = {"DEMI_LIBTORCH",
                                                   "DEMI_JOBS",
                                                   "DEMI_TEST_DATA",
                                                   "DEMI_WRITE_DOCS",
                                                   "DEMI_SAFETENSORS_OUT",
                                                   "DEMI_REPORT_SAMPLE",
                                                   "DEMI_SOURCE_DIR",
                                                   "DEMI_PROGRAM",
                                                   "DEMI_STAND_IN_LIBTORCH",
                                                   "DEMI_EXAMPLE_PROGRAMS",
                                                   "DEMI_ALL_RECIPES",
                                                   "DEMI_LONG",
                                                   "DEMI_KILLS",
                                                   "DEMI_KILLS_SEED",
                                                   "DEMI_PROGRAMS",
                                                   "DEMI_MOVES",
                                                   "DEMI_TEST_PROXY",
                                                   "DEMI_RANDOM_PROGRAMS",
                                                   "DEMI_FUZZ_MUTATIONS",
                                                   "DEMI_FUZZ_TARGET",
                                                   "DEMI_PROGRESS_SECONDS",
                                                   "DEMI_NOTES",
                                                   "DEMI_LOT",
                                                   "DEMI_CI_MINUTES"};

std::optional<std::string> of_process(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::vector<std::string> names_of_demi() {
  std::vector<std::string> names;
  for (const auto& [name, meaning] : kRead)
    if (name.starts_with("DEMI_")) names.emplace_back(name);
  for (const settings::Setting& setting : settings::all_settings())
    names.push_back(settings::environment_variable(setting.name));
  return names;
}

}  // namespace

std::vector<Variable> variables(const Environment& environment) {
  std::vector<Variable> all;
  for (const auto& [name, meaning] : kRead)
    all.push_back({std::string(name), std::string(meaning), environment(std::string(name))});
  for (const settings::Setting& setting : settings::all_settings()) {
    const std::string name = settings::environment_variable(setting.name);
    if (const auto value = environment(name))
      all.push_back({name, "the setting " + setting.name, value});
  }
  return all;
}

std::vector<Variable> variables() { return variables(of_process); }

std::vector<std::string> unknown_variables(const std::vector<std::string>& names) {
  const std::vector<std::string> known = names_of_demi();
  std::vector<std::string> unknown;
  for (const std::string& name : names) {
    if (!name.starts_with("DEMI_") || std::ranges::find(known, name) != known.end() ||
        std::ranges::find(kOfTestsAndScripts, name) != std::end(kOfTestsAndScripts))
      continue;
    const std::string near = nearest(name, known);
    unknown.push_back(name + ": nothing reads it" +
                      (near.empty() ? "" : "; did you mean " + near + "?"));
  }
  return unknown;
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return unknown_variables(names);
}

}  // namespace demi::doctor
