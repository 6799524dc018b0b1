// Quantizing and dequantizing FP32 numbers against a plain copy in the same run, without LibTorch.
//
//   quantize_bench [--rows N] [--columns N] [--rounds N] [--threads N] [--path NAME]
//
// 4096 x 4096 numbers by default. A round times one copy, one quantization and one dequantization;
// shown are the least times, with --threads 1 of the thread's processor time, which other work on
// the machine changes least. bytes: what both move for a number, 4 + 1 + 1 + 4 of FP8, and 4 more
// where the greatest magnitude of the tensor or of columns is found first; a copy moves 8. Results
// are compared with the reference's first, on a small matrix.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "demi/core/instruction_set.h"
#include "demi/kernels/cpu_kernels.h"

namespace {

using namespace demi::kernels;

struct Settings {
  std::int64_t rows = 4096, columns = 4096;
  int rounds = 15;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::string path;
};

struct Kind {
  const char* name;
  NarrowFormat format;
  Scaling scaling;
};
constexpr Kind kKinds[] = {{"fp8 tensor", NarrowFormat::e4m3, Scaling::tensor},
                           {"fp8 row", NarrowFormat::e4m3, Scaling::row},
                           {"mxfp8", NarrowFormat::e4m3, Scaling::mx_ceil},
                           {"mxfp8 e5m2", NarrowFormat::e5m2, Scaling::mx_ceil},
                           {"mxfp4", NarrowFormat::e2m1, Scaling::mx_ceil},
                           {"nvfp4", NarrowFormat::e2m1, Scaling::nv},
                           {"nvfp4 16x16", NarrowFormat::e2m1, Scaling::nv_square},
                           {"fp8 128", NarrowFormat::e4m3, Scaling::block_128},
                           {"fp8 128x128", NarrowFormat::e4m3, Scaling::square_128}};

/// body(begin, end) on all threads.
void split(int threads, std::int64_t n,
           const std::function<void(std::int64_t, std::int64_t)>& body) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int t = 0; t < threads; ++t) body(n * t / threads, n * (t + 1) / threads);
}

struct Memory {
  std::vector<float> from, to;
  std::vector<std::uint8_t> codes, scales;
  std::vector<std::uint32_t> greatest;
  float tensor_scale = 0;
  Quantization q{};

  Memory(std::int64_t rows, std::int64_t columns)
      : from(static_cast<std::size_t>(rows * columns)),
        to(from.size()),
        codes(from.size()),
        scales(from.size()),
        greatest(static_cast<std::size_t>(columns) + kCodeGroup) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> some(65536);
    for (float& x : some) x = normal(random);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = some[i % some.size()];
    q.rows = rows;
    q.columns = columns;
    q.from = from.data();
    q.to = to.data();
    q.storage = Storage::fp32;
    q.codes = codes.data();
    q.scales = scales.data();
    q.tensor_scale = &tensor_scale;
    q.greatest = greatest.data();
  }

  void choose(const Kind& kind, bool down, bool by_chance) {
    q.format = kind.format;
    q.scaling = kind.scaling;
    q.down = down;
    q.by_chance = by_chance;
    q.key = {1, 2, 0, 3};
  }

  void quantize(const CpuKernels& kernels, int threads) {
    if (needs_greatest_of_tensor(q.scaling)) {
      std::atomic<std::uint32_t> most{0};
      split(threads, q.rows * q.columns, [&](std::int64_t begin, std::int64_t end) {
        const std::uint32_t here =
            kernels.greatest_magnitude(from.data() + begin, q.storage, end - begin);
        std::uint32_t seen = most;
        while (seen < here && !most.compare_exchange_weak(seen, here)) {
        }
      });
      greatest[0] = most;
    }
    if (needs_greatest_of_columns(q)) {
      std::fill(greatest.begin(), greatest.end(), 0);
      std::mutex mutex;
      split(threads, q.rows, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::uint32_t> here(greatest.size());
        kernels.raise_greatest_of_columns(q, begin, end, here.data());
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < here.size(); ++i) greatest[i] = std::max(greatest[i], here[i]);
      });
    }
    split(threads, pieces_of(q),
          [&](std::int64_t begin, std::int64_t end) { kernels.quantize(q, begin, end); });
  }
  void dequantize(const CpuKernels& kernels, int threads) {
    split(threads, pieces_of(q),
          [&](std::int64_t begin, std::int64_t end) { kernels.dequantize(q, begin, end); });
  }
  void copy(int threads) {
    split(threads, static_cast<std::int64_t>(from.size() * sizeof(float)),
          [&](std::int64_t begin, std::int64_t end) {
            std::memcpy(reinterpret_cast<char*>(to.data()) + begin,
                        reinterpret_cast<const char*>(from.data()) + begin,
                        static_cast<std::size_t>(end - begin));
          });
  }
};

