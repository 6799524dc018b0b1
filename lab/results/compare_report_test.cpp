#include "lab/results/compare_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "demi/core/error.h"
#include "demi/profile/phase_timer.h"
#include "lab/report/palette.h"
#include "lab/results/published.h"
#include "lab/settings/recipe.h"

namespace demi::results {
namespace {

recipes::Comparison two_runs() {
  recipes::Comparison c{.recipe = "fashion-cnn",
                        .config = settings::find_recipe("fashion-cnn").config};
  c.steps_per_epoch = 2;
  for (const char* name : {"fp32", "fp16"}) {
    recipes::RunResult run{.spec = settings::parse_run(name)};
    run.seconds = 20;
    run.seconds_per_epoch = c.runs.empty() ? 10 : 5;
    run.speedup = c.runs.empty() ? 1 : 2;
    run.test_loss = 0.25;
    run.test_accuracy = 0.9213;
    run.model_bytes = c.runs.empty() ? 1000000 : 500000;
    for (int64_t step = 1; step <= 4; ++step) {
      train::StepMetrics record{
          .epoch = 1, .step = step, .loss = 1.0 / static_cast<double>(step), .learning_rate = 0.1};
      if (run.spec.label == "fp16") record.loss_scale = 65536;
      run.history.steps.push_back(record);
    }
    run.history.epochs.push_back({.epoch = 1, .examples = 4, .loss = 0.5, .seconds = 10});
    c.runs.push_back(std::move(run));
  }
  return c;
}

TEST(CompareReport, JsonHasTheWordsThatScriptsRelyOn) {
  const auto json = json_of(two_runs());
  EXPECT_EQ(json["speedup"], 2);
  ASSERT_EQ(json["runs"].size(), 2u);
  for (const char* key : {"precision", "seconds", "seconds_per_epoch", "test_loss", "test_accuracy",
                          "test_accuracy_fp32_eval", "peak_bytes", "data_bytes", "model_bytes",
                          "checkpoint_bytes", "skipped_steps"}) {
    EXPECT_TRUE(json["runs"][1].contains(key)) << key;
  }
  EXPECT_EQ(json["runs"][1]["precision"], "fp16");
}

TEST(CompareReport, DataOnTheDeviceAreSaidApart) {
  recipes::Comparison c = two_runs();
  for (const std::string& note : to_table(c).notes) EXPECT_EQ(note.find("leaves out"), note.npos);
  for (recipes::RunResult& run : c.runs) run.data_bytes = 55'000'000;
  const auto notes = to_table(c).notes;
  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("leaves out the data, 55.0 MB on the device") != note.npos;
  }));
}

TEST(CompareReport, TableHasARowARunAndSaysWhatItRanOn) {
  recipes::Comparison c = two_runs();
  c.machine.instruction_set = "AVX-512, AVX512_BF16";
  c.notes = {"a note"};
  const report::Table table = to_table(c);
  ASSERT_EQ(table.rows.size(), 2u);
  for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size());
  EXPECT_EQ(table.rows[1][5], "0.2500") << "the process's memory is not known here";
  EXPECT_EQ(table.rows[1][6], "92.13 %");
  EXPECT_NE(table.notes[1].find("AVX512_BF16"), std::string::npos);
  EXPECT_EQ(table.notes.back(), "a note");
}

// The speed of a run that does not learn stood in the largest figures, and what the comparison
// shows in the table's fourth footnote.
TEST(CompareReport, RunsThatLearnDifferentlyShowThatFirst) {
  recipes::Comparison c = two_runs();
  const auto highlights_of = [](const recipes::Comparison& one) {
    return std::get<report::Highlights>(to_page(one, "demi compare").sections[0].blocks[0]);
  };
  EXPECT_EQ(to_table(c).columns[1].name, "time per epoch");
  EXPECT_EQ(highlights_of(c).figures[0].name, "speed");
  for (train::StepMetrics& step : c.runs[1].history.steps) step.loss = 1;
  const report::Table table = to_table(c);
  EXPECT_EQ(table.columns[1].name, "training loss, first to last");
  EXPECT_EQ(table.rows[0][1], "1 to 0.25, learned");
  EXPECT_EQ(table.rows[1][1], "1 to 1, stands still");
  for (const std::string& note : table.notes) EXPECT_EQ(note.find("Training loss"), note.npos);
  const report::Highlights first = highlights_of(c);
  ASSERT_EQ(first.figures.size(), 2u);
  EXPECT_EQ(first.figures[0].value, "1 to 0.25");
  EXPECT_EQ(first.figures[0].name, "fp32, learned");
  EXPECT_EQ(first.figures[1].name, "fp16, stands still");
}

