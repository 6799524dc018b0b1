#include "tests/loaded_program.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>

#include "cli/program.h"
#include "tests/end_before_libraries.h"

namespace cli_testing {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

// Set in a process that calls the program. Those that it starts through /proc/self/exe, as ranks
// are, would run these tests.
constexpr const char* kInProgram = "CLI_TESTS_IN_PROGRAM";

[[maybe_unused]] const bool was_started_by_no_program = [] {
  if (!std::getenv(kInProgram)) return true;
  std::fputs("cli_tests: demi started itself, so this test must set starts_for_real_\n", stderr);
  _exit(126);
}();

void add(Variables& all, std::string_view entry) {
  const std::size_t end = std::min(entry.find('='), entry.size());
  all.emplace(entry.substr(0, end), entry.substr(std::min(end + 1, entry.size())));
}

// The environment in which this process was loaded.
Variables loaded_environment() {
  std::ifstream file("/proc/self/environ", std::ios::binary);
  Variables all;
  for (std::string entry; std::getline(file, entry, '\0');) add(all, entry);
  return all;
}

Variables environment() {
  Variables all;
  for (char** entry = environ; *entry; ++entry) add(all, *entry);
  return all;
}

// Any other variable may have been read while libraries were loaded, or by this process.
bool is_read_when_needed(std::string_view name) {
  constexpr std::array<std::string_view, 4> kReadOnce{"DEMI_CUDA_LIBRARY", "DEMI_DEBUG",
                                                      "DEMI_KERNELS", "DEMI_WEIGHT_CACHE"};
  constexpr std::array<std::string_view, 3> kOfTerminals{"LC_ALL", "NO_COLOR", "TERM"};
  if (name.starts_with("DEMI_")) return std::ranges::find(kReadOnce, name) == kReadOnce.end();
  return std::ranges::find(kOfTerminals, name) != kOfTerminals.end();
}

// Its name, or "".
std::string changed_variable(const Variables& before, const Variables& now) {
  for (const auto& [name, value] : now) {
    const auto was = before.find(name);
    if (!is_read_when_needed(name) && (was == before.end() || was->second != value)) return name;
  }
  for (const auto& [name, value] : before)
    if (!is_read_when_needed(name) && !now.contains(name)) return name;
  return "";
}

}  // namespace

bool can_be_forked() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(threads, {}) == 1 && !dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
}

std::string why_not_loaded(const std::vector<std::string>& arguments) {
  for (const std::string& word : arguments)
    if (word.starts_with("--ranks") || word.starts_with("--devices"))
      return word + " starts /proc/self/exe";
  const Variables now = environment();
  const std::string changed = changed_variable(loaded_environment(), now);
  if (!changed.empty()) return changed + " has changed since LibTorch was loaded";
  // cli/wait_policy.cpp
  if (!now.contains("GOMP_SPINCOUNT") && !now.contains("OMP_WAIT_POLICY"))
    return "the program would set GOMP_SPINCOUNT";
  return "";
}

void run_loaded_program(const std::vector<char*>& words) noexcept {
  end_before_libraries();
  setenv(kInProgram, "1", /*overwrite=*/1);
  std::vector<char*> arguments = words;
  arguments.push_back(nullptr);
  std::exit(demi::cli::run_program(static_cast<int>(words.size()), arguments.data()));
}

}  // namespace cli_testing
