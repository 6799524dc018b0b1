// `demi inspect`: files from anywhere, checkpoints, damaged ones, differences.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/source_dir_testing.h"
#include "tests/cli_testing.h"

namespace cli_testing {
namespace {

using demi::checkpoint::Checkpoint;
using nlohmann::json;
using ::testing::AllOf;

class Inspect : public Cli {
 protected:
  static Checkpoint small_checkpoint() {
    return {.model = {{"layer.2.weight", at::arange(6, at::kFloat).view({2, 3})},
                      {"layer.10.weight", at::ones({4}, at::kBFloat16)}},
            .state = {{"optimizer/0.exp_avg", at::zeros({2, 3})},
                      {"history/steps.seconds", at::ones({3}, at::kDouble)}},
            .numbers = {{"scaler",
                         {{"scale", 65536}, {"odd", std::numeric_limits<double>::infinity()}}}},
            .text = {{"demi.config", std::string(500, 'c')}, {"lines", "one {\n  two\x1b\n}"}}};
  }
  fs::path save(const std::string& folder, const Checkpoint& checkpoint, int64_t step = 400) {
    return demi::checkpoint::save(folder_ / folder, step, checkpoint);
  }
  void expect_refused(Words arguments, int code, const std::string& words,
                      const std::function<void()>& before = {}) {
    arguments.insert(arguments.begin(), "inspect");
    const Outcome outcome = run(arguments, before);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(outcome.out, "");
  }
  // root, too, must be let in.
  std::function<void()> without_privileges() {
    return [this] {
      prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
      prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH);
      starts_for_real_ = true;  // execve drops what is not in the bounding set
    };
  }
  static void flip(const fs::path& file, std::uintmax_t at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(stream.get() ^ 4);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(byte);
  }
};

const fs::path kPython = demi::source_dir() / "tests/fixtures/safetensors/python.safetensors";

// The table of tests/fixtures/safetensors/make.py.
TEST_F(Inspect, ListsAFileThatPythonWrote) {
  const json found = json_of({"inspect", kPython.string()});
  EXPECT_EQ(found["kind"], "file");
  EXPECT_EQ(found["metadata"], json({{"format", "pt"}}));
  ASSERT_EQ(found["tensors"].size(), 14U);
  const auto& weight = found["tensors"][6];
  EXPECT_EQ(weight,
            json({{"name", "f32.weight"}, {"dtype", "fp32"}, {"shape", {2, 3}}, {"bytes", 24}}));
  const Outcome text = run({"inspect", kPython.string()});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("fp8_e4m3"), HasSubstr("14 tensors, 29 elements, 77 B"),
                              Not(HasSubstr("\x1b")), Not(HasSubstr("\r"))));
  EXPECT_EQ(text.err, "");
}

// tests/fixtures/imported/make.py: Small.
TEST_F(Inspect, ListsANetworkThatPythonExported) {
  const std::string file = (demi::source_dir() / "tests/fixtures/imported/small.pt2").string();
  const json found = json_of({"inspect", file});
  EXPECT_EQ(found["kind"], "network");
  EXPECT_EQ(found["graphs"][0]["mode"], "train");
  EXPECT_EQ(found["graphs"][0]["outputs"], 2) << "a number is none";
  EXPECT_EQ(found["graphs"][0]["operators"]["aten::linear"], 2);
  ASSERT_EQ(found["tensors"].size(), 9U);
  EXPECT_EQ(found["tensors"][8]["name"], "out.weight");
  EXPECT_EQ(found["tensors"][8]["same_as"], "fc.weight");
  EXPECT_EQ(json_of({"inspect", file, "--verify"})["verified"], true);
  const Outcome text = run({"inspect", file, "--verify"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("frozen"), HasSubstr("is fc.weight"),
                              HasSubstr("2 x aten::linear"), HasSubstr("every operation is known"),
                              HasSubstr("one graph, exported in train mode")));
  expect_refused({file, "--statistics"}, 2, "no statistics");
  const fs::path damaged = folder_ / "damaged.pt2";
  fs::copy_file(file, damaged);
  flip(damaged, 70);  // of the first weight
  EXPECT_EQ(run({"inspect", damaged.string()}).code, 0) << "the weights are not read";
  expect_refused({damaged.string(), "--verify"}, 3, "weight_0 is damaged");
  fs::copy_file(kPython, folder_ / "weights.pt2");
  expect_refused({(folder_ / "weights.pt2").string()}, 3, "weights without a network");
}

