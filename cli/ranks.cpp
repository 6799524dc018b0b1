#include "cli/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>

#include "cli/exit_code.h"
#include "cli/output.h"
#include "cli/rank_processes.h"
#include "cli/stop.h"
#include "demi/core/error.h"
#include "demi/core/version.h"
#include "demi/distributed/c10d.h"
#include "demi/distributed/launch.h"
#include "demi/distributed/store.h"
#include "demi/tensor/device.h"
#include "lab/settings/devices.h"

namespace demi::cli {
namespace {

distributed::Ranks launched() { return distributed::read_ranks(distributed::environment()); }

constexpr const char* kRunFolder = "demi/run-folder";  // in the launcher's store

// Settings that may differ from machine to machine.
const std::set<std::string_view> kOwn{"data-dir", "train-file", "test-file",
                                      "device",   "threads",    "workers"};

std::string description(const std::string& command, const std::string& recipe,
                        const settings::Config& config) {
  std::string text = fmt::format("demi {}\nLibTorch {}\ncommand {}\nrecipe {}\n", version(),
                                 TORCH_VERSION, command, recipe);
  for (const settings::Setting& setting : settings::all_settings())
    if (!kOwn.contains(setting.name))
      text += fmt::format("{} {}\n", setting.name, setting.get(config));
  return text;
}

// 2: an option, 1: the environment, 0: a file.
int strength(const settings::Assignment& a) {
  return a.is_of_file() ? 0 : a.source.starts_with("--") ? 2 : 1;
}

// --devices sets the number of ranks, too. Refuses another number of an equally strong or stronger
// source; a weaker one gives way, and check() refuses a later one.
void check_ranks_of_devices(const std::vector<settings::Assignment>& given) {
  const settings::Assignment* devices = nullptr;
  for (const settings::Assignment& a : given)
    if (a.name == "devices") devices = &a;
  if (!devices || devices->text.empty()) return;
  const std::size_t count = settings::device_list(devices->text, devices->source).size();
  for (const settings::Assignment& a : given)
    if (a.name == "ranks" && strength(a) >= strength(*devices) && a.text != std::to_string(count))
      throw UsageError(
          {.where = a.source,
           .what = "each rank has one device",
           .seen = a.text,
           .accepted = fmt::format("{}, since {} says {}", count, devices->source, devices->text),
           .advice = "leave it out, or name as many devices"});
}

// A core serves one thread: N ranks with all threads each take turns on the cores.
int threads_of_rank(const settings::Config& config) {
  if (config.threads > 0 || distributed::environment()("OMP_NUM_THREADS")) return 0;
  return std::max(1, at::get_num_threads() / static_cast<int>(config.ranks));
}

}  // namespace

std::vector<settings::Assignment> with_launched_ranks(std::vector<settings::Assignment> given) {
  check_ranks_of_devices(given);
  const distributed::Ranks ranks = launched();
  if (ranks.world_size == 1) return given;
  const std::string count = std::to_string(ranks.world_size);
  const settings::Assignment* asked = nullptr;  // a file is weaker than who started the ranks
  for (const settings::Assignment& a : given)
    if (a.name == "ranks" && !a.is_of_file()) asked = &a;
  if (asked && asked->text != count)
    throw UsageError({.where = asked->source,
                      .what = "another number of ranks than were started",
                      .seen = asked->text,
                      .accepted = count + ", since " + ranks.named,
                      .advice = "leave it out"});
  given.push_back({"ranks", count, ranks.named});
  return given;
}

bool run_as_ranks(const std::string& command, const settings::Config& config) {
  if (config.ranks == 1 || launched().world_size > 1) return false;
  // Checked here, so that the error is reported once and not by all ranks.
  if (!config.devices.empty())
    for (const std::string& name : settings::device_list(config.devices, "--devices"))
      pick_device(name);
  else if (pick_device(config.device).is_cuda())
    settings::require_gpus(config, static_cast<int>(torch::cuda::device_count()));
  const distributed::ServedStore store = distributed::serve_store();
  const int threads = threads_of_rank(config);
  const auto count = static_cast<int>(config.ranks);
  if (threads > 0)
    note(fmt::format("{} ranks with {} thread{} each (OMP_NUM_THREADS or --threads: other ones)",
                     count, threads, threads == 1 ? "" : "s"));
  // The ranks that still wait for it to come read this.
  RankProcesses processes(count, store.port, threads, [&](const std::string& which) {
    store.store->set(distributed::kEndedRank, which);
  });
  const NoteStopSignals noting;
  const int code = processes.wait();
  if (code == kDone) return true;
  if (processes.was_killed(0))  // it has not reported it itself
    if (const auto folder = store.store->get(kRunFolder)) say_how_to_resume(command, *folder);
  throw Exit{code};
}

bool has_launcher() { return distributed::environment()("TORCHELASTIC_RUN_ID") == kRunId; }

bool speaks_for_all() { return !has_launcher() && launched().rank == 0; }

void tell_launcher(const std::filesystem::path& run_folder) {
  if (!has_launcher()) return;
  const auto address = distributed::read_store_address(distributed::environment(), launched());
  distributed::tcp_store(address, /*serve=*/false, std::chrono::seconds(60))
      ->set(kRunFolder, run_folder.string());
}

c10::Device device_of_this_rank(const settings::Config& config) {
  const distributed::Ranks ranks = launched();
  const std::string name = settings::device_of_rank(config, ranks.rank);
  const c10::Device device = pick_device(name);
  const bool is_any = name == "auto" || name == "cuda";  // a GPU of its own for each
  if (ranks.world_size == 1 || !device.is_cuda() || !is_any) return device;
  return pick_device(fmt::format("cuda:{}", ranks.local_rank.value_or(ranks.rank)));
}

std::shared_ptr<distributed::ProcessGroup> meet_ranks(const std::string& command,
                                                      const std::string& recipe,
                                                      const settings::Config& config) {
  const distributed::Ranks ranks = launched();
  if (config.ranks == 1) return nullptr;
  if (ranks.world_size != config.ranks)
    throw UsageError({.where = command,
                      .what = "this is done by one process",
                      .seen = fmt::format("--ranks {}", config.ranks),
                      .advice = "leave out --ranks"});
  if (ranks.rank > 0) keep_quiet();
  static int groups = 0;
  auto group = std::make_shared<distributed::ProcessGroup>(
      distributed::ProcessGroupOptions{.name = fmt::format("session-{}", ++groups)});
  group->require_same("what to do", description(command, recipe, config));
  return group;
}

}  // namespace demi::cli
