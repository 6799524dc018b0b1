// What the program says of the machine and of LibTorch's settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
  // Its embedding has 100 columns, which its LSTM reads; its one logit is a column of a product.
  std::vector<std::string> dimensions;
  for (const auto& one : json["model"]["dimensions"])
    dimensions.push_back(one["name"].get<std::string>() + " " + one["value"].dump() + " " +
                         one["next"].dump());
  EXPECT_THAT(dimensions, ::testing::ElementsAre("input_size 100 104", "out_features 1 8"));
}

TEST_F(Machine, TheDoctorSaysWhereThereIsNoCuda) {
  const auto without_cuda = [] { setenv("DEMI_CUDA_LIBRARY", "off", 1); };
  const Outcome outcome = run({"doctor", "--seconds", "0"}, without_cuda);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* words : {"CUDA", "none: ", "DEMI_CUDA_LIBRARY", "Kernel paths", "reference",
                            "cudnn.benchmark", "costs: ", "Data sets"})
    EXPECT_THAT(outcome.out, HasSubstr(words));
  const auto json =
      nlohmann::json::parse(run({"doctor", "--seconds", "0", "--json"}, without_cuda).out);
  EXPECT_THAT(json["no_cuda"].get<std::string>(), HasSubstr("DEMI_CUDA_LIBRARY"));
  EXPECT_EQ(json["devices"].size(), 1U);
  EXPECT_TRUE(json["cuda_path"].is_null());
  EXPECT_TRUE(json["devices"][0]["formats"][0]["tflops"].is_null()) << "nothing is measured";
}

}  // namespace
}  // namespace cli_testing
