#include "lab/recipes/eval.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/option_values.h"
#include "cli/output.h"
#include "lab/report/format.h"
#include "lab/report/table.h"

namespace demi::cli {
namespace {

struct EvalArguments {
  std::string file, precisions, device = "auto", data_dir, test_file, graph;
  int64_t limit = 0, top_k = 0;
  Output output;
};

nlohmann::ordered_json eval_json(const recipes::EvalResult& result, const std::string& file) {
  nlohmann::ordered_json json{{"file", file}};
  json["trained_in"] = result.trained_in.empty() ? nlohmann::ordered_json()
                                                 : nlohmann::ordered_json(result.trained_in);
  json["note"] = result.notes.empty()
                     ? nlohmann::ordered_json()
                     : nlohmann::ordered_json(fmt::format("{}", fmt::join(result.notes, "; ")));
  json["unknown_words"] = result.unknown_words ? nlohmann::ordered_json(*result.unknown_words)
                                               : nlohmann::ordered_json();
  json["runs"] = nlohmann::ordered_json::array();
  for (const recipes::EvalRow& run : result.runs) {
    nlohmann::ordered_json row{{"precision", run.precision}, {"test_loss", run.evaluation.loss}};
    row["test_accuracy"] = run.evaluation.accuracy
                               ? nlohmann::ordered_json(*run.evaluation.accuracy)
                               : nlohmann::ordered_json();
    for (const auto& [name, value] : run.evaluation.metrics) row["test_" + name] = value;
    row["difference_to_fp32"] = run.difference_to_fp32
                                    ? nlohmann::ordered_json(*run.difference_to_fp32)
                                    : nlohmann::ordered_json();
    row["seconds"] = run.evaluation.seconds;
    json["runs"].push_back(row);
  }
  return json;
}

report::Table eval_table(const recipes::EvalResult& result, const std::string& file) {
  report::Table table{.title = file};
  table.columns = {{.name = "precision", .align = report::Align::kLeft},
                   {.name = "test loss"},
                   {.name = "test accuracy"},
                   {.name = "difference to fp32", .unit = "points"},
                   {.name = "time", .unit = "s"}};
  const bool has_top_k = result.top_k > 0;
  if (has_top_k)
    table.columns.insert(table.columns.begin() + 3,
                         {.name = fmt::format("top-{} accuracy", result.top_k)});
  for (const recipes::EvalRow& run : result.runs) {
    table.rows.push_back(
        {run.precision, report::format_fixed(run.evaluation.loss, 4),
         run.evaluation.accuracy ? report::format_percent(*run.evaluation.accuracy) : "",
         run.difference_to_fp32 ? fmt::format("{:+.2f}", 100 * *run.difference_to_fp32) : "",
         report::format_fixed(run.evaluation.seconds, 2)});
    if (has_top_k) {
      auto& row = table.rows.back();
      row.insert(row.begin() + 3, report::format_percent(run.evaluation.metrics.front().second));
    }
  }
  table.notes = {fmt::format("{} examples", result.runs.front().evaluation.examples)};
  if (!result.trained_in.empty()) table.notes.front() += "; trained in " + result.trained_in;
  for (const std::string& one : result.notes) table.notes.push_back(one + ".");
  return table;
}

void evaluate(const EvalArguments& a) {
  const recipes::EvalResult result = recipes::evaluate_saved(a.file, {.precisions = a.precisions,
                                                                      .device = a.device,
                                                                      .data_dir = a.data_dir,
                                                                      .test_file = a.test_file,
                                                                      .graph = a.graph,
                                                                      .limit = a.limit,
                                                                      .top_k = a.top_k});
  a.output.show({eval_table(result, a.file)}, eval_json(result, a.file));
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "A saved model on its test set, in any precision");
  const auto a = std::make_shared<EvalArguments>();
  command
      ->add_option(
          "FILE", a->file,
          "Run folder, checkpoint, weights file (a run folder's ...model.safetensors), or a "
          "folder of Hugging Face's")
      ->required();
  command->add_option(
      "--precision", a->precisions,
      "Precisions to evaluate in, by comma [fp32 and the one that it was trained in]");
  add_device_option(*command, a->device);
  command->add_option(
      "--data-dir", a->data_dir,
      "Folder that holds the data set's files [DEMI_DATA_DIR, else as in training]");
  command->add_option("--test-file", a->test_file,
                      "Texts with labels (csv) to test on [as in training]");
  command->add_option("--graph", a->graph,
                      "Of a network from Python its .pt2 file [as in training, or beside FILE]");
  command->add_option("--limit", a->limit, "Number of test examples to use, evenly spaced; 0: all")
      ->capture_default_str();
  command
      ->add_option(
          "--top-k", a->top_k,
          "Also report the share of examples whose class is among the k likeliest; 0: as in "
          "training (5 with more than 10 classes)")
      ->capture_default_str()
      ->check(whole_number(0));
  a->output.add_to(*command);
  command->callback([a] { evaluate(*a); });
}

}  // namespace demi::cli
