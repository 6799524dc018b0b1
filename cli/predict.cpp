#include "lab/predict/predict.h"

#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/inspect_text.h"
#include "cli/literal_arguments.h"
#include "cli/output.h"
#include "cli/settings.h"
#include "demi/core/error.h"
#include "lab/report/format.h"
#include "lab/report/table.h"
#include "lab/settings/recipe.h"

namespace demi::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PredictArguments {
  std::string file, column;
  std::vector<std::string> inputs;
  predict::Options options;
  bool json_lines = false;
  Output output;
};

Json json_of(const predict::Model& model, const predict::Input& input,
             const predict::Prediction& one) {
  Json json{{"input", input.name}};
  if (!input.place.empty()) json["place"] = input.place;
  if (!one.error.empty()) {
    json["error"] = one.error;
    return json;
  }
  const auto likely = [&](const predict::Likely& l) {
    return Json{{"class", model.data->classes[static_cast<std::size_t>(l.number)]},
                {"number", l.number},
                {"probability", l.probability}};
  };
  json.update(likely(one.likeliest.front()));
  json["likeliest"] = Json::array();
  for (const predict::Likely& l : one.likeliest) json["likeliest"].push_back(likely(l));
  return json;
}

std::string text_of(const predict::Model& model, const predict::Likely& l) {
  return fmt::format("{} {}", model.data->classes[static_cast<std::size_t>(l.number)],
                     report::format_percent(l.probability));
}

report::Table table_of(const predict::Model& model, const std::string& file) {
  report::Table table{.title = file};
  for (const char* name : {"input", "class", "probability"})
    table.columns.push_back({.name = name, .align = report::Align::kLeft});
  table.columns.back().align = report::Align::kRight;
  if (model.top_k > 1) table.columns.push_back({.name = "then", .align = report::Align::kLeft});
  return table;
}

std::vector<std::string> row_of(const predict::Model& model, const predict::Input& input,
                                const predict::Prediction& one) {
  std::vector<std::string> row{one_line(input.name)};
  if (!one.error.empty()) {
    row.emplace_back("error");
    return row;
  }
  const predict::Likely& first = one.likeliest.front();
  row.push_back(model.data->classes[static_cast<std::size_t>(first.number)]);
  row.push_back(report::format_percent(first.probability));
  std::string then;
  for (std::size_t i = 1; i < one.likeliest.size(); ++i)
    then += (then.empty() ? "" : ", ") + text_of(model, one.likeliest[i]);
  row.push_back(then);
  row.resize(model.top_k > 1 ? 4 : 3);
  return row;
}

std::vector<predict::Input> inputs_of(const PredictArguments& a, const predict::Model& model) {
  const predict::Sources sources{std::cin, note};
  const bool reads_texts = model.data->input.kind == data::Kind::texts;
  if (a.column.empty())
    return reads_texts ? predict::text_inputs(a.inputs, sources)
                       : predict::picture_inputs(a.inputs, sources);
  if (!reads_texts)
    throw UsageError({.where = "--csv",
                      .what = "the model of " + a.file + " reads pictures",
                      .seen = a.column,
                      .advice = "leave it out, and name pictures or folders of them"});
  return predict::csv_inputs(a.inputs, a.column);
}

// Settings by which the run differs from its recipe, as they are typed.
std::string line_that_trains(const settings::Config& config) {
  std::string best;
  for (const settings::Recipe& recipe : settings::recipes()) {
    if (recipe.config.model != config.model) continue;
    std::string line = "demi train " + recipe.name;
    for (const settings::Setting& setting : settings::all_settings())
      if (const std::string value = setting.get(config);
          setting.name != "resume" && value != setting.get(recipe.config))
        line += option_text(setting, value);
    if (best.empty() || line.size() < best.size()) best = line;
  }
  return best;
}

void require_words(const std::string& file) {
  const workload::ModelTexts texts = workload::read_model_texts(file);
  if (!predict::lacks_words(texts)) return;
  throw DataError(
      {.where = "predict",
       .what = file + " is of an older demi and has no words to number texts by",
       .seen = "no demi.vocabulary",
       .accepted = "a model file with its words",
       .advice = "this makes a new one, where its data are: " + line_that_trains(texts.config)});
}

// Prints an input's error on stderr, too, if people read the results.
void say_error(const PredictArguments& a, const predict::Model& model, const predict::Input& input,
               const predict::Prediction& one) {
  if (one.error.empty() || a.output.is_json() || a.json_lines) return;
  const bool is_named =  // by the error itself
      model.data->input.kind != data::Kind::texts || !input.place.empty();
  note(is_named ? one.error : fmt::format("\"{}\": {}", one_line(input.name), one.error));
}

