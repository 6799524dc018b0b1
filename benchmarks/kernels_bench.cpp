// The step's passes against a plain copy of the same machine in the same run, without LibTorch.
//
//   kernels_bench [--parameters N] [--rounds N] [--threads N] [--tensors N] [--path NAME]
//
// Each rule is checked against the reference path first. A round times one copy and one step; shown
// are the minimum and the median of the rounds. bytes/p: what the tables say a step moves for each
// parameter; GB/s counts these bytes; a copy counts each byte twice (read, written).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "demi/core/instruction_set.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/decide.h"
#include "demi/kernels/rule_info.h"
#include "demi/kernels/step_plan.h"
#include "demi/kernels/traffic.h"

namespace {

using namespace demi::kernels;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::int64_t parameters = 33554432;
  int rounds = 15;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int tensors = 8;
  std::string path;
};

struct Workload {
  const char* name;
  UpdateRule rule;
  Group group;
};

/// Arrays of one step, each tensor a slice of them.
struct Memory {
  std::vector<float> parameter, moment[2];
  std::vector<std::uint16_t> gradient, copy;
  std::vector<std::int64_t> steps;
  std::vector<float> scalars;
  float scale = 65536.0f;

  explicit Memory(const Settings& settings)
      : steps(static_cast<std::size_t>(settings.tensors)),
        scalars(static_cast<std::size_t>(settings.tensors), 1.0f) {
    const auto n = static_cast<std::size_t>(settings.parameters);
    parameter.assign(n, 0.5f);
    for (auto& m : moment) m.assign(n, 0.01f);
    copy.assign(n, 0);
    gradient.resize(n);
    for (std::size_t i = 0; i < n; ++i)
      gradient[i] = static_cast<std::uint16_t>(0x3C00u + i * 7919u % 1021u);
  }

  StepPlan plan(const Settings& settings, const Workload& workload) {
    const std::int64_t each = settings.parameters / settings.tensors;
    std::vector<TensorEntry> tensors;
    for (int t = 0; t < settings.tensors; ++t) {
      TensorEntry tensor;
      tensor.length = each;
      tensor.parameter = parameter.data() + t * each;
      tensor.gradient = gradient.data() + t * each;
      tensor.gradient_storage = Storage::bf16;
      tensor.copy[0] = copy.data() + t * each;
      tensor.copy_storage[0] = Storage::bf16;
      for (int m = 0; m < 2; ++m) tensor.moment[m] = moment[m].data() + t * each;
      tensor.step = &steps[static_cast<std::size_t>(t)];
      tensor.scalar = &scalars[static_cast<std::size_t>(t)];
      tensors.push_back(tensor);
    }
    StepPlan result(workload.rule, std::move(tensors), {workload.group});
    result.inputs().scale = &scale;
    result.inputs().max_norm = 1.0f;
    return result;
  }
};

/// body(begin, end) over [0, n) in one piece a thread. One thread: in place.
template <class Body>
void split(int threads, std::int64_t n, Body body) {
  if (threads <= 1 || n < threads) return body(std::int64_t{0}, n);
  std::vector<std::thread> others;
  for (int k = 1; k < threads; ++k) {
    others.emplace_back([=] { body(n * k / threads, n * (k + 1) / threads); });
  }
  body(std::int64_t{0}, n / threads);
  for (std::thread& other : others) other.join();
}

void step(const CpuKernels& kernels, StepTable table, int threads) {
  const auto applied_by = info_of(table.range.rule).applied_by;
  static std::vector<std::uint16_t> directions;  // as they are: products are not timed here
  if (applied_by) {
    directions.resize(static_cast<std::size_t>(table.block_count * kBlock));
    table.direction = directions.data();
    table.direction_storage = Storage::bf16;
  }
  const auto pass = [&](auto kernel) {
    split(threads, table.block_count,
          [&](std::int64_t begin, std::int64_t end) { kernel(table, begin, end); });
  };
  pass(kernels.measure);
  reduce(table);
  decide(table);
  pass(kernels.update);
  if (info_of(table.range.rule).has_trust) {
    decide_trust(table);
    pass(kernels.apply_trust);
  }
  if (!applied_by) return;
  table.range.rule = *applied_by;
  pass(kernels.update);
}

