// What the program says of the machine and of LibTorch's settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

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

}  // namespace
}  // namespace cli_testing