double now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds(int threads, const std::function<void()>& work) {
  const double start = now(threads);
  work();
  return now(threads) - start;
}

bool agrees(const CpuKernels& kernels, const Kind& kind, bool down, bool by_chance) {
  Memory expected(97, 1058), seen(97, 1058);
  for (Memory* one : {&expected, &seen}) {
    const CpuKernels& by = one == &seen ? kernels : *cpu_kernels(Path::reference);
    one->choose(kind, down, by_chance);
    one->quantize(by, 1);
    one->dequantize(by, 1);
  }
  return expected.codes == seen.codes && expected.scales == seen.scales && expected.to == seen.to;
}

void measure(const Settings& settings, const CpuKernels& kernels, Memory& memory, const Kind& kind,
             bool down, bool by_chance) {
  if (!agrees(kernels, kind, down, by_chance)) {
    std::printf("%s differs from the reference: not timed\n", kind.name);
    std::exit(1);
  }
  memory.choose(kind, down, by_chance);
  double copy = 1e9, there = 1e9, back = 1e9;
  for (int round = 0; round < settings.rounds; ++round) {
    copy = std::min(copy, seconds(settings.threads, [&] { memory.copy(settings.threads); }));
    there = std::min(
        there, seconds(settings.threads, [&] { memory.quantize(kernels, settings.threads); }));
    back = std::min(
        back, seconds(settings.threads, [&] { memory.dequantize(kernels, settings.threads); }));
  }
  const auto n = static_cast<double>(settings.rows * settings.columns);
  const double code = kind.format == NarrowFormat::e2m1 ? 0.5 : 1;
  const bool reads_twice =
      needs_greatest_of_tensor(kind.scaling) || needs_greatest_of_columns(memory.q);
  const double first = 4 + code + (reads_twice ? 4 : 0);
  const double rate = 8 * n / copy;
  std::printf("%-11s %-6s %-8s %8.2f %8.2f %8.2f %9.2f %9.2f %9.2f\n", kind.name,
              down ? "down" : "along", by_chance ? "chance" : "nearest", copy * 1e3, there * 1e3,
              back * 1e3, first * n / there / rate, (4 + code) * n / back / rate,
              (first + 4 + code) * n / (there + back) / rate);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--rows") settings.rows = std::atoll(argv[i + 1]);
    if (name == "--columns") settings.columns = std::atoll(argv[i + 1]);
    if (name == "--rounds") settings.rounds = std::atoi(argv[i + 1]);
    if (name == "--threads") settings.threads = std::atoi(argv[i + 1]);
    if (name == "--path") settings.path = argv[i + 1];
  }
  const CpuKernels* kernels = cpu_kernels(
      path_for(Device::cpu, settings.path.empty() ? std::nullopt : std::optional(settings.path)));
  if (!kernels || settings.rows < 1 || settings.columns < 1 || settings.rounds < 1 ||
      settings.threads < 1) {
    std::fprintf(
        stderr,
        "quantize_bench [--rows N] [--columns N] [--rounds N] [--threads N] [--path NAME]\n");
    return 2;
  }
  std::printf(
      "%lld x %lld numbers in FP32, %d threads, path %s; ms, the least of %d; and the rate of "
      "bytes over that of a copy\n",
      static_cast<long long>(settings.rows), static_cast<long long>(settings.columns),
      settings.threads, std::string(name_of(kernels->path)).c_str(), settings.rounds);
  std::printf("%-11s %-6s %-8s %8s %8s %8s %9s %9s %9s\n", "format", "blocks", "rounding", "copy",
              "quantize", "back", "quantize", "back", "both");
  Memory memory(settings.rows, settings.columns);
  for (const bool by_chance : {false, true})
    for (const Kind& kind : kKinds)
      for (const bool down : {false, true})
        if (!down || !(is_of_tensor(kind.scaling) || is_square(kind.scaling)))
          measure(settings, *kernels, memory, kind, down, by_chance);
  return 0;
}
