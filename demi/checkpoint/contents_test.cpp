#include "demi/checkpoint/contents.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "demi/tensor/dtype.h"

namespace demi::checkpoint {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

using ContentsOfAFile = CheckpointFolder;

// The contents that tests/fixtures/safetensors/make.py wrote: the table TENSORS there.
TEST_F(ContentsOfAFile, AreThoseThatPythonWrote) {
  const auto file = source_dir() / "tests/fixtures/safetensors/python.safetensors";
  const Contents found = contents(file);
  EXPECT_TRUE(found.is_file);
  EXPECT_EQ(found.metadata, (Metadata{{"format", "pt"}}));
  std::vector<std::string> lines;
  for (const StoredTensor& tensor : found.tensors)
    lines.push_back(tensor.name + " " + tensor::name_of(tensor.dtype) + " " +
                    c10::str(at::IntArrayRef(tensor.shape)) + " " + std::to_string(tensor.bytes));
  EXPECT_THAT(
      lines, ElementsAreArray({"bf16 bf16 [2] 4", "bool bool [3] 3", "empty fp32 [0, 4] 0",
                               "f8_e4m3 fp8_e4m3 [2] 2", "f8_e5m2 fp8_e5m2 [2] 2", "f16 fp16 [3] 6",
                               "f32.weight fp32 [2, 3] 24", "f64 fp64 [2] 16", "i8 int8 [3] 3",
                               "i16 int16 [1, 1] 2", "i32 int32 [1] 4", "i64 int64 [] 8",
                               "odd \"name\"\n\u00fc uint8 [2] 2", "u8 uint8 [1] 1"}));
}

TEST_F(ContentsOfAFile, AreReadFromTheHeaderAlone) {
  const auto file = folder_ / "x.safetensors";
  save_safetensors(file, {{"a", at::ones({3})}, {"b", at::ones({2, 0})}});
  const Contents found = contents(file);
  ASSERT_EQ(found.tensors.size(), 2U);
  EXPECT_EQ(found.tensors[0].elements(), 3);
  EXPECT_EQ(found.tensors[1].elements(), 0);
  EXPECT_EQ(found.tensors[0].offset + 12, std::filesystem::file_size(file));
  EXPECT_EQ(found.tensors[0].file, file);
  EXPECT_THROW(contents(folder_ / "none"), DataError);
}

/// The checkpoint of tests/fixtures/checkpoint/make.py.
class ContentsOfACheckpoint : public CheckpointFolder {
 protected:
  void SetUp() override {
    CheckpointFolder::SetUp();
    one_ = folder_ / "step-00000007";
    std::filesystem::copy(source_dir() / "tests/fixtures/checkpoint", folder_,
                          std::filesystem::copy_options::recursive);
  }
  void flip(const char* file, std::size_t from_end) const {
    std::string bytes = bytes_of(one_ / file);
    bytes[bytes.size() - from_end] ^= 1;
    write_bytes(one_ / file, bytes);
  }
  static std::string complaint(const Contents& of) {
    try {
      verify(of);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no DataError";
  }

  std::filesystem::path one_;
};

TEST_F(ContentsOfACheckpoint, AreThoseThatPythonWrote) {
  std::filesystem::copy_file(folder_ / "last", folder_ / "best");
  for (const auto& path : {folder_, one_, folder_ / "last", folder_ / "best"}) {
    const Contents found = contents(path);
    EXPECT_EQ(found.path, one_);
    EXPECT_FALSE(found.is_file);
    EXPECT_EQ(found.step, 7);
    EXPECT_EQ(found.demi, "0.1.0");
    EXPECT_EQ(found.libtorch, "2.15.0");
    EXPECT_EQ(found.metadata.at("demi.precision"), "bf16");
    EXPECT_EQ(found.numbers.at("schedule").at("third"), 1.0 / 3);
    std::vector<std::string> lines;
    for (const StoredTensor& tensor : found.tensors)
      lines.push_back(tensor.name + " " + tensor.checksum + (tensor.of_model ? " model" : ""));
    EXPECT_THAT(lines, ElementsAre("half 804561f5 model", "steps 7671b78e model",
                                   "weight 514170f7 model", "empty 00000000",
                                   "optimizer/0.exp_avg 2dcbeeae", "random/cpu ca646125"));
    EXPECT_EQ(complaint(found), "no DataError");
  }
}

TEST_F(ContentsOfACheckpoint, AreVerifiedByteByByte) {
  const Contents found = contents(one_), model = contents(one_ / "model.safetensors");
  EXPECT_EQ(model.tensors[0].checksum, "804561f5") << "the manifest beside it is used";
  flip("state.safetensors", 1);
  EXPECT_THAT(complaint(found), HasSubstr("values of random/cpu are damaged"));
  EXPECT_EQ(complaint(model), "no DataError");
  flip("state.safetensors", 1);
  flip("model.safetensors", 1);
  EXPECT_THAT(complaint(found), HasSubstr("values of half are damaged"));
  EXPECT_THAT(complaint(model), HasSubstr("values of half are damaged"));
  flip("model.safetensors", 1);
  flip("manifest.json", 40);
  EXPECT_THROW(contents(one_), DataError);
  EXPECT_THROW(contents(one_ / "model.safetensors"), DataError);
}

TEST_F(ContentsOfACheckpoint, AreNotThoseOfOtherFiles) {
  std::filesystem::copy_file(one_ / "state.safetensors", one_ / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THROW(contents(one_), DataError);
  EXPECT_THROW(contents(one_ / "model.safetensors"), DataError);
}

// Impossible values are noticed without a checksum, too.
TEST_F(ContentsOfAFile, AreVerifiedWithoutChecksums) {
  const auto file = folder_ / "x.safetensors";
  save_safetensors(file, {{"truth", at::ones({3}, at::kBool)}});
  const Contents found = contents(file);
  EXPECT_EQ(found.tensors[0].checksum, "");
  EXPECT_NO_THROW(verify(found));
  std::string bytes = bytes_of(file);
  bytes.back() = 2;
  write_bytes(file, bytes);
  EXPECT_THROW(verify(found), DataError);
}

TEST(NaturalOrder, CountsDigitsAsNumbers) {
  std::vector<std::string> names{"a.10",
                                 "a.9.b",
                                 "a",
                                 "a.9.a",
                                 "b",
                                 "a.09.a",
                                 "a.010",
                                 "2",
                                 "10",
                                 "a.",
                                 "a.99999999999999999999",
                                 "a.100000000000000000000"};
  std::ranges::sort(names, natural_less);
  EXPECT_THAT(names, ElementsAre("2", "10", "a", "a.", "a.09.a", "a.9.a", "a.9.b", "a.010", "a.10",
                                 "a.99999999999999999999", "a.100000000000000000000", "b"));
  EXPECT_FALSE(natural_less("a.1", "a.1"));
  EXPECT_FALSE(natural_less("", ""));
}

}  // namespace
}  // namespace demi::checkpoint