// In their order, in the table's foot, the report and the JSON; without them no section.
TEST(CompareReport, SaysWhyASpeedupIsMinor) {
  recipes::Comparison c = two_runs();
  EXPECT_EQ(report::to_html(to_page(c, "demi compare")).find("Why the speedup"), std::string::npos);
  EXPECT_FALSE(json_of(c)["runs"][1].contains("slow_causes"));
  c.runs[1].speedup = 1.05;
  c.runs[1].slow_causes = {{"idle", 0.62, "the device is idle for 62 % of a step"},
                           {"short_kernels", 0.9, "90 % of the kernels are short"}};
  std::string notes;
  for (const std::string& note : to_table(c).notes) notes += note + "\n";
  const auto idle = notes.find("fp16, why it is hardly faster: the device is idle for 62 %");
  const auto shorts = notes.find("fp16, then: 90 % of the kernels are short");
  ASSERT_NE(idle, std::string::npos) << notes;
  ASSERT_NE(shorts, std::string::npos) << notes;
  EXPECT_LT(idle, shorts);
  const std::string html = report::to_html(to_page(c, "demi compare"));
  EXPECT_NE(html.find("Why the speedup is minor"), std::string::npos);
  EXPECT_NE(html.find("short kernels"), std::string::npos);
  const auto causes = json_of(c)["runs"][1]["slow_causes"];
  ASSERT_EQ(causes.size(), 2u);
  EXPECT_EQ(causes[0]["name"], "idle");
  EXPECT_EQ(causes[0]["number"], 0.62);
}

std::string cell_of(const report::Table& table, std::size_t row, const std::string& column) {
  for (std::size_t i = 0; i < table.columns.size(); ++i)
    if (table.columns[i].name == column) return table.rows[row][i];
  return "no such column";
}

bool says(const report::Table& table, const std::string& words) {
  return std::ranges::any_of(
      table.notes, [&](const std::string& note) { return note.find(words) != note.npos; });
}

TEST(CompareReport, ASpeedupOfADisturbedRunIsMarkedAndTheFootSaysWhy) {
  recipes::Comparison c = two_runs();
  EXPECT_EQ(cell_of(to_table(c), 1, "share of cores"), "no such column") << "it is not known";
  c.runs[0].cores_share = 0.99;
  c.runs[1].cores_share = 0.90;
  EXPECT_EQ(cell_of(to_table(c), 1, "speedup"), "2.00 ×");
  EXPECT_EQ(cell_of(to_table(c), 1, "share of cores"), "90 %");
  EXPECT_FALSE(says(to_table(c), "another program"));

  c.runs[1].cores_share = 0.62;
  c.runs[1].involuntary_switches = 1234;
  const report::Table marked = to_table(c);
  EXPECT_EQ(cell_of(marked, 0, "speedup"), "1.00 ×");
  EXPECT_EQ(cell_of(marked, 1, "speedup"), "* 2.00 ×");
  EXPECT_TRUE(
      says(marked, "* fp16 got 62 % of the cores that it asked for, with 1,234 involuntary"));
  EXPECT_TRUE(says(marked, "--interleave"));
  EXPECT_NE(report::to_html(to_page(c, "")).find("* 2.00 ×"), std::string::npos);

  std::swap(c.runs[0].cores_share, c.runs[1].cores_share);
  EXPECT_EQ(cell_of(to_table(c), 0, "speedup"), "* 1.00 ×");
  EXPECT_EQ(cell_of(to_table(c), 1, "speedup"), "* 2.00 ×") << "it is set against the first";
  const auto json = json_of(c);
  EXPECT_EQ(json["runs"][0]["cores_share"], 0.62);
  EXPECT_EQ(json["runs"][1]["involuntary_switches"], 1234);
  EXPECT_EQ(json["runs"][1]["disturbed"], true);
  c.runs[0].cores_share.reset();
  EXPECT_TRUE(json_of(c)["runs"][0]["cores_share"].is_null());
}