TEST_F(Inspect, ListsACheckpointAndWhatStandsForIt) {
  const fs::path one = save("run/checkpoints", small_checkpoint());
  for (const fs::path& path :
       {one, folder_ / "run/checkpoints", folder_ / "run", folder_ / "run/checkpoints/last"}) {
    const json found = json_of({"inspect", path.string(), "--verify"});
    EXPECT_EQ(found["kind"], "checkpoint");
    EXPECT_EQ(found["step"], 400);
    EXPECT_EQ(found["verified"], true);
    ASSERT_EQ(found["tensors"].size(), 4U);
    EXPECT_EQ(found["tensors"][0]["name"], "layer.2.weight") << "2 before 10, the model first";
    EXPECT_EQ(found["tensors"][1]["dtype"], "bf16");
    EXPECT_EQ(found["tensors"][1]["file"], "model.safetensors");
    EXPECT_EQ(found["tensors"][3]["file"], "state.safetensors");
    EXPECT_EQ(found["elements"], 6 + 4 + 6 + 3);
    EXPECT_EQ(found["bytes"], 24 + 8 + 24 + 24);
    EXPECT_EQ(found["numbers"]["scaler"]["scale"], 65536);
    EXPECT_EQ(found["numbers"]["scaler"]["odd"], "inf");
    EXPECT_EQ(found["metadata"]["demi.config"], std::string(500, 'c'));
    EXPECT_EQ(found["metadata"]["lines"], "one {\n  two\x1b\n}");
  }
  const Outcome text = run({"inspect", one.string(), "--verify"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("scaler/scale"), HasSubstr(" (500 bytes)"),
                              HasSubstr("one { two? }"), Not(HasSubstr("\x1b")),
                              HasSubstr("every byte agrees"), HasSubstr("state.safetensors")));
}

// The manifest's own are held to RFC 3720 where they are made (crc32c_test, manifest_test).
TEST_F(Inspect, ShowsTheChecksumsOfTheManifest) {
  const fs::path one = save("run", small_checkpoint());
  const json manifest = json::parse(slurp(one / "manifest.json"));
  for (const json& tensor : json_of({"inspect", one.string()})["tensors"])
    EXPECT_EQ(tensor["checksum"], manifest["files"][tensor["file"].get<std::string>()]["tensors"]
                                          [tensor["name"].get<std::string>()]);
}

TEST_F(Inspect, StatisticsAreOfTheFiniteValues) {
  const fs::path file = folder_ / "x.safetensors";
  demi::checkpoint::save_safetensors(
      file, {{"x", at::tensor({0.F, 4.F, NAN, INFINITY, -1.F})}, {"none", at::empty({0})}});
  const json found = json_of({"inspect", file.string(), "--statistics"});
  const json& none = found["tensors"][0];
  EXPECT_TRUE(none["min"].is_null() && none["std"].is_null());
  const json& x = found["tensors"][1];
  EXPECT_EQ(x["min"], -1);
  EXPECT_EQ(x["max"], 4);
  EXPECT_EQ(x["mean"], 1);
  EXPECT_DOUBLE_EQ(x["std"], std::sqrt((1.0 + 9 + 4) / 2));
  EXPECT_EQ(x["zeros"], 1);
  EXPECT_EQ(x["nan"], 1);
  EXPECT_EQ(x["inf"], 1);
  EXPECT_FALSE(json_of({"inspect", file.string()})["tensors"][1].contains("min"))
      << "only if asked";
  EXPECT_THAT(run({"inspect", file.string(), "--statistics"}).out, HasSubstr("2.646"));
}

TEST_F(Inspect, TheListingOfALargeFileReadsItsHeaderAlone) {
  const fs::path file = folder_ / "large.safetensors";
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[68719476736],"data_offsets":[0,68719476736]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  std::ofstream(file, std::ios::binary) << length << header;
  std::error_code code;
  fs::resize_file(file, 8 + header.size() + (uint64_t{64} << 30), code);
  if (code) GTEST_SKIP() << "no sparse files here: " << code.message();
  const auto before = [] {  // 64 GB would take longer
    alarm(60);
  };
  const Outcome outcome = run({"inspect", file.string(), "--json"}, before);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["bytes"], uint64_t{64} << 30);
}