int code_of(const predict::Counts& counts) {
  if (counts.errors == 0) return kDone;
  std::cerr << fmt::format("demi: {} of {} inputs could not be predicted\n", counts.errors,
                           counts.inputs);
  return counts.not_finite > 0 ? kTrainingFailed : kData;
}

void predict_all(const PredictArguments& a) {
  if (a.json_lines && a.output.is_json())
    throw UsageError(
        {.where = "--json-lines", .what = "one of --json and --json-lines", .seen = "both"});
  require_words(a.file);
  const predict::Model model = predict::load_model(a.file, a.options);
  if (model.is_older)
    note(a.file + " is of an older demi and has no names of classes: they are numbered");
  if (!model.note.empty()) note(model.note);
  const std::vector<predict::Input> inputs = inputs_of(a, model);
  note_slow_precisions({model.run.spec}, model.run.device);
  report::Table table = table_of(model, a.file);
  Json json{{"file", a.file},
            {"precision", model.run.spec.label},
            {"classes", model.data->classes},
            {"predictions", Json::array()}};
  const auto done = [&](const predict::Prediction& one) {
    const predict::Input& input = inputs[one.input];
    say_error(a, model, input, one);
    if (a.json_lines)
      Output::print_lines(
          json_of(model, input, one).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    else if (a.output.is_json())
      json["predictions"].push_back(json_of(model, input, one));
    else
      table.rows.push_back(row_of(model, input, one));
  };
  const predict::Counts counts = predict::predict(model, inputs, done, note);
  if (!a.json_lines) a.output.show({table}, json);
  if (const int code = code_of(counts); code != kDone) throw Exit{code};
}

// Refuses options that were given as 0 or as an empty text, which are the values of options that
// were not given.
void require_given_values(const CLI::App& command, const PredictArguments& a) {
  const auto refuse_if = [&](const char* option, bool is_none, const std::string& seen,
                             const char* accepted) {
    if (command.count(option) > 0 && is_none)
      throw UsageError({.where = option,
                        .what = "no value, as of a variable of the shell that is not set",
                        .seen = seen,
                        .accepted = accepted,
                        .advice = "leave it out for the default"});
  };
  refuse_if("--csv", a.column.empty(), "\"\"", "the heading of a column");
  refuse_if("--fuse", a.options.fuse.empty(), "\"\"", "low-precision, always or never");
  refuse_if("--top-k", a.options.top_k == 0, "0", "1 to the model's classes");
  refuse_if("--batch-size", a.options.batch_size == 0, "0", "1 to 1048576");
}

}  // namespace

void add_predict(CLI::App& app) {
  auto* command = app.add_subcommand("predict", "Classes of pictures and texts, by a saved model");
  const auto a = std::make_shared<PredictArguments>();
  command
      ->add_option("FILE", a->file,
                   "Model file (a run folder's ...model.safetensors), checkpoint, or run folder")
      ->required();
  command
      ->add_option("INPUT", a->inputs,
                   "Pictures and folders of them, or texts; @FILE has one a line, - is standard "
                   "input")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--csv", a->column,
                      "INPUT are CSV or TSV files, and the texts those of this column");
  command->add_option("--top-k", a->options.top_k,
                      "Number of classes to name, the likeliest first [3, or all]");
  command->add_option("--batch-size", a->options.batch_size,
                      "Inputs per batch [that of the run's tests]");
  command->add_option("--precision", a->options.precision, "Precision to compute in")
      ->capture_default_str();
  command
      ->add_option("--workers", a->options.workers,
                   "Threads that decode pictures ahead; 0: between the batches")
      ->capture_default_str();
  command->add_option("--graph", a->options.graph,
                      "Of a network from Python its .pt2 file [as in training, or beside FILE]");
  command->add_option("--fuse", a->options.fuse,
                      "Likewise what runs as one operator: low-precision, always or never [as in "
                      "training]");
  add_device_option(*command, a->options.device);
  a->output.add_to(*command);
  command->add_flag("--json-lines", a->json_lines, "Print a line of JSON for each input");
  command->callback([a, command] {
    require_given_values(*command, *a);
    for (std::string* text : {&a->file, &a->column}) *text = literal(*text);
    for (std::string& input : a->inputs) input = literal(input);
    predict_all(*a);
  });
}

}  // namespace demi::cli
