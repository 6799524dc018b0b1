#include "lab/workload/imported_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "demi/autocast/op_lists.h"
#include "lab/report/format.h"

namespace demi::workload {
namespace {

using imported::FileSummary;
using imported::GraphSummary;
using imported::OperationSummary;
using imported::TensorSummary;
using report::Align;
using report::Table;

std::string outputs_of(const GraphSummary& graph) {
  return graph.output_names.empty() ? std::to_string(graph.outputs)
                                    : fmt::format("{}", fmt::join(graph.output_names, ", "));
}

void add_parameters(const FileSummary& file, Table& table) {
  int64_t trained = 0, frozen = 0;
  std::vector<std::string> ties;
  for (const TensorSummary& tensor : file.tensors) {
    if (!tensor.same_as.empty()) ties.push_back(tensor.name + " is " + tensor.same_as);
    if (!tensor.is_parameter || !tensor.same_as.empty()) continue;
    int64_t elements = 1;
    for (const int64_t size : tensor.sizes) elements *= size;
    (tensor.is_trainable ? trained : frozen) += elements;
  }
  table.rows.push_back({"trained", report::format_count(trained) + " parameters"});
  if (frozen > 0) table.rows.push_back({"frozen", report::format_count(frozen) + " parameters"});
  if (!ties.empty()) table.rows.push_back({"tied", first_few(ties)});
}

// What runs as one operator; "": nothing.
std::string fused_of(const GraphSummary& graph, const settings::Resolved& run) {
  if (graph.fusible.empty() || run.config.fuse == "never" || !run.device.is_cpu()) return "";
  return fmt::format(
      "{} batch norms, with the sum, ReLU and pooling behind them, {}; `demi inspect` names them",
      graph.fusible.size(),
      run.config.fuse == "always" ? "also in FP32" : "of 16-bit inputs (--fuse)");
}

Table network_table(const models::ImportedFile& file, const std::vector<std::string>& notes,
                    const settings::Resolved& run) {
  Table table{.title = "network " + file.info.name + ", exported by PyTorch " +
                       file.summary.torch_version};
  table.columns = {{.name = "name", .align = Align::kLeft},
                   {.name = "value", .align = Align::kLeft}};
  for (const GraphSummary& graph : file.summary.graphs) {
    const std::string of_graph = file.summary.graphs.size() > 1 ? " of " + graph.name : "";
    table.rows.push_back({"inputs" + of_graph, fmt::format("{}", fmt::join(graph.inputs, "; "))});
    table.rows.push_back({"outputs" + of_graph, outputs_of(graph)});
    table.rows.push_back({"mode" + of_graph, graph.mode});
    if (graph.is_decomposed)
      table.rows.push_back({"form" + of_graph, "decomposed (run_decompositions)"});
    if (const std::string fused = fused_of(graph, run); !fused.empty())
      table.rows.push_back({"fused" + of_graph, fused});
  }
  add_parameters(file.summary, table);
  table.notes = notes;
  return table;
}

// The precision of an operation in a region, by its name without an overload.
class Precisions {
 public:
  explicit Precisions(c10::Device device) {
    for (const OpRule& rule : default_op_rules(device.type()))
      categories_.emplace(rule.op.substr(0, rule.op.find('.')), rule.category);
  }
  std::string_view operator()(const std::string& op) const {
    constexpr std::string_view kAten = "aten::";
    const auto found = categories_.find(op.starts_with(kAten) ? op.substr(kAten.size()) : op);
    if (found == categories_.end()) return "that of its input";
    switch (found->second) {
      case OpCategory::lower_precision:
        return "16 bits";
      case OpCategory::fp32:
      case OpCategory::fp32_output:
        return "FP32";
      case OpCategory::promote:
        return "the widest of its inputs";
      default:
        return "that of its input";
    }
  }

 private:
  std::map<std::string, OpCategory> categories_;
};

bool is_arithmetic(const std::string& op) { return op.starts_with("aten::"); }

std::string place_of(const OperationSummary& operation) {
  return operation.module.empty() ? "the network itself" : operation.module;
}

struct Uses {
  std::size_t count = 0;
  std::vector<std::string> modules;
};

Table operation_table(const GraphSummary& graph, c10::Device device) {
  std::map<std::pair<std::string_view, std::string>, Uses> uses;
  const Precisions precision_of(device);
  for (const OperationSummary& operation : graph.operations) {
    if (!is_arithmetic(operation.op)) continue;
    Uses& one = uses[{precision_of(operation.op), operation.op}];
    ++one.count;
    if (std::string place = place_of(operation);
        std::ranges::find(one.modules, place) == one.modules.end())
      one.modules.push_back(std::move(place));
  }
  Table table{.title = "operations of " + graph.name};
  table.columns = {{.name = "operation", .align = Align::kLeft},
                   {.name = "times"},
                   {.name = "in a 16-bit region", .align = Align::kLeft},
                   {.name = "modules", .align = Align::kLeft}};
  for (const auto& [key, one] : uses)
    table.rows.push_back(
        {key.second, std::to_string(one.count), std::string(key.first), first_few(one.modules)});
  return table;
}

// The casts to a dtype that Python chose when it was exported, as that of another tensor.
std::vector<std::string> casts_of(const GraphSummary& graph) {
  std::vector<std::string> casts;
  for (const OperationSummary& operation : graph.operations)
    if (operation.op == "aten::to" || operation.op == "aten::_to_copy")
      casts.push_back(fmt::format("{} ({})", place_of(operation), operation.line));
  return casts;
}

}  // namespace

std::string first_few(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = std::min(names.size(), kShown);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > shown ? fmt::format("{}, and {} more", text, names.size() - shown) : text;
}

std::vector<Table> tables_of(const models::ImportedFile& file,
                             const std::vector<std::string>& notes, const settings::Resolved& run) {
  const GraphSummary& trained = file.summary.graphs.front();
  std::vector<Table> tables{network_table(file, notes, run), operation_table(trained, run.device)};
  if (const std::vector<std::string> casts = casts_of(trained); !casts.empty())
    tables.back().notes.push_back(
        "Casts to the dtype that they had when the network was exported, whatever the region: " +
        first_few(casts) + ".");
  return tables;
}

}  // namespace demi::workload
