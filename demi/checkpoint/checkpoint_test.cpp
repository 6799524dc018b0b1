#include "demi/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/contents.h"
#include "demi/checkpoint/folder_lock.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/core/memory_testing.h"
#include "demi/core/source_dir_testing.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kFromPython = source_dir() / "tests/fixtures/checkpoint";

template <class Kind>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  }
  return "no such error";
}

using CheckpointTest = CheckpointFolder;

// The values stand in tests/fixtures/checkpoint/make.py, which computes the checksums by itself.
TEST_F(CheckpointTest, ReadsWhatPythonWrote) {
  const auto floats = [](std::vector<double> values) {
    return at::tensor(values, at::kDouble).to(at::kFloat);
  };
  Checkpoint expected;
  expected.model = {{"weight", floats({0, 1, 2, 3, 4, -0.5}).view({2, 3})},
                    {"half", floats({1, -5}).to(at::kBFloat16)},
                    {"steps", at::scalar_tensor(7, at::kLong)}};
  expected.state = {
      {"optimizer/0.exp_avg", floats({6, 5, 4, 3, 2, 1}).view({2, 3})},
      {"random/cpu", at::tensor(std::vector<int64_t>{0, 1, 2, 254, 255}).to(at::kByte)},
      {"empty", at::empty({0, 4})}};
  const double infinity = std::numeric_limits<double>::infinity();
  expected.numbers = {{"scaler", {{"growth_tracker", 7}, {"scale", 65536}}},
                      {"schedule",
                       {{"lr", 0.1},
                        {"minus", -0.0},
                        {"smallest", std::numeric_limits<double>::denorm_min()},
                        {"third", 1.0 / 3}}},
                      {"stopping",
                       {{"best", -infinity},
                        {"least", infinity},
                        {"odd", std::bit_cast<double>(uint64_t{0xFFF8000000000001})},
                        {"unknown", std::bit_cast<double>(uint64_t{0x7FF8000000000000})}}}};
  expected.text = {{"demi.precision", "bf16"}, {"note", "odd \"text\"\n\u00fc"}};
  EXPECT_TRUE(same(load(kFromPython), expected));
  EXPECT_TRUE(same(map(kFromPython), expected));
}

TEST_F(CheckpointTest, WritesTensorsAndManifestAsPythonDoes) {
  const Checkpoint python = load(kFromPython);
  const fs::path saved = save(folder_, 7, python);
  EXPECT_EQ(saved, folder_ / "step-00000007");
  EXPECT_EQ(bytes_of(saved / "state.safetensors"),
            bytes_of(kFromPython / "step-00000007" / "state.safetensors"));
  Manifest manifest = read_manifest(saved);
  EXPECT_TRUE(same(load(saved), python));
  // The model's file differs: texts are its metadata.
  EXPECT_EQ(
      load_safetensors(saved / "model.safetensors").metadata,
      (Metadata{{"format", "pt"}, {"demi.precision", "bf16"}, {"note", "odd \"text\"\n\u00fc"}}));
  manifest.demi = "0.1.0", manifest.libtorch = "2.15.0", manifest.run = "";
  FileRecord& model = manifest.files["model.safetensors"];
  model.bytes = 252, model.checksum = 0x14EA9031;
  EXPECT_EQ(to_text(manifest), bytes_of(kFromPython / "step-00000007" / "manifest.json"));
  EXPECT_EQ(bytes_of(folder_ / "last"), bytes_of(kFromPython / "last"));
}

TEST_F(CheckpointTest, ChecksumsAreThoseOfTheFiles) {
  const fs::path saved = save(folder_, 3, ten_tensors(2));
  const Manifest manifest = read_manifest(saved);
  EXPECT_EQ(manifest.step, 3);
  for (const auto& [name, record] : manifest.files) {
    const std::string content = bytes_of(saved / name);
    EXPECT_EQ(record.bytes, content.size());
    EXPECT_EQ(record.checksum, crc32c(content));
    const SafetensorsHeader header = read_safetensors_header(saved / name);
    EXPECT_EQ(record.tensors.size(), header.tensors.size());
    for (const TensorPlace& place : header.tensors)
      EXPECT_EQ(record.tensors.at(place.name),
                crc32c(content.substr(header.data_start + place.begin, place.end - place.begin)));
  }
}

