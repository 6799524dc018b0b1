#include "demi/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "demi/checkpoint/header_testing.h"
#include "demi/checkpoint/safetensors_header.h"
#include "demi/core/error.h"
#include "demi/core/memory_testing.h"
#include "demi/core/source_dir_testing.h"

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
    write(header_length(header.size()) + header + std::string(values, '\0'));
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

const fs::path kPython = source_dir() / "tests/fixtures/safetensors" / "python.safetensors";

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
  EXPECT_THROW(save_safetensors(file_, {{"a", at::empty(std::vector<int64_t>(65, 1))}}),
               UsageError);
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

TEST_F(SafetensorsFile, RefusesShapesThatAreNoListsOfNumbers) {
  const auto said = [&](const std::string& shape) {
    return complaint(R"({"a":{"dtype":"U8","shape":)" + shape + R"(,"data_offsets":[0,1]}})", 1);
  };
  for (const char* shape : {"1", R"({"x":1})", "null", "true", R"("1")", "[[1]]", "[null]", "[-0]"})
    EXPECT_THAT(said(shape), HasSubstr("shape of a is impossible")) << shape;
  EXPECT_THAT(said("[1e999]"), HasSubstr("not JSON"));
  const std::string digits = said("[" + std::string(1'000'000, '7') + "]");
  EXPECT_THAT(digits, HasSubstr("not JSON"));
  EXPECT_LT(digits.size(), 1000U) << "a message for people";
  EXPECT_THAT(said("[0." + std::string(1'000'000, '0') + "]"), HasSubstr("(1000002 bytes)"));
  EXPECT_THAT(said("[1,4611686018427387904,4611686018427387904]"), HasSubstr("is impossible"));
  std::string many = "[1";
  for (int i = 1; i < 64; ++i) many += ",1";
  EXPECT_EQ(said(many + "]"), "no DataError");
  EXPECT_THAT(said(many + ",1]"), HasSubstr("seen: more dimensions"));
}

// LibTorch's strides are products of the other extents, also where one is 0.
TEST_F(SafetensorsFile, RefusesEmptyTensorsWhoseStridesOverflow) {
  const auto said = [&](const std::string& shape) {
    return complaint(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,0]}})", 0);
  };
  EXPECT_EQ(said("[0,7]"), "no DataError");
  EXPECT_EQ(said("[1024,0]"), "no DataError");
  EXPECT_THAT(said("[0,4611686018427387904,4611686018427387904]"), HasSubstr("is impossible"));
  EXPECT_THAT(said("[4611686018427387904,4611686018427387904,0]"), HasSubstr("is impossible"));
}

// Refused as by Python's reader. A parser that stops at a NUL would not read the rest.
TEST_F(SafetensorsFile, RefusesWhatIsNotJsonToTheEnd) {
  EXPECT_THAT(complaint(std::string("{}\0{", 4), 0),
              HasSubstr("offset 10: the header is not JSON"));
  EXPECT_THAT(complaint(std::string("{}\0", 3), 0), HasSubstr("seen: a NUL"));
  EXPECT_THAT(complaint("\xEF\xBB\xBF{}", 0), HasSubstr("a byte order mark"));
  EXPECT_THAT(complaint("{}{}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(complaint("7", 0), HasSubstr("not a JSON object"));
  EXPECT_EQ(complaint("{}   ", 0), "no DataError");
}

TEST_F(SafetensorsFile, RefusesOtherFormsOfMetadata) {
  for (const char* value : {"7", "[]", R"(["a"])", R"({"a":{}})", R"({"a":["b"]})"})
    EXPECT_THAT(complaint(std::string(R"({"__metadata__":)") + value + "}", 0),
                HasSubstr("not made of strings"))
        << value;
  std::string many = R"({"__metadata__":{)";
  for (std::size_t i = 0; i <= kMostMetadata; ++i)
    many += (i ? ",\"" : "\"") + std::to_string(i) + R"(":"")";
  EXPECT_THAT(complaint(many + "}}", 0), HasSubstr("too many metadata"));
  EXPECT_THAT(complaint(R"({"__metadata__":{},"__metadata__":{}})", 0), HasSubstr("twice"));
  EXPECT_EQ(complaint(R"({"__metadata__":null})", 0), "no DataError");
  EXPECT_THAT(complaint(R"({"__metadata__":{"a":"1","a":"2"}})", 0), HasSubstr("twice"));
}

// Python's reader passes over fields that it does not know.
TEST_F(SafetensorsFile, PassesOverUnknownFieldsOfAnEntry) {
  const auto said = [&](const std::string& more) {
    return complaint(
        R"({"a":{"dtype":"U8","note":)" + more + R"(,"shape":[],"data_offsets":[0,1]}})", 1);
  };
  for (const char* more : {"7", "null", R"("an object")", "[1,2.5,\"x\"]"})
    EXPECT_EQ(said(more), "no DataError") << more;
  for (const char* more : {"{}", "[[]]", "[{}]"})
    EXPECT_THAT(said(more), HasSubstr("not one of a tensor")) << more;
}

std::string header_of(int tensors) {
  std::string header = "{";
  for (int i = 0; i < tensors; ++i)
    header += (i ? "," : "") + ("\"layers." + std::to_string(i)) +
              R"(.weight":{"dtype":"F32","shape":[0,64],"data_offsets":[0,0]})";
  return header + "}";
}

// 60,000 tensors took 73 s while each was compared with all before it. Processor time; the bound is
// far above what is needed on any machine.
TEST_F(SafetensorsFile, ReadsAHeaderOfManyTensorsInLittleTime) {
  write(header_of(60'000), 0);
  const std::clock_t start = std::clock();
  EXPECT_EQ(read_safetensors_header(file_).tensors.size(), 60'000U);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 20);
}

// A JSON document took 21 to 77 times the header.
TEST_F(SafetensorsFile, ReadsAHeaderInFiveTimesItsMemory) {
  write(header_of(300'000), 0);
  const auto kilobytes = static_cast<int64_t>(fs::file_size(file_) / 1024);
  SafetensorsHeader header;
  const int64_t taken = peak_kilobytes_of([&] { header = read_safetensors_header(file_); });
  EXPECT_EQ(header.tensors.size(), 300'000U);
  if (taken < 0) GTEST_SKIP() << "memory cannot be measured here";
  EXPECT_LT(taken, 5 * kilobytes);
}

TEST_F(SafetensorsFile, RefusesDeepAndLongHeadersAtOnce) {
  std::string nested, empties = "{";
  for (int i = 0; i < 1'000'000; ++i) {
    nested += R"({"a":)";
    empties += "\"" + std::to_string(i) + "\":{},";
  }
  std::string extents = R"({"a":{"dtype":"U8","shape":[1)";
  for (int i = 0; i < 1'000'000; ++i) extents += ",1";
  for (const std::string& header : {std::string(1'000'000, '['), nested, empties, extents}) {
    const std::clock_t start = std::clock();
    EXPECT_THAT(complaint(header, 0), HasSubstr("offset 8")) << header.substr(0, 30);
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5);
  }
}

TEST_F(SafetensorsFile, RefusesTwoTensorsInOnePlaceOrOfOneName) {
  const std::string a = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_THAT(complaint("{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
              HasSubstr("overlaps"));
  EXPECT_THAT(complaint("{" + a + "," + a + "}", 2), HasSubstr("a name occurs twice"));
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