TEST_F(Inspect, WhatIsDamagedIsNamed) {
  const fs::path one = save("run", small_checkpoint());
  const fs::path model = one / "model.safetensors", state = one / "state.safetensors";
  flip(state, fs::file_size(state) - 1);
  expect_refused({one.string(), "--verify"}, 3, "optimizer/0.exp_avg");
  EXPECT_EQ(run({"inspect", one.string()}).code, 0) << "the values are not read";
  flip(state, fs::file_size(state) - 1);
  flip(model, fs::file_size(model) - 1);
  expect_refused({one.string(), "--verify"}, 3, "layer.10.weight");
  expect_refused({model.string(), "--verify"}, 3, "layer.10.weight");
  flip(model, fs::file_size(model) - 1);
  EXPECT_EQ(run({"inspect", one.string(), "--verify"}).code, 0);
  fs::resize_file(model, fs::file_size(model) - 1);
  expect_refused({one.string()}, 3, "model.safetensors");
  fs::remove(model);
  expect_refused({one.string()}, 3, "model.safetensors");
  const fs::path manifest = one / "manifest.json";
  flip(manifest, 30);
  expect_refused({one.string()}, 3, "manifest.json");
  // A file without checksums can still be cut short or hold what is no truth value.
  fs::copy_file(kPython, folder_ / "p.safetensors");
  EXPECT_THAT(run({"inspect", (folder_ / "p.safetensors").string(), "--verify"}).out,
              HasSubstr("no checksums"));
  fs::resize_file(folder_ / "p.safetensors", fs::file_size(kPython) - 1);
  expect_refused({(folder_ / "p.safetensors").string()}, 3, "size does not fit");
}

TEST_F(Inspect, NoFileAndOtherFilesAreRefused) {
  for (const char* words : {"none is no checkpoint", "No such file", "a safetensors file"})
    expect_refused({(folder_ / "none").string()}, 3, words);
  fs::create_directories(folder_ / "empty");
  expect_refused({(folder_ / "empty").string()}, 3, "is no checkpoint");
  const auto expect_other_kind = [&](const std::string& content, const std::string& words) {
    std::ofstream(folder_ / "other", std::ios::binary) << content;
    expect_refused({(folder_ / "other").string()}, 3, words);
  };
  expect_other_kind("this is no safetensors file, but it is long enough\n", "seen: a text");
  expect_other_kind("\x89PNG\r\n\x1a\n and so on", "seen: a PNG picture");
  expect_other_kind("PK\x03\x04 what torch.save writes", "demi_checkpoint.py convert");
  expect_refused({(demi::source_dir() / "tests/fixtures/imported/script.pt").string()}, 3,
                 "as torch.save and torch.jit.save write");
  expect_other_kind(std::string(16, '\xff'), "header's length is impossible");
  expect_other_kind("", "ends too early");
  // A folder's `last` that is another file: its bytes neither steer the terminal nor end the words.
  fs::create_directories(folder_ / "bin");
  std::ofstream(folder_ / "bin" / "last") << std::string(
      "\x7f"
      "ELF\0\x1b[2J\n",
      10);
  expect_refused({(folder_ / "bin").string()}, 3, "seen: \\x7fELF\\x00\\x1b[2J\\x0a; accepted:");
  expect_refused({"/dev/null"}, 3, "/dev/null");
  fs::copy_file(kPython, folder_ / "locked");
  fs::permissions(folder_ / "locked", fs::perms::none);
  expect_refused({(folder_ / "locked").string()}, 3, "Permission denied", without_privileges());
  expect_refused({}, 2, "which file?");
  expect_refused({"--diff", kPython.string()}, 2, "--diff");
  expect_refused({kPython.string(), "--diff", kPython.string(), kPython.string()}, 2, "--diff");
  expect_refused({"--verify", "--diff", kPython.string(), kPython.string()}, 2, "--diff");
  expect_refused({"--diff", kPython.string(), (folder_ / "none").string()}, 3, "none");
  expect_refused({kPython.string(), "--verfy"}, 2, "did you mean --verify?");
}