TEST(CompareReport, RunsThatTookTurnsSaySo) {
  recipes::Comparison c = two_runs();
  EXPECT_TRUE(json_of(c)["interleave"].is_null());
  c.turn_steps = 200;
  EXPECT_EQ(json_of(c)["interleave"], 200);
  EXPECT_TRUE(says(to_table(c), "turns of 200 steps"));
  EXPECT_EQ(cell_of(to_table(c), 0, "peak memory, process"), "no such column");
}

TEST(CompareReport, TopKAccuracyHasItsColumnAndItsWord) {
  recipes::Comparison c = two_runs();
  EXPECT_FALSE(json_of(c)["runs"][0].contains("test_top5_accuracy"));
  for (recipes::RunResult& run : c.runs) {
    run.top_k = 5;
    run.test_top_k_accuracy = 0.985;
  }
  EXPECT_EQ(cell_of(to_table(c), 1, "top-5 accuracy"), "98.50 %");
  EXPECT_EQ(json_of(c)["runs"][1]["test_top5_accuracy"], 0.985);
}

TEST(CompareReport, ALanguageModelsFlopsHaveTheirShareOfThePeak) {
  recipes::Comparison c = two_runs();
  const auto has_column = [&](const std::string& name) {
    return std::ranges::any_of(to_table(c).columns,
                               [&](const report::Column& one) { return one.name == name; });
  };
  EXPECT_FALSE(has_column("tokens per second"));
  EXPECT_FALSE(json_of(c)["runs"][0].contains("tokens_per_second"));
  for (recipes::RunResult& run : c.runs)
    run.flops = recipes::ModelFlops{.tokens_per_second = 8000, .per_token = 5'161'728};
  EXPECT_TRUE(has_column("tokens per second"));
  EXPECT_FALSE(has_column("of peak FLOPs")) << "which was not measured";
  c.runs[1].flops->peak_per_second = 1e11;
  const report::Table table = to_table(c);
  ASSERT_TRUE(has_column("of peak FLOPs"));
  EXPECT_TRUE(std::ranges::count(table.rows[1], "41.3 %"));
  EXPECT_TRUE(std::ranges::any_of(table.notes, [](const std::string& note) {
    return note.find("5.16 MFLOP a token") != note.npos &&
           note.find("fp16 41.3 GFLOP/s of 100 GFLOP/s") != note.npos;
  }));
  const auto json = json_of(c)["runs"];
  EXPECT_TRUE(json[0]["model_flop_utilization"].is_null());
  EXPECT_NEAR(json[1]["model_flop_utilization"], 0.41293824, 1e-9);
  EXPECT_EQ(json[1]["model_flop_per_token"], 5'161'728);
  EXPECT_EQ(json[1]["peak_flop_per_second"], 1e11);
}

TEST(CompareReport, TheFootSaysWhatFp32MeansForTf32) {
  recipes::Comparison c = two_runs();
  c.machine.device = "cpu";
  EXPECT_FALSE(says(to_table(c), "TF32"));
  c.machine.device = "cuda:0";
  EXPECT_TRUE(says(to_table(c), "TF32 is off"));
  EXPECT_FALSE(says(to_table(c), "TF32 on"));
  c.runs[0].spec = settings::parse_run("tf32");
  EXPECT_TRUE(says(to_table(c), "tf32 has TF32 on"));
  EXPECT_FALSE(says(to_table(c), "TF32 is off")) << "the mixed run is not an FP32 run";
  c.machine.device = "cpu";
  EXPECT_TRUE(says(to_table(c), "no tf32 on a CPU"));
}

