#include "demi/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SafetensorsFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "demi-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    file_ = folder_ / "x.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string bytes(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& content) const {
    std::ofstream(file_, std::ios::binary) << content;
  }

  /// A file with that header and so many bytes of values.
  void write(const std::string& header, std::size_t values) const {
    std::string content(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
      content[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
    write(content + header + std::string(values, '\0'));
  }
  std::string complaint() const {
    try {
      load_safetensors(file_);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no DataError";
  }
  std::string complaint(const std::string& header, std::size_t values) const {
    write(header, values);
    return complaint();
  }

  fs::path folder_, file_;
};

const fs::path kPython = fs::path(DEMI_FIXTURES) / "safetensors" / "python.safetensors";

/// The tensors of tests/fixtures/safetensors/make.py.
NamedTensors expected_tensors() {
  const auto make = [](std::initializer_list<double> values, at::ScalarType dtype) {
    return at::tensor(std::vector<double>(values), at::kDouble).to(dtype);
  };
  return {{"f64", make({1.5, -2.25}, at::kDouble)},
          {"f32.weight", make({0, 1, 2, 3, 4, -0.5}, at::kFloat).view({2, 3})},
          {"f16", make({1, 65504, 0x1p-24}, at::kHalf)},
          {"bf16", make({1, -5}, at::kBFloat16)},
          {"f8_e4m3", make({1, 448}, at::kFloat8_e4m3fn)},
          {"f8_e5m2", make({1, 57344}, at::kFloat8_e5m2)},
          {"i64", at::scalar_tensor(-(int64_t{1} << 40), at::kLong)},
          {"i32", make({-7}, at::kInt)},
          {"i16", make({-300}, at::kShort).view({1, 1})},
          {"i8", make({-128, 0, 127}, at::kChar)},
          {"u8", make({255}, at::kByte)},
          {"bool", make({1, 0, 1}, at::kBool)},
          {"empty", at::empty({0, 4})},
          {"odd \"name\"\n\u00fc", make({1, 2}, at::kByte)}};
}

void expect_same(const NamedTensors& seen, const NamedTensors& expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(seen.contains(name)) << name;
    const at::Tensor& other = seen.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(other.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(other.to(at::kDouble), tensor.to(at::kDouble))) << name;
  }
}

TEST_F(SafetensorsFile, ReadsWhatPythonWrote) {
  const Safetensors read = load_safetensors(kPython);
  expect_same(read.tensors, expected_tensors());
  EXPECT_EQ(read.metadata, (Metadata{{"format", "pt"}}));
}

TEST_F(SafetensorsFile, WritesWhatPythonWritesByteForByte) {
  save_safetensors(file_, expected_tensors(), {{"format", "pt"}});
  EXPECT_EQ(bytes(file_), bytes(kPython));
  if (const char* out = std::getenv("DEMI_SAFETENSORS_OUT"))
    fs::copy_file(file_, out, fs::copy_options::overwrite_existing);
}

TEST_F(SafetensorsFile, KeepsViewsAndGradientsApart) {
  const at::Tensor base = at::arange(6, at::kFloat).view({2, 3}).requires_grad_();
  save_safetensors(file_, {{"t", base.t()}, {"row", base[1]}}, {{"a", "1"}, {"b", "\u00e4\n"}});
  const Safetensors read = load_safetensors(file_);
  EXPECT_TRUE(at::equal(read.tensors.at("t"), base.t()));
  EXPECT_TRUE(at::equal(read.tensors.at("row"), base[1]));
  EXPECT_FALSE(read.tensors.at("row").requires_grad());
  EXPECT_EQ(read.metadata.at("b"), "\u00e4\n");
}

TEST_F(SafetensorsFile, AlignsEveryTensor) {
  save_safetensors(file_, {{"a", at::ones({3}, at::kByte)},
                           {"b", at::ones({3}, at::kHalf)},
                           {"c", at::ones({1}, at::kLong)}});
  const SafetensorsHeader header = read_safetensors_header(file_);
  EXPECT_EQ(header.data_start % 8, 0U);
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "c");
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[2].name, "a");
}

TEST_F(SafetensorsFile, HoldsNothingAtAll) {
  save_safetensors(file_, {});
  EXPECT_TRUE(load_safetensors(file_).tensors.empty());
}