TEST_F(Inspect, EqualCheckpointsHaveNoDifferentTensors) {
  Checkpoint checkpoint = small_checkpoint();
  save("a/checkpoints", checkpoint);
  checkpoint.state["history/steps.seconds"] = at::zeros({3}, at::kDouble);
  checkpoint.numbers["progress"]["seconds"] = 7;
  checkpoint.numbers["measured"]["peak_bytes"] = 7;
  save("b/checkpoints", checkpoint);
  const std::vector<std::string> pair{"--diff", (folder_ / "a").string(), (folder_ / "b").string()};
  const json found = json_of({"inspect", pair[0], pair[1], pair[2]});
  EXPECT_EQ(found["different_tensors"], 0) << "times do not count";
  EXPECT_EQ(found["tensors"], 3);
  EXPECT_EQ(found["times"].size(), 1U);
  EXPECT_TRUE(found["numbers"].empty());
  EXPECT_TRUE(found["metadata"].empty());
  EXPECT_THAT(run({"inspect", pair[0], pair[1], pair[2]}).out,
              HasSubstr("all 3 tensors are equal bit for bit"));
}

TEST_F(Inspect, DifferencesAreNamedAndMeasured) {
  Checkpoint checkpoint = small_checkpoint();
  const fs::path a = save("a", checkpoint);
  checkpoint.model["layer.2.weight"] = checkpoint.model["layer.2.weight"].clone();
  checkpoint.model["layer.2.weight"][1][0] += 0.5;
  checkpoint.model["layer.10.weight"] = at::ones({4});
  checkpoint.state["optimizer/0.exp_avg"] = at::zeros({3, 2});
  checkpoint.state["optimizer/1.exp_avg"] = at::zeros({4});
  checkpoint.numbers["scaler"]["scale"] = 32768;
  const fs::path b = save("b", checkpoint);
  const json found = json_of({"inspect", "--diff", a.string(), b.string()});
  EXPECT_EQ(found["different_tensors"], 4);
  const json& values = found["differences"][0];
  EXPECT_EQ(values["name"], "layer.2.weight");
  EXPECT_EQ(values["kind"], "values");
  EXPECT_EQ(values["different_elements"], 1);
  EXPECT_EQ(values["max_abs_difference"], 0.5);
  EXPECT_EQ(found["differences"][1]["kind"], "dtype");
  EXPECT_EQ(found["differences"][1]["second"]["dtype"], "fp32");
  EXPECT_EQ(found["differences"][2]["kind"], "shape");
  EXPECT_EQ(found["differences"][3]["kind"], "only in second");
  EXPECT_TRUE(found["differences"][3]["first"].is_null());
  EXPECT_EQ(found["numbers"][0],
            json({{"name", "scaler/scale"}, {"first", 65536}, {"second", 32768}}));
  const Outcome text = run({"inspect", "--diff", a.string(), b.string()});
  EXPECT_EQ(text.code, 0) << "a difference is a result";
  EXPECT_THAT(text.out, AllOf(HasSubstr("4 of 4 tensors differ"), HasSubstr("bf16 and fp32"),
                              HasSubstr("scaler/scale")));
  // A file beside a checkpoint is compared with its model.
  const json model = json_of({"inspect", "--diff", (a / "model.safetensors").string(), b.string()});
  EXPECT_EQ(model["tensors"], 2);
  EXPECT_EQ(model["different_tensors"], 2);
  EXPECT_TRUE(model["numbers"].empty() && model["metadata"].empty());
}

// The beginnings of two configurations are equal, and a line shows no more.
TEST_F(Inspect, OfTwoObjectsInMetadataThatDifferIsShown) {
  Checkpoint checkpoint = small_checkpoint();
  const auto with_text = [&](const char* name, const json& config) {
    checkpoint.text["demi.config"] = config.dump(1);
    return save(name, checkpoint).string();
  };
  json config{{"data", std::string(80, 'd')}, {"model", {{"name", "gpt"}, {"depth", 2}}}};
  const std::string a = with_text("a", config);
  config["model"]["depth"] = 3;
  config["seed"] = 1;
  const std::string b = with_text("b", config);
  EXPECT_THAT(run({"inspect", "--diff", a, b}).out,
              AllOf(HasSubstr("  {\"model\":{\"depth\":2}}  "),
                    HasSubstr("  {\"model\":{\"depth\":3},\"seed\":1}\n")));
  EXPECT_EQ(json_of({"inspect", "--diff", a, b})["metadata"][0]["second"], config.dump(1));
}