TEST(CompareReport, TheFootFollowsTheSettingsOfTf32) {
  recipes::Comparison c = two_runs();
  c.machine.device = "cuda:0";
  c.config.cudnn_allow_tf32 = "on";
  EXPECT_TRUE(says(to_table(c), "fp32 has TF32 off in products, on in convolutions"));
  c.config.cuda_matmul_allow_tf32 = "on";
  EXPECT_TRUE(says(to_table(c), "fp32 has TF32 on in products, convolutions and recurrent"));
  c.config.cudnn_allow_tf32 = "off";
  c.runs[0].spec = settings::parse_run("tf32");
  EXPECT_TRUE(says(to_table(c), "tf32 has TF32 on in products, off in convolutions"));
}

// FP32 on a CPU is what everybody takes it for.
TEST(CompareReport, TheFootSaysNothingOfFp32OnACpu) {
  recipes::Comparison c = two_runs();
  c.machine.device = "cpu";
  EXPECT_FALSE(says(to_table(c), "oneDNN"));
  c.runs[0].spec = settings::parse_run("tf32");
  EXPECT_TRUE(says(to_table(c), "There is no tf32 on a CPU"));
}

// The training that was asked for, and the part of it that took place.
TEST(CompareReport, TheFootCountsWhatWasTrained) {
  recipes::Comparison c = two_runs();  // 4 steps each
  c.config.epochs = 2;
  EXPECT_TRUE(says(to_table(c), ", 2 epochs of 2 steps, batch"));
  c.config.epochs = 9;
  EXPECT_TRUE(says(to_table(c), ", 4 steps of 9 epochs of 2 steps, batch"));
  c.runs[1].history.steps.pop_back();
  EXPECT_TRUE(says(to_table(c), ", 9 epochs of 2 steps (fp32 4 steps, fp16 3 steps), batch"));
  const auto json = json_of(c);
  EXPECT_EQ(json["runs"][1]["steps"], 3);
  EXPECT_EQ(json["runs"][1]["epochs"], 1);
  EXPECT_FALSE(says(to_table(c), "foreseen"));
  c.runs[1].history.steps.resize(1);
  EXPECT_TRUE(says(to_table(c), "Less than an epoch, whose time is foreseen from that: fp16."));
}

TEST(CompareReport, CudnnsTrialsAreSaidOnCudaAlone) {
  recipes::Comparison c = two_runs();
  c.config.cudnn_benchmark = true;
  c.machine.device = "cpu";
  EXPECT_FALSE(says(to_table(c), "cuDNN timed"));
  c.machine.device = "cuda:0";
  EXPECT_TRUE(says(to_table(c), "cuDNN timed"));
  c.config.deterministic = true;
  EXPECT_FALSE(says(to_table(c), "cuDNN timed")) << "a deterministic run makes no trials";
}

TEST(CompareReport, JsonHasTheBackends) {
  recipes::Comparison c = two_runs();
  c.config.cudnn_allow_tf32 = "on";
  c.config.threads = 3;
  const auto json = json_of(c)["backends"];
  EXPECT_TRUE(json["cuda_matmul_allow_tf32"].is_null()) << "as the precision says";
  EXPECT_EQ(json["cudnn_allow_tf32"], true);
  EXPECT_EQ(json["cudnn_benchmark"], true) << "a recipe of pictures";
  EXPECT_EQ(json["threads"], 3);
}

TEST(CompareReport, AccumulatedBatchesAreSaid) {
  recipes::Comparison c = two_runs();
  EXPECT_EQ(to_table(c).notes[0].find("accumulated"), std::string::npos);
  c.config.accumulate = 4;
  EXPECT_NE(to_table(c).notes[0].find("batch 256 x 4 accumulated"), std::string::npos);
}

TEST(CompareReport, AStoppedRunShowsNoTestFigures) {
  recipes::Comparison c = two_runs();
  c.stopped = true;
  c.runs.back().history.stopped = true;
  c.runs.back().test_accuracy.reset();
  c.runs.back().test_loss.reset();
  EXPECT_EQ(to_table(c).rows[1][5], "");
  EXPECT_EQ(to_table(c).rows[1][6], "");
  const auto json = json_of(c);
  EXPECT_TRUE(json["runs"][1]["test_accuracy"].is_null());
  EXPECT_TRUE(json["stopped"]);
}

