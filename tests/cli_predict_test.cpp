// `demi predict`: what is printed, and the exit codes.
#include <gmock/gmock.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "demi/checkpoint/checkpoint.h"
#include "lab/settings/resolved.h"
#include "lab/workload/model_file.h"
#include "lab/workload/weights_file.h"
#include "lab/workload/workload.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;

class PredictProgram : public Cli {
 protected:
  // The shipped file of a small network with its initial weights, and no data beside it.
  void SetUp() override {
    auto config = small_recipes::of("imdb-lstm", folder_);
    config.data = "csv";
    config.train_file = folder_ / "data/train.csv";
    config.test_file = config.train_file;
    small_recipes::write(config.train_file, "label,text\nneg,bad\npos,good\n");
    const auto run = demi::settings::resolve(config, c10::kCPU);
    const auto workload = demi::workload::load_workload(config, c10::kCPU);
    const auto network = workload.make_network(1), spare = workload.make_network(0);
    demi::workload::save_shipped_weights(*network.module, *spare.module, run.spec.precision, file_,
                                         config, demi::workload::model_texts(run, workload, false));
    fs::remove_all(folder_ / "data");
  }

  std::string file_ = (folder_ / "model.safetensors").string();
};

TEST_F(PredictProgram, OneObjectALineForEachAndATable) {
  const json one = json_of({"predict", file_, "[good, bad]", "", " - dull", "--top-k", "2"});
  ASSERT_EQ(one["predictions"].size(), 3U) << "a text in brackets is one text";
  EXPECT_EQ(one["predictions"][2]["input"], " - dull");
  EXPECT_EQ(one["classes"], json({"neg", "pos"}));
  const json& first = one["predictions"][0];
  EXPECT_EQ(first["input"], "[good, bad]");
  EXPECT_EQ(first["class"], first["likeliest"][0]["class"]);
  EXPECT_NEAR(first["likeliest"][0]["probability"].get<double>() +
                  first["likeliest"][1]["probability"].get<double>(),
              1, 1e-6);
  const fs::path list = folder_ / "list";
  small_recipes::write(list, "good\nbad\xff\n");
  const Outcome lines = run({"predict", file_, "--json-lines", "-", "--", "--dull"},
                            [&] { (void)!freopen(list.c_str(), "r", stdin); });
  EXPECT_EQ(lines.code, 3);
  std::istringstream text(lines.out);
  std::vector<json> all;
  for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0]["place"], "standard input, line 1");
  EXPECT_THAT(all[1]["error"].get<std::string>(), HasSubstr("not UTF-8"));
  EXPECT_EQ(all[2]["input"], "--dull");
  EXPECT_THAT(lines.err, HasSubstr("1 of 3 inputs could not be predicted"));
  const Outcome table = run({"predict", file_, "good"});
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, AllOf(HasSubstr("probability"), HasSubstr("good"), HasSubstr(" %")));
  const Outcome damaged = run({"predict", file_, "good", "caf\xe9"});
  EXPECT_EQ(damaged.code, 3);
  EXPECT_THAT(damaged.err, HasSubstr("note: \"caf?\": not UTF-8: byte 0xe9 at offset 3"));
}

TEST_F(PredictProgram, WhatIsAskedWrongly) {
  small_recipes::write(folder_ / "t.csv", "text,label\ngood,1\n");
  const Outcome column = run({"predict", file_, (folder_ / "t.csv").string(), "--csv", "txt"});
  EXPECT_EQ(column.code, 2);
  EXPECT_THAT(column.err, HasSubstr("did you mean text"));
  EXPECT_EQ(run({"predict", file_, "a", "--json", "--json-lines"}).code, 2);
  EXPECT_EQ(run({"predict", file_, "a", "--top-k", "3"}).code, 2);
  EXPECT_EQ(run({"predict", file_}).code, 2);
  for (const auto& [option, value] :
       {std::pair("--csv", ""), std::pair("--top-k", "0"), std::pair("--batch-size", "0")}) {
    const Outcome none = run({"predict", file_, (folder_ / "t.csv").string(), option, value});
    EXPECT_EQ(none.code, 2) << option;
    EXPECT_THAT(none.err, HasSubstr("leave it out for the default")) << option;
  }
  EXPECT_EQ(run({"predict", (folder_ / "absent").string(), "a"}).code, 3);
}

TEST_F(PredictProgram, AnOutputThatIsNaNEndsWith1) {
  const auto texts = demi::checkpoint::read_safetensors_header(file_).metadata;
  demi::checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : demi::checkpoint::load(file_).model)
    tensors[name] = tensor.dim() == 1 ? at::full_like(tensor, NAN) : tensor.clone();
  demi::checkpoint::save_safetensors(file_, tensors, texts);
  const Outcome outcome = run({"predict", file_, "good", "--json"});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(json::parse(outcome.out)["predictions"][0]["error"].get<std::string>(),
              HasSubstr("NaN"));
}

TEST_F(PredictProgram, AnOlderFileOfTextsIsToldTheLineThatMakesANewOne) {
  auto texts = demi::checkpoint::read_safetensors_header(file_).metadata;
  demi::checkpoint::NamedTensors tensors;
  for (const auto& [name, tensor] : demi::checkpoint::load(file_).model)
    tensors[name] = tensor.clone();
  for (const char* name : {"demi.file", "demi.model", "demi.vocabulary", "demi.crc32c"})
    texts.erase(name);
  demi::checkpoint::save_safetensors(file_, tensors, texts);
  const Outcome outcome = run({"predict", file_, "good"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("demi train imdb-lstm"), HasSubstr("--data csv"),
                                 HasSubstr("--train-file train.csv"), HasSubstr("--hidden 16")));
}

}  // namespace
}  // namespace cli_testing
