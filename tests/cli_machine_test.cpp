// The program's output on the machine and on LibTorch's settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "lab/report/table.h"
#include "tests/cli_testing.h"

namespace cli_testing {
namespace {

const Words kSmall{"train",     "mlp", "--in",     "8", "--out",    "8",   "--batch-size", "4",
                   "--batches", "2",   "--epochs", "1", "--device", "cpu", "--json"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class Machine : public Cli {};

TEST_F(Machine, SettingsOfLibTorchAreInTheJson) {
  const Outcome outcome = run(with(kSmall, {"--threads", "1", "--cudnn-allow-tf32", "on",
                                            "--cudnn-benchmark", "--no-cudnn-enabled"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["machine"]["threads"], 1);
  const auto& backends = json["backends"];
  EXPECT_EQ(backends["threads"], 1);
  EXPECT_EQ(backends["cudnn_allow_tf32"], true);
  EXPECT_TRUE(backends["cuda_matmul_allow_tf32"].is_null()) << "as the precision says";
  EXPECT_EQ(backends["cudnn_benchmark"], true);
  EXPECT_EQ(backends["cudnn_enabled"], false);
}

TEST_F(Machine, SettingsOfLibTorchThatAreNoneAreRefused) {
  const auto expect = [&](const Words& more, const char* words) {
    const Outcome outcome = run(with(kSmall, more));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  expect({"--threads", "-1"}, "0 to 1024");
  expect({"--cudnn-allow-tf32", "yes"}, "auto, on, off");
  expect({"--cuda-matmul-allow-tf32", "onn"}, "did you mean on?");
}

TEST_F(Machine, TheDoctorAnswersInTimeAndInOrder) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = run({"doctor", "--model", "imdb-lstm", "--json"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_LT(json["seconds"].get<double>(), took.count());
  const auto& cpu = json["devices"][0];
  EXPECT_EQ(cpu["device"], "cpu");
  EXPECT_EQ(cpu["formats"][0]["dtype"], "fp32");
  EXPECT_EQ(cpu["formats"][0]["over_fp32"], 1.0);
  for (const auto& format : cpu["formats"]) EXPECT_GT(format["tflops"].get<double>(), 0);
  double before = std::numeric_limits<double>::infinity();
  for (const auto& advice : cpu["advice"]) {
    EXPECT_LE(advice["gain"].get<double>(), before);
    before = advice["gain"];
    EXPECT_GE(before, 1.05);
  }
  // Its embedding has 100 columns, which its LSTM reads. Its one logit is left as it is.
  std::vector<std::string> dimensions;
  for (const auto& one : json["model"]["dimensions"])
    dimensions.push_back(one["name"].get<std::string>() + " " + one["value"].dump() + " " +
                         one["next"].dump());
  EXPECT_THAT(dimensions, ::testing::ElementsAre("input_size 100 104"));
}

TEST_F(Machine, TheDoctorSaysWhereThereIsNoCuda) {
  const auto without_cuda = [] { setenv("DEMI_CUDA_LIBRARY", "off", 1); };
  const Outcome outcome = run({"doctor", "--seconds", "0"}, without_cuda);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* words : {"CUDA", "none: ", "DEMI_CUDA_LIBRARY", "nothing can be recorded: ",
                            "Kernel paths", "reference", "cudnn.benchmark", "costs: ", "Data sets"})
    EXPECT_THAT(outcome.out, HasSubstr(words));
  const auto json =
      nlohmann::json::parse(run({"doctor", "--seconds", "0", "--json"}, without_cuda).out);
  EXPECT_THAT(json["no_cuda"].get<std::string>(), HasSubstr("DEMI_CUDA_LIBRARY"));
  EXPECT_FALSE(json["no_graphs"].get<std::string>().empty());
  EXPECT_EQ(json["devices"].size(), 1U);
  EXPECT_TRUE(json["cuda_path"].is_null());
  EXPECT_TRUE(json["devices"][0]["formats"][0]["tflops"].is_null()) << "nothing is measured";
}

TEST_F(Machine, BenchMatmulGivesTheWordsThatScriptsRelyOn) {
  const std::string page = (folder_ / "matmul.html").string();
  const Words line{"bench",    "matmul",       "--sizes", "9,64",      "--dtypes",
                   "bf16",     "--iterations", "2",       "--seconds", "0.05",
                   "--device", "cpu",          "--html",  page};
  const Outcome text = run(line);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("in a region"));
  EXPECT_THAT(text.out, HasSubstr("again: demi bench matmul --sizes 9,64"));
  EXPECT_THAT(slurp(page), HasSubstr("<svg"));
  EXPECT_THAT(slurp(page), HasSubstr("bf16 in a region"));
  const Outcome outcome = run(with(line, {"--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 6U) << "two sizes of fp32, bf16 and bf16 in a region";
  EXPECT_EQ(json["rows"][0]["dtype"], "fp32");
  EXPECT_EQ(json["rows"][0]["speedup"], 1.0);
  EXPECT_EQ(json["rows"][5]["size"], 64);
  EXPECT_EQ(json["rows"][5]["in_region"], true);
  for (const auto& row : json["rows"])
    for (const char* word : {"seconds", "tflops", "speedup", "of_peak"})
      EXPECT_GT(row[word].get<double>(), 0) << word;
}

TEST_F(Machine, BenchMatmulRefusesSizesWithTheBound) {
  const auto expect = [&](const Words& more, const char* words) {
    const Outcome outcome = run(with({"bench", "matmul", "--device", "cpu"}, more));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  expect({"--sizes", "0"}, "below 1; seen: 0; accepted: 1 to ");
  expect({"--sizes", "64,-3"}, "below 1; seen: 64,-3; accepted: 1 to ");
  expect({"--sizes", "1000000000"}, "beyond the free memory; seen: 1000000000; accepted: 1 to ");
  expect({"--sizes", "8", "--dtypes", "fp61"}, "did you mean fp16?");
  expect({"--layers=conv3d"}, "conv2d");
  expect({"--layers", "--html", "page.html"}, "leave out");
}

TEST_F(Machine, BenchMemoryGivesTheWordsThatScriptsRelyOn) {
  const Words line{"bench", "memory",       "--model", "mlp",      "--input",
                   "8,64",  "--batch-size", "8,16",    "--device", "cpu"};
  const Outcome text = run(line);
  ASSERT_EQ(text.code, 0) << text.err;
  // The parameters are 4 * 12,480 bytes, which would be 0.05 MB.
  for (const char* words : {"activations", "predicted", "reduction", "bf16-true", " kB", "49.92",
                            "again: demi bench memory --model mlp --input 8,64 --batch-size 8,16"})
    EXPECT_THAT(text.out, HasSubstr(words));
  const auto json = nlohmann::json::parse(run(with(line, {"--json"})).out);
  ASSERT_EQ(json["runs"].size(), 6U) << "two batch sizes of fp32, bf16-true and bf16";
  const int64_t parameters = 3 * (64 * 64 + 64);  // three layers
  EXPECT_EQ(json["parameters"], parameters);
  for (const auto& one : json["runs"]) {
    const int64_t bytes = one["precision"] == "bf16-true" ? 2 : 4;
    EXPECT_EQ(one["peak"]["parameters"], bytes * parameters) << one;
    EXPECT_GT(one["predicted_bytes"].get<int64_t>(), 0);
    EXPECT_EQ(one["peak"]["total"], one["peak_bytes"]) << one;
  }
  EXPECT_EQ(json["runs"][0]["reduction"], 0.0);
  EXPECT_EQ(json["runs"][3]["batch_size"], 16);
  // Of the weights alone the mixed run holds half as much again.
  const Outcome use = run(with(line, {"--forward"}));
  EXPECT_THAT(use.out, HasSubstr("bf16 takes more than fp32 with a batch of 8: mixed precision "
                                 "keeps 16-bit copies beside the FP32 weights"));
  const auto summed = nlohmann::json::parse(run(with(line, {"--json", "--accumulate", "4"})).out);
  EXPECT_EQ(summed["accumulate"], 4);
  const auto forward = nlohmann::json::parse(run(with(line, {"--json", "--forward"})).out);
  EXPECT_EQ(forward["runs"][0]["peak"]["gradients"], 0);
  EXPECT_EQ(forward["runs"][0]["peak_bytes"], 4 * parameters + 4 * 4 * 8 * 64)
      << "weights, input, target, and input and result of a layer";
}

// The second direction has weights and biases of four gates, and its share of the last layer.
TEST_F(Machine, BenchMemoryTakesFlagsOfModels) {
  const int64_t embedding = 8, hidden = 6;
  const auto line = [&](const char* flag) {
    return Words{"bench",       "memory", "--model",  "imdb-lstm", "--input",      "2,4",
                 "--embedding", "8",      "--hidden", "6",         "--vocabulary", "50",
                 "--device",    "cpu",    flag,       "--forward", "--runs",       "fp32"};
  };
  const auto parameters = [&](const char* flag) {
    return nlohmann::json::parse(run(with(line(flag), {"--json"})).out)["parameters"]
        .get<int64_t>();
  };
  EXPECT_EQ(parameters("--bidirectional") - parameters("--no-bidirectional"),
            4 * hidden * (embedding + hidden + 2) + hidden);
  EXPECT_THAT(run(line("--bidirectional")).out, HasSubstr(" --hidden 6 --bidirectional "));
  const Outcome other = run({"bench", "memory", "--model", "mlp", "--device", "cpu", "--bias"});
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_THAT(other.err, HasSubstr("it is about the model gpt"));
}

TEST_F(Machine, BenchRecipeOfACpuSpeaksOfNoDevice) {
  const Words line{"bench", "recipe",       "mlp", "--in",     "8",  "--out",
                   "8",     "--batch-size", "4",   "--warmup", "2",  "--steps",
                   "2",     "--rounds",     "1",   "--device", "cpu"};
  const Outcome text = run(line);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.find("launches"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("µs"), std::string::npos) << text.out;
  const auto json = nlohmann::json::parse(run(with(line, {"--json"})).out);
  for (const char* word : {"host_us", "kernels", "launches", "busy_ms", "idle_share"})
    EXPECT_FALSE(json["runs"][1].contains(word)) << word;
}

// The second run has no profiler's records.
TEST(BenchOfADevice, ShowsHostLaunchesAndIdleTime) {
  const demi::bench::RecipeBenchResult result{
      .runs =
          {{.precision = "fp32",
            .ms = 2.9,
            .host_us = 2850.4,
            .of_device = {{.kernels = 150, .launches = 152.5, .busy_ms = 1.16, .idle_share = 0.6}}},
           {.precision = "fp16", .ms = 3, .host_us = 51.6}},
      .missing = {"a reason"}};
  demi::report::Table table{.columns = {{.name = "run"}}, .rows = {{"fp32"}, {"fp16"}}};
  demi::cli::add_device_columns(result, table);
  std::vector<std::string> names;
  for (const auto& column : table.columns) names.push_back(column.name);
  EXPECT_EQ(names, (std::vector<std::string>{"run", "host", "kernels", "launches", "device idle"}));
  EXPECT_EQ(table.columns[1].unit, "µs a step");
  EXPECT_EQ(table.rows[0], (std::vector<std::string>{"fp32", "2,850", "150", "152.5", "60.00 %"}));
  EXPECT_EQ(table.rows[1], (std::vector<std::string>{"fp16", "52"}));
  EXPECT_EQ(table.notes.back(), "a reason");
  const auto json = demi::cli::timing_json(result.runs[0]);
  EXPECT_EQ(json["host_us"], 2850.4);
  EXPECT_EQ(json["kernels"], 150);
  EXPECT_EQ(json["launches"], 152.5);
  EXPECT_EQ(json["busy_ms"], 1.16);
  EXPECT_EQ(json["idle_share"], 0.6);
  EXPECT_FALSE(demi::cli::timing_json(result.runs[1]).contains("kernels"));
}

TEST_F(Machine, BenchMemoryRefusesSizesWithTheBound) {
  const auto expect = [&](const Words& more, const char* words) {
    const Outcome outcome =
        run(with({"bench", "memory", "--device", "cpu", "--model", "mlp"}, more));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  expect({"--input", "0,64"}, "below 1; seen: 0,64; accepted: 2 numbers of 1 or more");
  expect({"--input", "8,-64"}, "below 1; seen: 8,-64; accepted: 2 numbers of 1 or more");
  expect({"--input", "8,64", "--batch-size", "0"}, "accepted: 1 or more");
  expect({"--input", "8,64", "--batch-size", "2000000000"}, "accepted: batch sizes from 1 to ");
  expect({"--input", "1,3000000"}, "MB that are free");
  expect({"--model", "mlq"}, "did you mean mlp?");
  expect({"--accumulate", "0"}, "--accumulate");
  expect({"--accumulate", "2", "--forward"}, "a forward pass accumulates no gradients");
}

TEST_F(Machine, BenchMatmulTimesLayersThreeWays) {
  const Outcome outcome =
      run({"bench", "matmul", "--layers=linear 32", "--rounds", "1", "--dtypes", "bf16", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["layers"].size(), 1U);
  const auto& layer = json["layers"][0];
  EXPECT_EQ(layer["op"], "linear 32 x 64 to 64");
  EXPECT_DOUBLE_EQ(layer["speedup"],
                   layer["fp32_ms"].get<double>() / layer["demi_ms"].get<double>());
  EXPECT_GT(layer["libtorch_ms"].get<double>(), 0);
}

}  // namespace
}  // namespace cli_testing