// Without a test set or a saved model there is nothing to leave room for.
TEST(CompareReport, AStoppedRunHasColumnsForWhatARunToTheEndWouldShow) {
  const auto columns = [](const recipes::Comparison& c) {
    std::set<std::string> names;
    for (const report::Column& column : to_table(c).columns) names.insert(column.name);
    return names;
  };
  recipes::Comparison c = two_runs();
  c.stopped = true;
  for (recipes::RunResult& run : c.runs) {
    run.history.stopped = true;
    run.test_accuracy.reset();
  }
  c.test_examples = 10;
  EXPECT_TRUE(columns(c).contains("test accuracy"));
  EXPECT_TRUE(columns(c).contains("evaluated in fp32"));
  EXPECT_FALSE(columns(c).contains("model size"));
  c.test_examples = 0;
  EXPECT_FALSE(columns(c).contains("test accuracy"));
  EXPECT_FALSE(columns(c).contains("evaluated in fp32"));
  c.runs[0].history.stopped = false;
  EXPECT_TRUE(columns(c).contains("model size"));
  EXPECT_EQ(to_table(c).rows[1][4], "") << "of the second run";
}

TEST(CompareReport, PageShowsHowLongStepsTookAndWaited) {
  recipes::Comparison c = two_runs();
  for (recipes::RunResult& run : c.runs)
    for (train::StepMetrics& step : run.history.steps) {
      step.seconds = 0.4;
      step.data_seconds = 0.1;
    }
  const report::Page page = to_page(c, "demi compare");
  const std::string html = report::to_html(page);
  EXPECT_NE(html.find("Time of a step"), std::string::npos);
  EXPECT_NE(html.find("Waiting for data"), std::string::npos);
}

TEST(CompareReport, PageShowsTheLossScaleOnlyWhereThereIsOne) {
  const std::string scaled = report::to_html(to_page(two_runs(), "demi compare"));
  EXPECT_NE(scaled.find("Loss scale"), std::string::npos);
  recipes::Comparison c = two_runs();
  c.runs.pop_back();
  const std::string plain = report::to_html(to_page(c, "demi compare"));
  EXPECT_EQ(plain.find("Loss scale"), std::string::npos);
}

std::vector<std::string> sections_of(const recipes::Comparison& c) {
  std::vector<std::string> titles;
  for (const report::Section& section : to_page(c, "demi compare").sections)
    titles.push_back(section.title);
  return titles;
}

// What only some comparisons have stands before the curves.
TEST(CompareReport, PageHasItsSectionsInTheirOrder) {
  recipes::Comparison c = two_runs();
  EXPECT_EQ(sections_of(c),
            (std::vector<std::string>{"", "Curves", "Where the time goes", "Machine", "Again"}));
  c.classes = {"a"};
  for (recipes::RunResult& run : c.runs) run.class_accuracy = {0.5};
  EXPECT_EQ(sections_of(c), (std::vector<std::string>{"", "By class", "Curves",
                                                      "Where the time goes", "Machine", "Again"}));
}

TEST(CompareReport, PageNamesTheMachineAndItsGpu) {
  recipes::Comparison c = two_runs();
  const auto names = [&c] {
    std::vector<std::string> all;
    for (const report::Section& section : to_page(c, "demi compare").sections)
      if (section.title == "Machine")
        for (const auto& row : std::get<report::Facts>(section.blocks.at(0)).rows)
          all.push_back(row.first);
    return all;
  };
  EXPECT_EQ(names(), (std::vector<std::string>{"device", "processor", "instruction set", "threads",
                                               "LibTorch", "demi"}));
  c.machine.gpu.emplace();
  EXPECT_EQ(names(), (std::vector<std::string>{"device", "memory", "compute capability", "driver",
                                               "processor", "instruction set", "threads",
                                               "LibTorch", "demi"}));
}

recipes::Comparison of_resnet50() {
  recipes::Comparison c = two_runs();
  c.recipe = "cifar10-resnet50";
  c.config = settings::find_recipe(c.recipe).config;
  c.machine.device = "cpu";
  c.training_examples = 50000;
  c.runs[0].seconds_per_epoch = 92;
  c.runs[1].seconds_per_epoch = 75.34;
  c.runs[0].model_bytes = 94300000;
  c.runs[1].model_bytes = 47400000;
  c.runs[1].test_accuracy = 0.9211;
  c.runs[1].test_accuracy_fp32_eval = 0.9215;
  return c;
}

