#include "demi/train/published.h"

namespace demi::train {
namespace {

using report::Align;

report::Table cifar10_resnet50() {
  report::Table table{.title = "ResNet-50 on CIFAR-10, 200 epochs, FP32 and mixed precision"};
  table.columns = {{.name = "device", .align = Align::kLeft},
                   {.name = "batch"},
                   {.name = "fp32, an epoch"},
                   {.name = "mixed, an epoch"},
                   {.name = "fp32 size"},
                   {.name = "mixed size"},
                   {.name = "fp32 accuracy"},
                   {.name = "mixed accuracy"}};
  table.rows = {
      {"P100", "128", "1m32s", "1m15s", "90 MB", "46 MB", "94.50 %", "94.43 %"},
      {"4 x P100", "512", "26.224 s", "23.359 s", "90 MB", "46 MB", "94.51 %", "94.78 %"},
      {"4 x K80", "512", "1m24s", "1m17s", "90 MB", "46 MB", "94.634 %", "94.922 %"},
      {"V100", "128", "47.112 s", "25.601 s", "90 MB", "46 MB", "94.87 %", "94.65 %"},
      {"4 x V100", "512", "17.841 s", "12.833 s", "90 MB", "46 MB", "94.38 %", "94.60 %"}};
  table.notes = {"Source: suvojit-0x55aa/mixed-precision-pytorch, README."};
  return table;
}

report::Table ilsvrc() {
  report::Table table{.title = "ILSVRC12 top-1 accuracy, FP32 and mixed precision"};
  table.columns = {{.name = "network", .align = Align::kLeft},
                   {.name = "fp32", .unit = "%"},
                   {.name = "mixed", .unit = "%"}};
  table.rows = {{"AlexNet", "56.77", "56.93"},      {"VGG-D", "65.40", "65.43"},
                {"GoogLeNet", "68.33", "68.43"},    {"Inception v2", "70.03", "70.02"},
                {"Inception v3", "73.85", "74.13"}, {"ResNet-50", "75.92", "76.04"}};
  table.notes = {"Source: Micikevicius et al. 2017, \"Mixed precision training\", table 1."};
  return table;
}

report::Table detection() {
  report::Table table{.title = "Detection, mAP: FP32, mixed without and with loss scaling"};
  table.columns = {{.name = "network", .align = Align::kLeft},
                   {.name = "fp32", .unit = "%"},
                   {.name = "no scaling", .unit = "%"},
                   {.name = "scaling", .unit = "%"}};
  table.rows = {{"Faster R-CNN", "69.1", "68.6", "69.7"},
                {"Multibox SSD", "76.9", "diverges", "77.1"}};
  table.notes = {"Source: Micikevicius et al. 2017, \"Mixed precision training\", table 2."};
  return table;
}

}  // namespace

std::vector<report::Table> published_tables() {
  return {cifar10_resnet50(), ilsvrc(), detection()};
}

}  // namespace demi::train