double seconds(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One step of 100,003 parameters on both paths, compared bit by bit.
bool agrees(const CpuKernels& kernels, const Workload& workload) {
  Settings small;
  small.parameters = 100002;
  small.tensors = 3;
  Memory expected(small), seen(small);
  StepPlan one = expected.plan(small, workload), other = seen.plan(small, workload);
  step(*cpu_kernels(Path::reference), one.table(), 1);
  step(kernels, other.table(), 1);
  return expected.parameter == seen.parameter && expected.copy == seen.copy &&
         expected.moment[0] == seen.moment[0] && expected.moment[1] == seen.moment[1];
}

std::vector<Workload> workloads() {
  std::vector<Workload> all = {
#define DEMI_RULE_ENTRY(name, Name) {#name, UpdateRule::name, {}},
#include "demi/kernels/rules/entries.h"
      {"sgd-momentum", UpdateRule::sgd, {}}};
  for (Workload& workload : all) {
    workload.group.learning_rate = 1e-6;
    if (workload.rule != UpdateRule::sgd) workload.group.weight_decay = 0.01;
  }
  all.back().group.momentum = 0.9;
  return all;
}

void bench(const Settings& settings, const CpuKernels& kernels) {
  Memory memory(settings);
  const auto n = static_cast<std::size_t>(settings.parameters) * sizeof(float);
  std::vector<float> target(static_cast<std::size_t>(settings.parameters));
  const auto copy = [&] {
    split(settings.threads, static_cast<std::int64_t>(n),
          [&](std::int64_t begin, std::int64_t end) {
            std::memcpy(reinterpret_cast<char*>(target.data()) + begin,
                        reinterpret_cast<char*>(memory.parameter.data()) + begin,
                        static_cast<std::size_t>(end - begin));
          });
  };
  std::printf("%-14s %8s %9s %9s %9s %8s %10s %9s\n", "rule", "bytes/p", "ms min", "ms med", "GB/s",
              "copy", "of copy", "of median");
  for (const Workload& workload : workloads()) {
    if (!agrees(kernels, workload)) {
      std::printf("%-14s differs from the reference: not timed\n", workload.name);
      std::exit(1);
    }
    StepPlan plan = memory.plan(settings, workload);
    const StepTable table = plan.table();
    step(kernels, table, settings.threads);
    copy();
    std::vector<double> copies, steps;
    for (int round = 0; round < settings.rounds; ++round) {
      copies.push_back(seconds(copy));
      steps.push_back(seconds([&] { step(kernels, table, settings.threads); }));
    }
    const double least = *std::min_element(steps.begin(), steps.end());
    const double copy_least = *std::min_element(copies.begin(), copies.end());
    const auto bytes = static_cast<double>(traffic_of(table).total());
    const double rate = bytes / least / 1e9,
                 copy_rate = 2.0 * static_cast<double>(n) / copy_least / 1e9;
    const double of_median =
        bytes / median(steps) / (2.0 * static_cast<double>(n) / median(copies));
    std::printf("%-14s %8.1f %9.3f %9.3f %9.2f %8.2f %9.1f%% %8.1f%%\n", workload.name,
                traffic_of(table).bytes_per_element(), least * 1e3, median(steps) * 1e3, rate,
                copy_rate, 100 * rate / copy_rate, 100 * of_median);
  }
}

void bench_small(const CpuKernels& kernels) {
  Settings settings;
  settings.tensors = 40;
  settings.parameters = 40 * 256;
  Memory memory(settings);
  for (const Workload& workload : workloads()) {
    StepPlan plan = memory.plan(settings, workload);
    const StepTable table = plan.table();
    constexpr int kSteps = 20;  // short enough to fit between two interruptions
    double least = 1;
    for (int round = 0; round < 200; ++round) {
      least = std::min(least, seconds([&] {
                         for (int s = 0; s < kSteps; ++s) step(kernels, table, 1);
                       }));
    }
    std::printf("%-14s 40 tensors of 16 x 16: %.2f us a step (one thread)\n", workload.name,
                least / kSteps * 1e6);
  }
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--parameters") settings.parameters = std::atoll(argv[i + 1]);
    if (name == "--rounds") settings.rounds = std::atoi(argv[i + 1]);
    if (name == "--threads") settings.threads = std::atoi(argv[i + 1]);
    if (name == "--tensors") settings.tensors = std::atoi(argv[i + 1]);
    if (name == "--path") settings.path = argv[i + 1];
  }
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  const Path path =
      path_for(Device::cpu, settings.path.empty() ? std::nullopt : std::optional(settings.path));
  const CpuKernels* kernels = cpu_kernels(path);
  if (!kernels) return 2;
  std::printf("%s, %s; path %s, %d threads, %lld parameters in %d tensors\n",
              demi::processor_name().c_str(), demi::describe(demi::instruction_set()).c_str(),
              std::string(name_of(path)).c_str(), settings.threads,
              static_cast<long long>(settings.parameters), settings.tensors);
  bench(settings, *kernels);
  bench_small(*kernels);
  std::printf(
      "again: kernels_bench --parameters %lld --rounds %d --threads %d --tensors %d --path %s\n",
      static_cast<long long>(settings.parameters), settings.rounds, settings.threads,
      settings.tensors, std::string(name_of(path)).c_str());
}