TEST(Published, TheRunStandsBelowItsRecipesFigures) {
  const report::Table published = published_of("cifar10-resnet50").table;
  const auto beside = published_beside(of_resnet50());
  ASSERT_TRUE(beside);
  ASSERT_EQ(beside->rows.size(), published.rows.size() + 2);
  EXPECT_EQ(beside->rows.front(), published.rows.front());
  // 94,300,000 and 47,400,000 bytes over 2^20.
  std::vector<std::string> row{"this run, cpu, fp16, its 16-bit file",
                               "128",
                               "1m32s",
                               "1m15s",
                               "94.3 / 89.9",
                               "47.4 / 45.2",
                               "92.13 %",
                               "92.11 %"};
  EXPECT_EQ(beside->rows.at(beside->rows.size() - 2), row);
  row.front() = "this run, cpu, fp16, evaluated in fp32";
  row.back() = "92.15 %";
  EXPECT_EQ(beside->rows.back(), row);
  for (const std::size_t size : {4, 5}) EXPECT_EQ(beside->columns[size].unit, "MB / MiB");
  EXPECT_EQ(beside->rows.front()[4], "94 / 90");
  EXPECT_EQ(beside->rows.front()[5], "48 / 46");
  EXPECT_EQ(beside->notes.front(), published.notes.front()) << "the source stays";
  EXPECT_NE(beside->notes.back().find("5 epochs of 50,000"), std::string::npos);
  const auto json = json_of(of_resnet50());
  EXPECT_EQ(json["published"]["rows"].size(), beside->rows.size());
  EXPECT_NE(report::to_html(to_page(of_resnet50(), "")).find("this run, cpu, fp16"),
            std::string::npos);
}

// The source's 4 GPUs have a batch of 512 for the 128 of one.
TEST(Published, SeveralDevicesHaveTheBatchOfAllTogether) {
  recipes::Comparison c = of_resnet50();
  c.config.ranks = 4;
  const std::vector<std::string> row = published_beside(c).value().rows.back();
  EXPECT_EQ(row.at(0), "this run, 4 x cpu, fp16, evaluated in fp32");
  EXPECT_EQ(row.at(1), "512");
}

TEST(Published, NothingStandsBesideWhatIsNotTheSame) {
  EXPECT_FALSE(published_beside(two_runs())) << "fashion-cnn has no published table";
  EXPECT_FALSE(json_of(two_runs()).contains("published"));
  recipes::Comparison c = of_resnet50();
  c.config.model = "resnet18";
  EXPECT_FALSE(published_beside(c));
  c = of_resnet50();
  c.config.data = "cifar100";
  EXPECT_FALSE(published_beside(c));
  c = of_resnet50();
  c.stopped = true;
  EXPECT_FALSE(published_beside(c));
  c = of_resnet50();
  c.runs[0].spec = settings::parse_run("tf32");
  EXPECT_FALSE(published_beside(c)) << "no FP32 run";
  c = of_resnet50();
  c.runs.pop_back();
  EXPECT_FALSE(published_beside(c)) << "no mixed run";
  EXPECT_THROW(published_of("mlp"), UsageError);
  EXPECT_THROW(published_of(""), UsageError);
}

TEST(Published, JsonHasEveryTableWithItsSource) {
  const auto json = json_of(published());
  ASSERT_EQ(json.size(), published().size());
  EXPECT_EQ(json[0]["recipe"], "cifar10-resnet50");
  for (const auto& table : json) {
    for (const auto& row : table["rows"]) EXPECT_EQ(row.size(), table["columns"].size());
    EXPECT_NE(table["notes"][0].get<std::string>().find("Source: "), std::string::npos);
  }
}

// Seven with clipping, which has a phase of its own to unscale.
TEST(CompareReport, EachPhaseHasAColourOfItsOwn) {
  EXPECT_GE(report::kLight.runs.size(), profile::kPhaseNames.size());
}

}  // namespace
}  // namespace demi::results
