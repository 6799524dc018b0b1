// demi inspect NAME.pt2: the graphs and tensors of a network that PyTorch exported.
#include "cli/inspect_network.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "demi/imported/imported_model.h"
#include "demi/imported/summary.h"
#include "demi/tensor/dtype.h"
#include "lab/report/format.h"
#include "lab/report/table.h"

namespace demi::cli {
namespace {

using imported::FileSummary;
using imported::GraphSummary;
using imported::TensorSummary;
using Json = nlohmann::ordered_json;

Json graph_json(const GraphSummary& graph) {
  return {
      {"name", graph.name},      {"mode", graph.mode},       {"decomposed", graph.is_decomposed},
      {"inputs", graph.inputs},  {"outputs", graph.outputs}, {"operators", graph.operators},
      {"fusible", graph.fusible}};
}

Json network_json(const std::filesystem::path& file, const FileSummary& summary, bool verified) {
  Json json{{"path", file.string()}, {"kind", "network"}, {"torch", summary.torch_version}};
  json["graphs"] = Json::array();
  for (const GraphSummary& graph : summary.graphs) json["graphs"].push_back(graph_json(graph));
  json["tensors"] = Json::array();
  for (const TensorSummary& tensor : summary.tensors)
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", tensor::name_of(tensor.dtype)},
                               {"shape", tensor.sizes},
                               {"parameter", tensor.is_parameter},
                               {"trainable", tensor.is_trainable},
                               {"same_as", tensor.same_as}});
  if (verified) json["verified"] = true;
  return json;
}

std::string operators_text(const GraphSummary& graph) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : graph.operators)
    parts.push_back(count == 1 ? name : fmt::format("{} x {}", count, name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

report::Table graph_table(const GraphSummary& graph) {
  return {
      .title = "graph " + graph.name,
      .columns = {{.name = "name", .align = report::Align::kLeft},
                  {.name = "value", .align = report::Align::kLeft}},
      .rows = {{"mode", graph.mode},
               {"form", graph.is_decomposed ? "decomposed (run_decompositions)" : "as exported"},
               {"inputs", fmt::format("{}", fmt::join(graph.inputs, "; "))},
               {"outputs", std::to_string(graph.outputs)},
               {"operators", operators_text(graph)}}};
}

report::Table fusible_table(const GraphSummary& graph) {
  report::Table table{
      .title = "what of graph " + graph.name + " runs as one operator in 16 bits on a CPU",
      .columns = {{.name = "operations", .align = report::Align::kLeft}}};
  for (const std::string& place : graph.fusible) table.rows.push_back({place});
  table.notes = {
      "FP32 is Python's bit by bit, unless --fuse always; --fuse never runs them one "
      "by one."};
  return table;
}

std::string role_of(const TensorSummary& tensor) {
  if (!tensor.same_as.empty()) return "is " + tensor.same_as;
  if (!tensor.is_parameter) return "buffer";
  return tensor.is_trainable ? "" : "frozen";
}

report::Table tensor_table(const std::filesystem::path& file, const FileSummary& summary) {
  report::Table table{
      .title = fmt::format("{}, exported by PyTorch {}", file.string(), summary.torch_version)};
  for (const char* name : {"tensor", "dtype", "shape", "what"})
    table.columns.push_back({.name = name, .align = report::Align::kLeft});
  int64_t trained = 0;
  for (const TensorSummary& tensor : summary.tensors) {
    table.rows.push_back({tensor.name, tensor::name_of(tensor.dtype),
                          fmt::format("({})", fmt::join(tensor.sizes, ", ")), role_of(tensor)});
    int64_t elements = 1;
    for (const int64_t size : tensor.sizes) elements *= size;
    if (tensor.is_trainable && tensor.same_as.empty()) trained += elements;
  }
  table.notes = {fmt::format("{} numbers to be trained. In C++: demi::ImportedModel model(\"{}\")",
                             report::format_count(trained), file.filename().string())};
  return table;
}

}  // namespace

bool is_exported_network(const std::filesystem::path& file) {
  std::error_code unreadable;  // which reading it says
  return file.extension() == ".pt2" && !std::filesystem::is_directory(file, unreadable);
}

void show_exported_network(const std::filesystem::path& file, bool verify, const Output& output) {
  const FileSummary summary = imported::summarize(file);
  std::vector<std::string> notes;
  if (verify)
    notes = ImportedModel(file)->notes();
  else if (summary.graphs.size() == 1)
    notes = {
        "One graph: what Python does otherwise in another mode is not known; "
        "demi_export.py writes a graph for each."};
  if (output.is_json()) return Output::print(network_json(file, summary, verify));
  std::vector<report::Table> tables{tensor_table(file, summary)};
  for (const GraphSummary& graph : summary.graphs) tables.push_back(graph_table(graph));
  if (verify)
    tables.back().notes.push_back(
        "Verified: the weights agree with their checksums, and every operation is known here.");
  for (const std::string& note : notes) tables.back().notes.push_back(note);
  for (const GraphSummary& graph : summary.graphs)
    if (!graph.fusible.empty()) tables.push_back(fusible_table(graph));
  Output::print(tables);
}

}  // namespace demi::cli