TEST_F(SafetensorsFile, RefusesWhatTheFormatCannotHold) {
  EXPECT_THROW(save_safetensors(file_, {{"__metadata__", at::ones({1})}}), UsageError);
  EXPECT_THROW(save_safetensors(file_, {{"a", at::Tensor()}}), UsageError);
  EXPECT_THROW(save_safetensors(file_, {{"a", at::ones({2, 2}).to_sparse()}}), UsageError);
  EXPECT_THROW(save_safetensors(file_, {{"a", at::ones({2}, at::kComplexDouble)}}), UsageError);
  EXPECT_THROW(save_safetensors(file_, {{"\xff", at::ones({1})}}), UsageError);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SafetensorsFile, LeavesTheOldFileWhenTheNewOneCannotBeMade) {
  save_safetensors(file_, {{"a", at::ones({1})}});
  const std::string before = bytes(file_);
  EXPECT_THROW(save_safetensors(file_, {{"a", at::ones({2}, at::kComplexDouble)}}), UsageError);
  EXPECT_EQ(bytes(file_), before);
  EXPECT_THROW(save_safetensors(folder_ / "no" / "x", {}), TrainingError);
}

TEST_F(SafetensorsFile, SaysWhatIsWrongWithAFile) {
  EXPECT_THAT(complaint(), HasSubstr("cannot be opened"));
  write("");
  EXPECT_THAT(complaint(), HasSubstr("ends too early"));
  write(std::string(8, '\xff'));
  EXPECT_THAT(complaint(), HasSubstr("offset 0: the header's length is impossible"));
  EXPECT_THAT(complaint("{", 0), HasSubstr("offset 9: the header is not JSON"));
  EXPECT_THAT(complaint("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(complaint("{\"\xff\":1}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(complaint(R"({"__metadata__":{"a":1}})", 0), HasSubstr("not made of strings"));
  EXPECT_THAT(complaint(R"({"a":7})", 0), HasSubstr("not one of a tensor"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"F32","shape":[1]}})", 4),
              HasSubstr("not one of a tensor"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("seen: F31"));
}

TEST_F(SafetensorsFile, ChecksShapesAndPlaces) {
  const auto one = [](const char* shape, const char* offsets) {
    return std::string(R"({"a":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  EXPECT_THAT(complaint(one("[1]", "[0,4]"), 4), "no DataError");
  EXPECT_THAT(complaint(one("[1]", "[0,4]"), 5), HasSubstr("5 bytes of values; accepted: 4"));
  EXPECT_THAT(complaint(one("[1]", "[0,4]"), 3), HasSubstr("3 bytes of values"));
  EXPECT_THAT(complaint(one("[2]", "[0,4]"), 4), HasSubstr("does not fit its shape"));
  EXPECT_THAT(complaint(one("[1]", "[1,5]"), 5), HasSubstr("leaves a gap"));
  EXPECT_THAT(complaint(one("[1]", "[4,0]"), 4), HasSubstr("gap"));
  EXPECT_THAT(complaint(one("[-1]", "[0,4]"), 4), HasSubstr("impossible"));
  EXPECT_THAT(complaint(one("[1.0]", "[0,4]"), 4), HasSubstr("impossible"));
  EXPECT_THAT(complaint(one("[1]", "[0]"), 4), HasSubstr("data_offsets of a are impossible"));
  EXPECT_THAT(complaint(one("[4294967296,4294967296,4294967296]", "[0,0]"), 0),
              HasSubstr("shape of a is impossible"));
  EXPECT_THAT(complaint(one("[9223372036854775808]", "[0,0]"), 0), HasSubstr("impossible"));
}

TEST_F(SafetensorsFile, RefusesTwoTensorsInOnePlaceOrOfOneName) {
  const std::string a = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_THAT(complaint("{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
              HasSubstr("overlaps"));
  EXPECT_THAT(complaint("{" + a + "," + a + "}", 2), HasSubstr("a name stands twice"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}})", 2),
              HasSubstr("twice"));
}

TEST_F(SafetensorsFile, RefusesTruthValuesThatAreNeither) {
  write(R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", 0);
  std::ofstream(file_, std::ios::binary | std::ios::app) << '\x02';
  EXPECT_THAT(complaint(), HasSubstr("seen: 2; accepted: 0 or 1"));
}

}  // namespace
}  // namespace demi::checkpoint
