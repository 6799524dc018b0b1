// Each setting of a training meets each command that reads a run: what the run says, the command
// takes, or it says whose the setting is. A new setting needs a row, a new command a cell.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "demi/checkpoint/checkpoint.h"
#include "lab/data/data_sets.h"
#include "lab/recipes/same_run_testing.h"
#include "lab/settings/config_source.h"
#include "tests/cli_testing.h"
#include "tests/setting_values.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using demi::data::Kind;
using demi::settings::Config;
using nlohmann::json;
using setting_values::Trained;

// Of a model whose run is tested, so that each command has an answer to hold its own against: what
// a recipe of rows without a test set shows of training, the one of texts has, too.
Trained with_a_test(Trained row) {
  static const std::set<std::string> kOfRows{
      "data", "in", "out", "depth", "batches", "input-scale", "gradient-penalty"};
  if (row.recipe != "mlp" || kOfRows.contains(row.setting)) return row;
  row.recipe = "imdb-lstm";
  row.base.insert(row.base.begin(), {{"optimizer", "sgd"}, {"schedule", "constant"}});
  if (row.setting == "fp32-part") row.value = "classifier";
  // Where they do something no weights are left.
  if (row.setting == "skip" || row.setting == "detect-anomaly")
    std::erase_if(row.base,
                  [](const auto& one) { return one.first == "init-scale" || one.first == "lr"; });
  return row;
}

const std::vector<Trained>& rows() {
  static const std::vector<Trained> all = [] {
    std::vector<Trained> table;
    for (const Trained& row : setting_values::trained())
      if (row.setting != "dry-run") table.push_back(with_a_test(row));  // it leaves no run
    const setting_values::Settings adamw{{"optimizer", "adamw"}}, pictures{{"model", "simple-cnn"}},
        averaged{{"ema", "0.5"}}, bf16{{"optimizer", "adamw"}, {"precision", "bf16"}};
    for (const Trained& row : std::vector<Trained>{
             {"data-dir", "FOLDER/moved", "imdb-lstm"},
             {"device", "cpu", "imdb-lstm"},
             {"devices", "cpu,cpu", "imdb-lstm"},
             {"ranks", "2", "imdb-lstm"},
             {"sync-batch-norm", "false", "fashion-cnn", {{"ranks", "2"}}},
             {"shard-optimizer", "true", "imdb-lstm", {{"ranks", "2"}, {"optimizer", "adamw"}}},
             {"weight-mode", "split", "imdb-lstm", bf16},
             {"weight-mode", "split24", "imdb-lstm", bf16},
             {"weight-mode", "stochastic", "imdb-lstm", bf16},
             {"recompute", "blocks", "gpt-shakespeare"},
             {"stop-after", "1h", "imdb-lstm"},
             {"keep-best", "2", "imdb-lstm"},
             {"best-by", "test_loss", "imdb-lstm"},
             {"loss", "bce", "imdb-lstm"},
             {"workers", "1", "imdb-lstm"},
             {"flush-subnormals", "false", "imdb-lstm"},
             {"cuda-matmul-allow-tf32", "on", "imdb-lstm"},
             {"cudnn-allow-tf32", "off", "imdb-lstm"},
             {"allow-fp16-reduced-precision-reduction", "false", "imdb-lstm"},
             {"allow-bf16-reduced-precision-reduction", "false", "imdb-lstm"},
             {"cudnn-enabled", "false", "imdb-lstm"},
             {"cudnn-benchmark", "true", "imdb-lstm"},
             {"deterministic", "true", "imdb-lstm"},
             {"threads", "1", "imdb-lstm"},
             {"from", "FOLDER/runs/begun", "imdb-lstm", averaged},
             {"from-state", "true", "imdb-lstm", {{"from", "FOLDER/runs/begun"}}},
             {"from-average", "true", "imdb-lstm", {{"from", "FOLDER/runs/begun"}}},
             {"precision", "fp16-true", "imdb-lstm"},
             {"precision", "fp16", "gpt-shakespeare"},
             {"moments", "bf16", "gpt-shakespeare"},
             {"block", "nanochat", "gpt-shakespeare"},
         })
      table.push_back(row);
    return table;
  }();
  return all;
}

// A setting that a command refuses, and its message.
struct Refusal {
  std::string setting, value, command, said;
};
const std::vector<Refusal> kRefusals{
    {"key-heads", "1", "export", "seen: gpt2 with shared key heads"},
    {"block", "nanochat", "export", "transformers has no such model"},
};

std::string name_of(const Trained& row) {
  return small_recipes::plain(row.setting) + "_" + std::to_string(&row - rows().data());
}

