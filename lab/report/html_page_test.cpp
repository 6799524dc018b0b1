// A page and an event file as a comparison of three runs would leave them, with curves from a
// formula. The folder named by DEMI_REPORT_SAMPLE keeps them, for eyes, for check_page.py and for
// check_events.py.
#include "lab/report/html_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "demi/core/atomic_file.h"
#include "lab/report/event_file.h"
#include "lab/report/format.h"

namespace demi::report {
namespace {

constexpr int kSteps = 705, kEpochs = 3;

Series loss_curve(const std::string& name, unsigned seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 0.055);
  Series series{.name = name};
  for (int step = 1; step <= kSteps; ++step) {
    const double trend = 2.3 * std::exp(-step / 45.0) + 0.62 * std::exp(-step / 260.0) + 0.16;
    series.x.push_back(step);
    series.y.push_back(trend * scale * std::exp(2.2 * noise(random)));
  }
  return series;
}

Chart loss_chart() {
  Chart chart{.title = "Training loss",
              .x = {.label = "step"},
              .y = {.label = "cross entropy", .scale = Scale::kLog10}};
  chart.series = {loss_curve("fp32", 1, 1), loss_curve("bf16", 2, 1.01),
                  loss_curve("fp16", 3, 1.02)};
  for (int epoch = 1; epoch < kEpochs; ++epoch)
    chart.marks.push_back(
        {static_cast<double>(kSteps) / kEpochs * epoch, "epoch " + std::to_string(epoch + 1)});
  chart.smoothing = 0.9;
  return chart;
}

Chart accuracy_chart() {
  Chart chart{
      .title = "Test accuracy", .x = {.label = "epoch"}, .y = {.label = "accuracy", .unit = "%"}};
  chart.series = {{"fp32", {1, 2, 3}, {87.12, 90.45, 92.21}},
                  {"bf16", {1, 2, 3}, {86.61, 90.31, 92.17}},
                  {"fp16", {1, 2, 3}, {86.95, 90.62, 92.28}}};
  return chart;
}

Chart scale_chart() {
  Chart chart{.title = "Loss scale",
              .x = {.label = "step"},
              .y = {.label = "scale", .scale = Scale::kLog2},
              .steps = true};
  Series scale{.name = "fp16"};
  double value = 65536;
  for (int step = 1; step <= kSteps; ++step) {
    if (step == 3 || step == 190 || step == 402) value /= 2;
    if (step == 300 || step == 600) value *= 2;
    scale.x.push_back(step);
    scale.y.push_back(value);
  }
  chart.series = {{.name = "fp32"}, {.name = "bf16"}, scale};
  return chart;
}

Page sample_page() {
  Table table{
      .title = "",
      .columns = {{"run", "", Align::kLeft},
                  {"time per epoch", "s"},
                  {"speedup", "×"},
                  {"peak memory", "MB"},
                  {"resident set", "MB"},
                  {"model size", "MB"},
                  {"test loss", ""},
                  {"test accuracy", "%"},
                  {"evaluated in fp32", "%"},
                  {"skipped steps", ""}},
      .rows = {{"fp32", "44.7", "1.00", "618", "1,204", "1.41", "0.2213", "92.21", "92.21", ""},
               {"bf16", "26.1", "1.71", "352", "968", "0.71", "0.2219", "92.17", "92.19", ""},
               {"fp16", "31.9", "1.40", "353", "970", "0.71", "0.2208", "92.28", "92.28", "3"}},
      .notes = {
          "Time is training only; peak memory is what LibTorch's allocator held at most.",
          "Model size is the weights file that one would ship; test accuracy is that file's."}};
  StackedBars phases{.title = "Where the time goes",
                     .unit = "s",
                     .parts = {"forward", "backward", "optimizer", "data", "evaluation"},
                     .bars = {{"fp32", {44.1, 82.9, 5.2, 1.9, 6.3}},
                              {"bf16", {24.6, 47.2, 4.6, 1.9, 3.9}},
                              {"fp16", {30.4, 58.0, 5.4, 1.9, 4.4}}}};
  Chart rate{.title = "Throughput", .x = {.label = "epoch"}, .y = {.label = "images/s", .low = 0}};
  rate.series = {{"fp32", {1, 2, 3}, {1338, 1345, 1344}},
                 {"bf16", {1, 2, 3}, {2271, 2302, 2299}},
                 {"fp16", {1, 2, 3}, {1861, 1880, 1884}}};
  return {
      .title = "fashion-cnn: fp32, bf16 and fp16",
      .subtitle =
          "Fashion-MNIST, 60,000 images · 3 epochs · batch 256 · seed 1 · 2026-11-21 10:12 UTC",
      .sections = {{"",
                    {Highlights{{{"1.71 ×", "speedup", "bf16 against fp32"},
                                 {"−0.04 points", "test accuracy", "92.17 % against 92.21 %"},
                                 {"0.57 ×", "peak memory", "352 MB against 618 MB"},
                                 {"0.50 ×", "model size", "0.71 MB against 1.41 MB"}}},
                     table}},
                   {"Curves", {loss_chart(), accuracy_chart(), scale_chart(), rate}},
                   {"Time by phase", {phases}},
                   {"Machine",
                    {Facts{"",
                           {{"processor", "AMD EPYC 9R14, 2 cores, AVX-512 with bf16 instructions"},
                            {"memory", "16.5 GB"},
                            {"LibTorch", "2.15.0, 2 threads"},
                            {"demi", "0.1.0, kernels avx512"}}}}},
                   {"Again",
                    {Paragraph{"The same comparison once more:"},
                     Code{"demi compare fashion-cnn --runs fp32,bf16,fp16 --epochs 3 --batch-size "
                          "256 --seed 1"}}}},
      .footer = "Written by demi 0.1.0"};
}

/// Writes the events that check_events.py expects to read.
void write_sample_events(const std::filesystem::path& folder) {
  EventFile events(folder);
  for (int step = 1; step < kSteps; ++step) events.scalar("loss/train", step, 1.0 / step);
  events.scalar("loss/train", kSteps, std::nan(""));
  events.scalar("step/large", std::int64_t{1} << 40, 1);
  events.text("configuration", 0, "batch **256**, bf16 × fp32");
  events.histogram("weights", 1,
                   {.min = 0,
                    .max = 99,
                    .count = 100,
                    .sum = 4950,
                    .sum_squares = 328350,
                    .limits = {49.5, 99},
                    .counts = {50, 50}});
}

TEST(Sample, PageAndEventsCanBeWritten) {
  const char* const kept = std::getenv("DEMI_REPORT_SAMPLE");
  const std::filesystem::path folder =
      kept != nullptr ? kept : testing::TempDir() + "/demi_report_sample";
  std::filesystem::create_directories(folder);
  write_atomically(folder / "report.html", to_html(sample_page()));
  write_sample_events(folder);
  EXPECT_GT(std::filesystem::file_size(folder / "report.html"), 10'000);
  EXPECT_LT(std::filesystem::file_size(folder / "report.html"), 400'000);
}

}  // namespace
}  // namespace demi::report
