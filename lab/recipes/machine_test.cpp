#include "lab/recipes/machine.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/results/compare_report.h"
#include "lab/results/machine_json.h"

namespace demi::recipes {
namespace {

Machine with_gpu() {
  Machine m = machine(c10::kCPU);
  m.device = "cuda:0";
  m.gpu = profile::Gpu{.name = "NVIDIA H200",
                       .memory_bytes = int64_t{3} << 29,
                       .compute_capability = "9.0",
                       .driver = "570.86.15",
                       .cuda = "12.8"};
  m.device_name = m.gpu->name;
  return m;
}

TEST(MachineText, NamesTheGpuItsMemoryAndItsDriver) {
  const std::string text = describe(with_gpu());
  EXPECT_EQ(text.find("NVIDIA H200 (1.5 GiB, driver 570.86.15, CUDA 12.8), "), 0u) << text;
  EXPECT_EQ(title(with_gpu()), "NVIDIA H200");
  const Machine cpu = machine(c10::kCPU);
  EXPECT_EQ(describe(cpu).find(cpu.device_name + " ("), 0u) << describe(cpu);
  EXPECT_EQ(title(cpu), "cpu");
}

TEST(MachineText, JsonHasTheGpuToo) {
  const auto json = results::json_of(with_gpu());
  EXPECT_EQ(json["device"], "cuda:0");
  EXPECT_EQ(json["device_name"], "NVIDIA H200");
  EXPECT_EQ(json["device_memory_bytes"], int64_t{3} << 29);
  EXPECT_EQ(json["driver"], "570.86.15");
  EXPECT_TRUE(results::json_of(machine(c10::kCPU))["driver"].is_null());
}

TEST(MachineText, TableAndReportNameTheGpu) {
  Comparison c{.recipe = "mlp", .machine = with_gpu()};
  c.runs = {{.spec = settings::parse_run("fp32")}};
  EXPECT_EQ(results::to_table(c).title, "mlp: NVIDIA H200");
  const std::string html = report::to_html(results::to_page(c, "demi train mlp"));
  EXPECT_NE(html.find("570.86.15"), std::string::npos);
}

}  // namespace
}  // namespace demi::recipes