class SettingAndCommand : public Cli, public ::testing::WithParamInterface<int> {
 protected:
  SettingAndCommand() : row_(rows()[static_cast<std::size_t>(GetParam())]) {
    setting_values::write_files(folder_);
    config_ = small_recipes::of(row_.recipe, folder_ / "data");
    fs::rename(folder_ / "data", folder_ / "moved", ignored_);
    fs::create_directory_symlink("moved", folder_ / "data", ignored_);
    for (const auto& [name, value] : row_.base)
      setting_values::set_in(config_, name, value, folder_);
    config_.device = "cpu";
    small_recipes::write(folder_ / "base.json", demi::settings::to_json(config_));
    config_.ranks = 1;  // as far as `kind` is asked
    kind_ = demi::data::data_set(config_.data).kind;
  }

  fs::path folder_of(const std::string& name) const { return folder_ / "runs" / name; }

  Outcome run(Words words) {
    for (std::string& word : words) word = setting_values::in_folder(word, folder_);
    starts_for_real_ = asks_for_ranks() && (words[0] == "train" || words[0] == "compare");
    return Cli::run(words);
  }

  bool asks_for_ranks() const {
    if (row_.setting == "ranks" || row_.setting == "devices") return true;
    for (const auto& [name, value] : row_.base)
      if (name == "ranks") return true;
    return false;
  }

  // The object that it prints with --json.
  json answer(Words words) {
    words.emplace_back("--json");
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << text_of(words) << "\n" << outcome.err;
    return json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  }

  void refused(const Words& words, int code, const std::string& said) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, code) << text_of(words) << "\n" << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(said)) << text_of(words);
  }

  std::string refusal_of(const std::string& command) const {
    for (const Refusal& one : kRefusals)
      if (one.setting == row_.setting && one.value == row_.value && one.command == command)
        return one.said;
    return "";
  }

  static std::string text_of(const Words& words) {
    std::string text = "demi";
    for (const std::string& word : words) text += " " + word;
    return text;
  }

  // A run of the row's setting in runs/NAME.
  json train(const std::string& name, const Words& more = {}) {
    Words words{"train", row_.recipe, "--config", (folder_ / "base.json").string()};
    if (row_.value == "true" || row_.value == "false")
      words.push_back((row_.value == "true" ? "--" : "--no-") + row_.setting);
    else
      words.insert(words.end(), {"--" + row_.setting, row_.value});
    words.insert(words.end(), more.begin(), more.end());
    return made(name, words);
  }

  // The run folder that a command makes, under another name.
  json made(const std::string& name, const Words& words) {
    std::set<fs::path> before;
    if (fs::exists(folder_ / "runs"))
      for (const auto& entry : fs::directory_iterator(folder_ / "runs")) before.insert(entry);
    json result = answer(words);
    for (const auto& entry : fs::directory_iterator(folder_ / "runs"))
      if (!before.contains(entry)) return fs::rename(entry, folder_of(name)), result;
    return result;
  }

  static const json& only_run(const json& result) { return result.at("runs").at(0); }

  void eval(const json& run);
  void predict();
  void generate();
  void inspect();
  void export_it();
  void profile();
  void compare();
  void resume(const json& run);
  void start_from();

  Trained row_;
  Config config_;
  Kind kind_ = Kind::rows;
  std::error_code ignored_;
};

// The loss of the run's own last test, in the precision that it was trained in; in FP32 the
// accuracy that the run had in FP32.
void SettingAndCommand::eval(const json& run) {
  const std::string folder = folder_of("run");
  if (run.at("test_loss").is_null())
    return refused({"eval", folder}, 2, "the model was trained on data without a test set");
  std::vector<Words> all{
      {"eval", folder}, {"eval", folder + "/checkpoints"}, {"eval", folder + "/model.safetensors"}};
  for (Words words : all) {
    json result = answer(words);
    const std::string note = result.at("note").is_null() ? "" : result.at("note");
    if (note.find("training batches") != note.npos) continue;  // what it was tested on
    if (const auto at = note.find("--limit "); at != note.npos) {
      words.insert(words.end(), {"--limit", std::to_string(std::stoi(note.substr(at + 8)))});
      result = answer(words);
    }
    SCOPED_TRACE(text_of(words));
    const json& rows = result.at("runs");
    EXPECT_NEAR(rows.back().at("test_loss").get<double>(), run.at("test_loss").get<double>(),
                asks_for_ranks() ? 1e-6 : 0);  // whose sums have another order
    EXPECT_EQ(rows.back().at("test_accuracy"), run.at("test_accuracy"));
    if (rows.size() > 1) {
      EXPECT_EQ(rows.front().at("test_accuracy"), run.at("test_accuracy_fp32_eval"));
    }
    if (run.contains("test_top2_accuracy")) {
      EXPECT_EQ(rows.back().at("test_top2_accuracy"), run.at("test_top2_accuracy"));
    }
  }
}