TEST_F(CheckpointTest, SavesViewsAndGradientsAndNothing) {
  const at::Tensor base = at::arange(6, at::kFloat).view({2, 3}).requires_grad_();
  Checkpoint views;
  views.model = {{"t", base.t()}, {"row", base[1]}};
  const Checkpoint read = load(save(folder_, 0, views));
  EXPECT_TRUE(at::equal(read.model.at("t"), base.t()));
  EXPECT_TRUE(read.model.at("t").is_contiguous());
  EXPECT_FALSE(read.model.at("row").requires_grad());
  EXPECT_TRUE(same(load(save(folder_, 1, {})), {}));
}

TEST_F(CheckpointTest, LongTextsStandInTheManifestAlone) {
  Checkpoint checkpoint;
  checkpoint.text = {{"long", std::string(100'000, 'x')}, {"short", std::string(65536, 'y')}};
  const fs::path saved = save(folder_, 0, checkpoint);
  EXPECT_EQ(load(saved).text, checkpoint.text);
  const Metadata metadata = load_safetensors(saved / "model.safetensors").metadata;
  EXPECT_FALSE(metadata.contains("long"));
  EXPECT_EQ(metadata.at("short"), checkpoint.text.at("short"));
}

TEST_F(CheckpointTest, KeepsTheLastAndTheBest) {
  for (int64_t step : {10, 20, 30}) save(folder_, step, ten_tensors(1), {.keep_last = 2});
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000020", "step-00000030"));
  save(folder_, 40, ten_tensors(40), {.keep_last = 2, .is_best = true});
  save(folder_, 50, ten_tensors(50), {.keep_last = 1});
  save(folder_, 60, ten_tensors(60), {.keep_last = 1});
  EXPECT_THAT(names(), ElementsAre("best", "last", "lock", "step-00000040", "step-00000060"));
  EXPECT_TRUE(same(load(folder_), ten_tensors(60)));
  EXPECT_TRUE(same(load(folder_ / "last"), ten_tensors(60)));
  EXPECT_TRUE(same(load(folder_ / "best"), ten_tensors(40)));
  save(folder_, 70, ten_tensors(70), {.keep_last = 1, .is_best = true});
  EXPECT_THAT(names(), ElementsAre("best", "last", "lock", "step-00000070"));
  save(folder_, 80, ten_tensors(80), {.keep_last = 0});
  save(folder_, 90, ten_tensors(90), {.keep_last = 0});
  EXPECT_THAT(names(), ElementsAre("best", "last", "lock", "step-00000070", "step-00000080",
                                   "step-00000090"));
}

// The old one of a step stays until the new one is published.
TEST_F(CheckpointTest, SavesOneStepAgainUnderAnotherName) {
  save(folder_, 5, ten_tensors(1));
  EXPECT_EQ(save(folder_, 5, ten_tensors(2)), folder_ / "step-00000005-2");
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000005-2"));
  EXPECT_TRUE(same(load(folder_), ten_tensors(2)));
  EXPECT_EQ(save(folder_, 5, ten_tensors(3)), folder_ / "step-00000005");
  EXPECT_TRUE(same(load(folder_), ten_tensors(3)));
}

// A run that went back to an older checkpoint: what it saves is the last, and nothing that it
// abandoned is taken for it.
TEST_F(CheckpointTest, LastIsTheLastThatWasSaved) {
  for (int64_t step : {10, 20, 30})
    save(folder_, step, ten_tensors(static_cast<double>(step)), {.keep_last = 3});
  save(folder_, 15, ten_tensors(15), {.keep_last = 3});
  EXPECT_THAT(names(),
              ElementsAre("last", "lock", "step-00000015", "step-00000020", "step-00000030"));
  EXPECT_EQ(find(folder_), folder_ / "step-00000015");
}

TEST_F(CheckpointTest, RemovesWhatAKilledSaveLeft) {
  save(folder_, 1, ten_tensors(1));
  fs::create_directory(folder_ / "step-00000002.12345.tmp");
  write_bytes(folder_ / "step-00000002.12345.tmp" / "model.safetensors", "half");
  write_bytes(folder_ / "last.12345.tmp", "half");
  write_bytes(folder_ / "notes.12345.tmp", "somebody's own");
  write_bytes(folder_ / "step-00000002.tmp", "somebody's own");
  EXPECT_TRUE(same(load(folder_), ten_tensors(1)));
  save(folder_, 2, ten_tensors(2));
  EXPECT_THAT(names(),
              ElementsAre("last", "lock", "notes.12345.tmp", "step-00000002", "step-00000002.tmp"));
}

TEST_F(CheckpointTest, FindsWhatAPathStandsFor) {
  const fs::path run = folder_ / "run", folder = run / "checkpoints";
  save(folder, 1, ten_tensors(1), {.keep_last = 0});
  const fs::path last = save(folder, 2, ten_tensors(2), {.keep_last = 0, .is_best = true});
  save(folder, 3, ten_tensors(3), {.keep_last = 0});
  EXPECT_EQ(find(folder / "step-00000001"), folder / "step-00000001");
  EXPECT_EQ(find(run), folder / "step-00000003");
  EXPECT_EQ(find(folder / "best"), folder / "step-00000002");
  fs::remove(folder / "last");
  EXPECT_EQ(find(run), folder / "step-00000003") << "the highest step";

  const fs::path many = folder_ / "many";
  save(many / "checkpoints" / "fp32", 7, ten_tensors(7));
  EXPECT_EQ(find(many), many / "checkpoints" / "fp32" / "step-00000007");
  save(many / "checkpoints" / "bf16", 7, ten_tensors(7));
  EXPECT_THAT(message_of<DataError>([&] { find(many); }),
              AllOf(HasSubstr("name one of"), HasSubstr("checkpoints/bf16"),
                    HasSubstr("checkpoints/fp32")));
}

TEST_F(CheckpointTest, SaysWhyAPathStandsForNothing) {
  const auto said = [](const fs::path& path) { return message_of<DataError>([&] { find(path); }); };
  EXPECT_THAT(said(folder_ / "no"), HasSubstr((folder_ / "no").string()));
  EXPECT_THAT(said(folder_), HasSubstr("a folder without checkpoints"));
  write_bytes(folder_ / "x", "");
  EXPECT_THAT(said(folder_ / "x"), HasSubstr("a file"));
  fs::create_directory(folder_ / "checkpoints");
  EXPECT_THAT(said(folder_), HasSubstr("a run's folder without checkpoints"));
  save(folder_ / "a", 1, ten_tensors(1));
  fs::remove_all(folder_ / "a" / "step-00000001");
  EXPECT_THAT(said(folder_ / "a"), HasSubstr("it names step-00000001, which is not there"));
}

TEST_F(CheckpointTest, LoadsAFileAlone) {
  const fs::path file = folder_ / "x.safetensors";
  save_safetensors(file, ten_tensors(3).model, {{"a", "1"}});
  for (const Checkpoint& read : {load(file), map(file)}) {
    EXPECT_TRUE(same_tensors(read.model, ten_tensors(3).model));
    EXPECT_TRUE(read.state.empty());
    EXPECT_EQ(read.text, (Metadata{{"a", "1"}}));
  }
  // One of a checkpoint is verified with its manifest.
  const fs::path saved = save(folder_, 1, ten_tensors(4));
  EXPECT_TRUE(same_tensors(load(saved / "model.safetensors").model, ten_tensors(4).model));
  std::string content = bytes_of(saved / "model.safetensors");
  content.back() = static_cast<char>(content.back() ^ 1);
  write_bytes(saved / "model.safetensors", content);
  EXPECT_THAT(message_of<DataError>([&] { load(saved / "model.safetensors"); }),
              HasSubstr("are damaged"));
}

TEST_F(CheckpointTest, NothingAliasesTheFile) {
  const fs::path saved = save(folder_, 1, ten_tensors(4));
  const Checkpoint own = load(saved);
  Checkpoint mapped = map(saved);
  const std::string before = bytes_of(saved / "model.safetensors");
  for (auto& [name, tensor] : mapped.model) tensor.fill_(9);
  EXPECT_TRUE(at::equal(mapped.model.at("layer.0"), at::full({3, 5}, 9.0, at::kFloat)));
  EXPECT_EQ(bytes_of(saved / "model.safetensors"), before);
  std::string zeros(before.size(), '\0');
  const int file = ::open((saved / "model.safetensors").c_str(), O_WRONLY);
  ASSERT_EQ(::pwrite(file, zeros.data(), zeros.size(), 0), static_cast<ssize_t>(zeros.size()));
  ::close(file);
  EXPECT_TRUE(same(own, ten_tensors(4)));
}

// Pages of the mapped files are read again when a tensor that is still there is read.
TEST_F(CheckpointTest, MappedTensorsOutliveTheirNeighbours) {
  Checkpoint large;
  for (int i = 0; i < 8; ++i) large.model[std::to_string(i)] = at::full({3001}, i, at::kDouble);
  Checkpoint mapped = map(save(folder_, 1, large));
  while (mapped.model.size() > 1) {
    mapped.model.erase(mapped.model.begin());
    for (const auto& [name, tensor] : mapped.model)
      EXPECT_TRUE(at::equal(tensor, large.model.at(name))) << name;
  }
}

TEST_F(CheckpointTest, TakesOneTensorOfMemoryBeyondTheModel) {
  constexpr int64_t kTensors = 16, kElements = int64_t{1} << 20;  // 4 MiB each
  constexpr int64_t kTensorKilobytes = kElements * 4 / 1024;
  Checkpoint model;
  for (int64_t i = 0; i < kTensors; ++i)
    model.model[std::to_string(i)] = at::full({kElements}, static_cast<double>(i));
  const int64_t saving = peak_kilobytes_of([&] { save(folder_, 1, model); });
  if (saving < 0) GTEST_SKIP() << "memory cannot be measured here";
  EXPECT_LT(saving, kTensorKilobytes);
  Checkpoint read;
  const int64_t loading = peak_kilobytes_of([&] { read = load(folder_); });
  EXPECT_TRUE(same(read, model));
  EXPECT_LT(loading, (kTensors + 1) * kTensorKilobytes);
  const int64_t copying = peak_kilobytes_of([&] {
    Checkpoint mapped = map(folder_);
    for (auto& [name, tensor] : read.model) {
      tensor.copy_(mapped.model.at(name));
      mapped.model.erase(name);
    }
  });
  EXPECT_TRUE(same(read, model));
  EXPECT_LT(copying, 2 * kTensorKilobytes);
}

TEST_F(CheckpointTest, RefusesBeforeAnythingIsWritten) {
  Checkpoint sparse;
  sparse.state["a"] = at::ones({2, 2}).to_sparse();
  EXPECT_THAT(message_of<UsageError>([&] { save(folder_ / "x", 1, sparse); }),
              HasSubstr("[checkpoint.save] a tensor is not dense; seen: a"));
  Checkpoint meta;
  meta.model["a"] = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_THAT(message_of<UsageError>([&] { save(folder_ / "x", 1, meta); }),
              HasSubstr("[checkpoint.save] a tensor has a shape alone; seen: a"));
  Checkpoint not_text;
  not_text.text["a"] = "\xff";
  EXPECT_THROW(save(folder_ / "x", 1, not_text), UsageError);
  not_text.text.clear();
  not_text.numbers["\xff"] = {};
  EXPECT_THROW(save(folder_ / "x", 1, not_text), UsageError);
  EXPECT_THROW(save(folder_ / "x", -1, {}), UsageError);
  EXPECT_THROW(save(folder_ / "x", 1, {}, {.keep_last = -1}), UsageError);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(CheckpointTest, RefusesFoldersThatAreFiles) {
  write_bytes(folder_ / "x", "");
  for (const fs::path& folder : {folder_ / "x", folder_ / "x" / "y"})
    EXPECT_THAT(message_of<TrainingError>([&] { save(folder, 1, ten_tensors(1)); }),
                AllOf(HasSubstr(folder.string()), HasSubstr("cannot be made a folder")));
  fs::create_directories(folder_ / "y" / "lock");
  EXPECT_THAT(message_of<TrainingError>([&] { save(folder_ / "y", 1, ten_tensors(1)); }),
              AllOf(HasSubstr("lock"), HasSubstr("Is a directory")));
  fs::create_directories(folder_ / "z" / "last" / "inside");
  EXPECT_THAT(message_of<TrainingError>([&] { save(folder_ / "z", 1, ten_tensors(1)); }),
              HasSubstr("z/last cannot be replaced"));
}

TEST_F(CheckpointTest, RefusesFilesOfAnotherKind) {
  const fs::path saved = save(folder_, 1, ten_tensors(1));
  const auto said = [&] { return message_of<DataError>([&] { load(folder_); }); };
  for (const char* name : {"model.safetensors", "state.safetensors", "manifest.json"}) {
    const fs::path file = saved / name, away = folder_ / "away";
    fs::rename(file, away);
    EXPECT_THAT(said(), HasSubstr(name));
    fs::create_directory(file);
    EXPECT_THAT(said(), AllOf(HasSubstr(name), HasSubstr("seen: a folder")));
    fs::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    EXPECT_THAT(said(), AllOf(HasSubstr(name), HasSubstr("seen: a pipe")));
    fs::remove(file);
    write_bytes(file, "PK\x03\x04 an archive of torch.save");
    EXPECT_THAT(said(), HasSubstr(name));
    write_bytes(file, "");
    EXPECT_THAT(said(), HasSubstr(name));
    fs::rename(away, file);
  }
  EXPECT_TRUE(same(load(folder_), ten_tensors(1)));
}

// A web application has one, too: safetensors and transformers read the tensors beside it.
TEST_F(CheckpointTest, AnotherProgramsManifestCountsAsNone) {
  const NamedTensors weights{{"weight", at::ones({3})}};
  const fs::path file = folder_ / "model.safetensors";
  save_safetensors(file, weights);
  const fs::path own = save(folder_ / "own", 1, ten_tensors(1)), damaged = folder_ / "damaged";
  const std::string text = bytes_of(own / "manifest.json");
  for (const char* others : {R"({"name": "app"})", "{", ""}) {
    write_bytes(folder_ / "manifest.json", others);
    EXPECT_TRUE(same_tensors(load(file).model, weights));
    EXPECT_TRUE(same_tensors(map(file).model, weights));
    EXPECT_NO_THROW(verify(contents(file)));
    EXPECT_THAT(message_of<DataError>([&] { find(folder_); }), HasSubstr("without checkpoints"));
    write_bytes(own / "manifest.json", others);  // beside both files it was a checkpoint's
    for (const fs::path& path : {own, own / "model.safetensors"})
      EXPECT_THAT(message_of<DataError>([&] { load(path); }), HasSubstr("manifest.json"));
  }
  fs::create_directory(damaged);
  fs::copy_file(own / "model.safetensors", damaged / "model.safetensors");
  write_bytes(damaged / "manifest.json", text.substr(0, text.size() - 1));
  EXPECT_THAT(message_of<DataError>([&] { load(damaged / "model.safetensors"); }),
              HasSubstr("manifest.json"));
}

// Whole files, but not those of one checkpoint.
TEST_F(CheckpointTest, RefusesAMixOfTwoCheckpoints) {
  const fs::path one = save(folder_ / "one", 1, ten_tensors(1));
  const fs::path two = save(folder_ / "two", 1, ten_tensors(2));
  fs::copy_file(two / "state.safetensors", one / "state.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(message_of<DataError>([&] { load(one); }), HasSubstr("are damaged"));
  fs::copy_file(two / "model.safetensors", one / "state.safetensors",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(message_of<DataError>([&] { load(one); }), HasSubstr("state.safetensors"));
}

// Manifests with right checksums of their own, that do not fit the files with them.
TEST_F(CheckpointTest, RefusesAManifestOfOtherFiles) {
  const fs::path saved = save(folder_, 1, ten_tensors(1));
  const Manifest whole = read_manifest(saved);
  const auto said = [&](const std::function<void(Manifest&)>& change) {
    Manifest manifest = whole;
    change(manifest);
    write_bytes(saved / "manifest.json", to_text(manifest));
    return message_of<DataError>([&] { load(saved); });
  };
  EXPECT_EQ(said([](Manifest&) {}), "no such error");
  const auto model = [](Manifest& manifest) -> FileRecord& {
    return manifest.files.at("model.safetensors");
  };
  EXPECT_THAT(said([&](Manifest& m) { ++model(m).bytes; }),
              HasSubstr("another size than its manifest says"));
  EXPECT_THAT(said([&](Manifest& m) { model(m).bytes = uint64_t{1} << 60; }),
              HasSubstr("another size than its manifest says"));
  EXPECT_THAT(said([&](Manifest& m) { model(m).tensors["more"] = 0; }),
              HasSubstr("tensors of the manifest are missing"));
  EXPECT_THAT(said([&](Manifest& m) { model(m).tensors.erase("layer.0"); }),
              HasSubstr("the manifest knows no such tensor; seen: layer.0"));
  EXPECT_THAT(said([&](Manifest& m) { model(m).checksum ^= 1; }),
              HasSubstr("the header is damaged"));
  EXPECT_THAT(said([&](Manifest& m) { model(m).tensors.at("layer.0") ^= 1; }),
              HasSubstr("the values of layer.0 are damaged"));
  EXPECT_THAT(said([&](Manifest& m) { m.files.erase("state.safetensors"); }),
              HasSubstr("accepted: state.safetensors"));
}

// Root may read everything, so a process without its rights tries.
TEST_F(CheckpointTest, SaysThatAFileMayNotBeReadOrWritten) {
  const fs::path saved = save(folder_, 1, ten_tensors(1));
  fs::permissions(folder_, fs::perms(0755));
  fs::permissions(saved / "state.safetensors", fs::perms::none);
  const fs::path report = folder_ / "report";
  write_bytes(report, "");
  fs::permissions(report, fs::perms(0666));
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && seteuid(65534) != 0) _exit(1);
    std::error_code ignored;  // the folder is this user's own, or root's
    fs::permissions(folder_, fs::perms(0555), ignored);
    try {
      write_bytes(report, message_of<DataError>([&] { load(folder_); }) + "\n" +
                              message_of<TrainingError>([&] { save(folder_, 2, {}); }));
    } catch (const std::exception& error) {
      write_bytes(report, error.what());
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  fs::permissions(folder_, fs::perms(0755));
  ASSERT_EQ(status, 0);
  EXPECT_THAT(bytes_of(report), AllOf(HasSubstr("state.safetensors cannot be opened; seen: "
                                                "Permission denied"),
                                      HasSubstr("seen: Permission denied; make the folder "
                                                "writable")));
}

// A limit on a file's size makes write() fail in the middle, as a full disk does.
TEST_F(CheckpointTest, AFullDiskLeavesTheOldCheckpoint) {
  save(folder_, 1, ten_tensors(1));
  Checkpoint large;
  large.state["a"] = at::ones({100'000});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 200'000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string said = message_of<TrainingError>([&] { save(folder_, 2, large); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(said,
              AllOf(HasSubstr("state.safetensors cannot be written"), HasSubstr("File too large")));
  EXPECT_TRUE(same(load(folder_), ten_tensors(1)));
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000001"));
}

TEST_F(CheckpointTest, ThreadsOfAProcessTakeTurns) {
  std::vector<std::thread> threads;
  for (int i = 1; i <= 4; ++i)
    threads.emplace_back([this, i] {
      for (int turn = 0; turn < 5; ++turn) save(folder_, i, ten_tensors(i), {.keep_last = 0});
    });
  for (std::thread& thread : threads) thread.join();
  for (int i = 1; i <= 4; ++i) {
    const std::string name = "step-0000000" + std::to_string(i);
    const fs::path second = folder_ / (name + "-2");
    EXPECT_TRUE(same(load(fs::exists(second) ? second : folder_ / name), ten_tensors(i)));
  }
}

TEST_F(CheckpointTest, ADamagedListOfNamesIsRefusedAndReplaced) {
  save(folder_, 1, ten_tensors(1));
  const std::string whole = bytes_of(folder_ / "last");
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    write_bytes(folder_ / "last", flipped);
    EXPECT_THAT(message_of<DataError>([&] { load(folder_); }), HasSubstr("last")) << flipped;
  }
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_bytes(folder_ / "last", whole.substr(0, bytes));
    EXPECT_THAT(message_of<DataError>([&] { load(folder_); }), HasSubstr("last")) << bytes;
  }
  save(folder_, 2, ten_tensors(2));
  EXPECT_TRUE(same(load(folder_), ten_tensors(2)));
}

TEST_F(CheckpointTest, ADamagedNameOfTheBestIsReportedAndNothingRemoved) {
  save(folder_, 1, ten_tensors(1), {.is_best = true});
  write_bytes(folder_ / "best", "step-00000009\n");
  EXPECT_THAT(message_of<TrainingError>([&] { save(folder_, 2, ten_tensors(2)); }),
              AllOf(HasSubstr("the new checkpoint is saved"), HasSubstr("best")));
  EXPECT_TRUE(same(load(folder_ / "step-00000001"), ten_tensors(1)));
  EXPECT_TRUE(same(load(folder_), ten_tensors(2)));
  save(folder_, 3, ten_tensors(3), {.is_best = true});
  EXPECT_THAT(names(), ElementsAre("best", "last", "lock", "step-00000003"));
}

}  // namespace
}  // namespace demi::checkpoint