TEST_F(Inspect, AReaderThatLeavesAndAFullDiskAreToldApart) {
  const Outcome broken = run({"inspect", kPython.string()}, [] {
    int ends[2];
    if (pipe(ends) != 0) _exit(126);
    close(ends[0]);
    dup2(ends[1], 1);
  });
  EXPECT_EQ(broken.code, 128 + SIGPIPE);
  EXPECT_EQ(broken.err, "");
  const Outcome full =
      run({"inspect", kPython.string()}, [] { dup2(open("/dev/full", O_WRONLY), 1); });
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
}

// A model file of 1,000 words: their number and the first ones, in each form.
TEST_F(Inspect, ShowsTheFirstWordsOfAVocabularyAlone) {
  Checkpoint checkpoint = small_checkpoint();
  std::string words = "<unk>";
  for (int i = 1; i < 1000; ++i) words += " word" + std::to_string(i);
  checkpoint.model_text = {{"demi.file", "1"}, {"demi.vocabulary", words}};
  const std::string saved = save("a", checkpoint).string();
  const std::string file = (folder_ / "alone.safetensors").string();
  fs::copy_file(fs::path(saved) / "model.safetensors", file);
  checkpoint.model_text["demi.vocabulary"] = "<unk> other";
  const std::string other = save("b", checkpoint).string();
  for (const std::string& path : {saved, file}) {
    const Outcome text = run({"inspect", path});
    EXPECT_THAT(text.out, AllOf(HasSubstr("1,000 words: <unk> word1 word2"),
                                Not(HasSubstr("word100 ")), Not(HasSubstr("word999"))));
    const json found = json_of({"inspect", path});
    EXPECT_THAT(found["metadata"]["demi.vocabulary"].get<std::string>(),
                AllOf(HasSubstr("1,000 words"), Not(HasSubstr("word100 "))));
  }
  const Outcome difference = run({"inspect", "--diff", saved, other});
  EXPECT_THAT(difference.out, AllOf(HasSubstr("1,000 words, number 1 is word1: <unk> word1"),
                                    HasSubstr("2 words, number 1 is other: <unk> other"),
                                    Not(HasSubstr("word999"))));
  // Far behind the words that are shown; and one more at the end.
  std::string late = words;
  late.replace(late.find(" word500 "), 9, " other ");
  checkpoint.model_text["demi.vocabulary"] = late;
  const std::string third = save("c", checkpoint).string();
  const json both = json_of({"inspect", "--diff", saved, third});
  EXPECT_THAT(both["metadata"][0]["first"].get<std::string>(),
              HasSubstr("1,000 words, number 500 is word500: <unk>"));
  EXPECT_THAT(both["metadata"][0]["second"].get<std::string>(),
              HasSubstr("1,000 words, number 500 is other: <unk>"));
  EXPECT_THAT(both.dump(), Not(HasSubstr("word999")));
  checkpoint.model_text["demi.vocabulary"] = words + " last";
  const std::string longer = save("d", checkpoint).string();
  EXPECT_THAT(run({"inspect", "--diff", saved, longer}).out,
              AllOf(HasSubstr("1,000 words, no number 1,000"), HasSubstr("number 1,000 is last")));
}

TEST_F(Inspect, VerifiesAModelFileThatIsAlone) {
  Checkpoint checkpoint = small_checkpoint();
  checkpoint.model_text = {{"demi.file", "1"}};
  const fs::path file = folder_ / "alone.safetensors";
  fs::copy_file(save("a", checkpoint) / "model.safetensors", file);
  const Outcome whole = run({"inspect", "--verify", file.string()});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("demi.crc32c"));
  flip(file, fs::file_size(file) - 1);
  expect_refused({"--verify", file.string()}, 3, "is not what its own checksum says");
  EXPECT_EQ(run({"inspect", file.string()}).code, 0) << "the header alone is read";
}

}  // namespace
}  // namespace cli_testing