void SettingAndCommand::predict() {
  const std::string folder = folder_of("run");
  const fs::path picture = folder_ / "one.png";
  small_recipes::write(picture, small_recipes::png(3));
  if (kind_ == Kind::rows || kind_ == Kind::tokens)
    return refused({"predict", folder, "good film"}, 2, "predict");
  const json result =
      answer({"predict", folder, kind_ == Kind::texts ? "good film" : picture.string()});
  double sum = 0;
  for (const json& one : result.at("predictions").at(0).at("likeliest"))
    sum += one.at("probability").get<double>();
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, 1 + 1e-5);
}

void SettingAndCommand::generate() {
  const Words words{"generate", folder_of("run"), "--length", "3", "--prompt", "a"};
  if (kind_ != Kind::tokens) return refused(words, 2, "generate");
  EXPECT_EQ(answer(words).at("samples").at(0).at("tokens").size(), 3);
}

void SettingAndCommand::inspect() { answer({"inspect", folder_of("run")}); }

void SettingAndCommand::export_it() {
  const std::string target = folder_ / "exported";
  if (kind_ != Kind::tokens) return refused({"export", folder_of("run"), target}, 2, "export");
  if (const std::string said = refusal_of("export"); !said.empty())
    return refused({"export", folder_of("run"), target}, 2, said);
  answer({"export", folder_of("run"), target});
  answer({"inspect", target});
}

void SettingAndCommand::profile() {
  const json result = answer({"profile", row_.recipe, "--config", folder_of("run") / "config.json",
                              "--steps", "1", "--warmup", "1", "--precision", "fp32"});
  EXPECT_EQ(result.at("runs").size(), 1);
}

void SettingAndCommand::compare() {
  const json result = answer({"compare", row_.recipe, "--config", folder_of("run") / "config.json",
                              "--runs", "fp32,bf16"});
  ASSERT_EQ(result.at("runs").size(), 2);
  for (const json& run : result.at("runs")) EXPECT_TRUE(run.at("failed").is_null()) << run;
}

// A run that ends a step earlier and goes on has the bits of the one that does not.
void SettingAndCommand::resume(const json& run) {
  const int64_t steps = run.at("steps");
  if (steps < 2) return;
  train("shorter", {"--steps", std::to_string(steps - 1)});
  answer({"train", "--resume", folder_of("shorter"), "--steps", std::to_string(steps)});
  same_run::expect_same_tensors(
      demi::checkpoint::load(folder_of("shorter") / "model.safetensors").model,
      demi::checkpoint::load(folder_of("run") / "model.safetensors").model);
}

// At a rate of 0 the weights stay those that it begins with.
void SettingAndCommand::start_from() {
  Words words{"train",    row_.recipe,
              "--config", folder_of("run") / "config.json",
              "--from",   folder_of("run"),
              "--lr",     "0",
              "--min-lr", "0",
              "--steps",  "1"};
  if (config_.optimizer == "muon") words.insert(words.end(), {"--muon-lr", "0"});
  made("from", words);
  const auto before = demi::checkpoint::load(folder_of("run") / "checkpoints").model;
  const auto after = demi::checkpoint::load(folder_of("from") / "checkpoints").model;
  for (const auto& [name, tensor] : before) {
    const bool is_parameter = name.find("running_") == name.npos && name.find("num_b") == name.npos;
    EXPECT_TRUE(!is_parameter || after.at(name).equal(tensor)) << name;
  }
}

TEST_P(SettingAndCommand, Agree) {
  if (row_.setting.starts_with("from") ||
      (!row_.base.empty() && row_.base.front().first == "from")) {
    Words first{"train", row_.recipe, "--ema", "0.5", "--config", (folder_ / "base.json").string()};
    Config config = config_;
    config.from.clear();
    small_recipes::write(folder_ / "first.json", demi::settings::to_json(config));
    first.back() = folder_ / "first.json";
    made("begun", first);
  }
  const json run = only_run(train("run"));
  EXPECT_TRUE(run.at("failed").is_null()) << run;
  eval(run);
  predict();
  generate();
  inspect();
  export_it();
  profile();
  compare();
  resume(run);
  start_from();
}

INSTANTIATE_TEST_SUITE_P(Rows, SettingAndCommand,
                         ::testing::Range(0, static_cast<int>(rows().size())), [](const auto& row) {
                           return name_of(rows()[static_cast<std::size_t>(row.param)]);
                         });

TEST(SettingsOfCommands, HaveARow) {
  // Of networks from Python; of a GPU; of no run; a cell of its own.
  std::set<std::string> known{"model-output", "fuse",    "channels-last",
                              "cuda-graph",   "dry-run", "resume"};
  for (const Trained& row : rows()) known.insert(row.setting);
  for (const demi::settings::Setting& setting : demi::settings::all_settings())
    EXPECT_TRUE(known.contains(setting.name)) << setting.name;
}

}  // namespace
}  // namespace cli_testing
