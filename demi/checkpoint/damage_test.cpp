// Files that are not what they were: flipped bits, missing ends, headers that lie.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/fuzz_testing.h"
#include "demi/checkpoint/header_testing.h"
#include "demi/checkpoint/safetensors_header.h"
#include "demi/core/error.h"
#include "demi/core/fuzz_testing.h"
#include "demi/core/memory_testing.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::array kFiles = {"model.safetensors", "state.safetensors", "manifest.json"};

std::string with_flipped_bit(std::string content, std::size_t bit) {
  content[bit / 8] = static_cast<char>(content[bit / 8] ^ (1 << (bit % 8)));
  return content;
}

class DamagedCheckpoint : public CheckpointFolder {
 protected:
  void SetUp() override {
    CheckpointFolder::SetUp();
    saved_ = save(folder_, 7, ten_tensors(3));
  }

  /// The fault in the answer to this damage; empty if it is refused in the right way.
  std::string met(const char* name, const std::string& content) const {
    write_bytes(saved_ / name, content);
    for (const auto& read : {load, map}) {
      try {
        read(folder_);
        return "it loaded in silence";
      } catch (const DataError& error) {
        const std::string text = error.what();
        if (text.find(name) == std::string::npos) return "the file is not named: " + text;
        if (text.size() > 2000) return "the message is too long: " + text.substr(0, 300);
      } catch (const std::exception& error) {
        return std::string("another error: ") + error.what();
      }
    }
    return "";
  }

  fs::path saved_;
};

TEST_F(DamagedCheckpoint, RefusesEveryFlippedBit) {
  for (const char* name : kFiles) {
    const std::string whole = bytes_of(saved_ / name);
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit)
      ASSERT_EQ(met(name, with_flipped_bit(whole, bit)), "") << name << " bit " << bit;
    write_bytes(saved_ / name, whole);
  }
  EXPECT_TRUE(same(load(folder_), ten_tensors(3)));
}

TEST_F(DamagedCheckpoint, RefusesEveryMissingEnd) {
  for (const char* name : kFiles) {
    const std::string whole = bytes_of(saved_ / name);
    for (std::size_t left = 0; left < whole.size(); ++left)
      ASSERT_EQ(met(name, whole.substr(0, left)), "") << name << " cut to " << left << " bytes";
    write_bytes(saved_ / name, whole);
  }
}

// Values of many pages, and damages of several bits and bytes.
TEST_F(DamagedCheckpoint, RefusesDamageInLargeTensors) {
  std::mt19937_64 random(2026);
  Checkpoint large;
  large.model["a"] = at::arange(60'000, at::kDouble);
  large.state["b"] = at::arange(50'001, at::kInt);
  saved_ = save(folder_, 8, large);
  for (const char* name : {"model.safetensors", "state.safetensors"}) {
    const std::string whole = bytes_of(saved_ / name);
    for (int i = 0; i < 100; ++i) {
      const std::size_t bit = random() % (8 * whole.size());
      ASSERT_EQ(met(name, with_flipped_bit(whole, bit)), "") << name << " bit " << bit;
      std::string torn = whole;
      const std::size_t from = random() % whole.size();
      for (std::size_t at = from; at < std::min(from + 4096, torn.size()); ++at)
        torn[at] = static_cast<char>(random());
      ASSERT_EQ(met(name, torn), "") << name << " torn from " << from;
    }
    write_bytes(saved_ / name, whole);
  }
  EXPECT_TRUE(same(load(folder_), large));
}

TEST_F(DamagedCheckpoint, RefusesLongerFilesAndExchangedHalves) {
  for (const char* name : kFiles) {
    const std::string whole = bytes_of(saved_ / name);
    EXPECT_EQ(met(name, whole + '\0'), "");
    EXPECT_EQ(met(name, whole + whole), "");
    EXPECT_EQ(met(name, whole.substr(whole.size() / 2) + whole.substr(0, whole.size() / 2)), "");
    EXPECT_EQ(met(name, std::string(whole.size(), '\0')), "");
    write_bytes(saved_ / name, whole);
  }
}

class LyingHeader : public CheckpointFolder {
 protected:
  /// The complaint about a file with that header and 4 bytes of values. It may take no memory to
  /// speak of: what a header claims is checked before it is believed.
  std::string complaint(const std::string& header, uint64_t length) const {
    const fs::path file = folder_ / "x.safetensors";
    write_bytes(file, header_length(length) + header + std::string(4, '\0'));
    std::string said = "no DataError";
    const int64_t kilobytes = peak_kilobytes_of([&] {
      try {
        load_safetensors(file);
      } catch (const DataError& error) {
        said = error.what();
      }
    });
    EXPECT_LT(kilobytes, 4096) << header;
    return said;
  }
  std::string complaint(const std::string& header) const {
    return complaint(header, header.size());
  }
};

TEST_F(LyingHeader, LengthsAtTheirExtremes) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_EQ(complaint(header), "no DataError");
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{header.size()} - 1, uint64_t{header.size()} + 5,
        kLongestHeader, kLongestHeader + 1, uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 60,
        uint64_t{1} << 63, UINT64_MAX - 8, UINT64_MAX - 7, UINT64_MAX})
    EXPECT_THAT(complaint(header, length), HasSubstr("x.safetensors, offset")) << length;
}

// Whole numbers around every power of two at which something may overflow, and what is none.
TEST_F(LyingHeader, ShapesAndPlacesAtTheirExtremes) {
  std::vector<std::string> numbers = {"-1",
                                      "-9223372036854775808",
                                      "-0",
                                      "0.5",
                                      "1e2",
                                      "1e30",
                                      "1e999",
                                      "null",
                                      "\"4\"",
                                      "[4]",
                                      "true",
                                      "18446744073709551616",
                                      "99999999999999999999999999"};
  for (const int power : {31, 32, 40, 60, 61, 62, 63})
    for (const int64_t by : {-1, 0, 1})
      numbers.push_back(std::to_string((uint64_t{1} << power) + static_cast<uint64_t>(by)));
  numbers.push_back(std::to_string(UINT64_MAX));
  numbers.push_back(std::to_string(UINT64_MAX - 3));
  const auto header = [](const std::string& shape, const std::string& begin,
                         const std::string& end) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[)" + begin + "," + end +
           "]}}";
  };
  EXPECT_EQ(complaint(header("[1]", "0", "4")), "no DataError");
  for (const std::string& number : numbers) {
    SCOPED_TRACE(number);
    for (const std::string& shape :
         {"[" + number + "]", "[1," + number + "]", "[" + number + "," + number + "]",
          "[0," + number + "," + number + "]"})
      EXPECT_NE(complaint(header(shape, "0", "4")), "no DataError") << shape;
    EXPECT_NE(complaint(header("[1]", number, "4")), "no DataError");
    EXPECT_NE(complaint(header("[1]", "0", number)), "no DataError");
    EXPECT_NE(complaint(header("[1]", number, number)), "no DataError");
    EXPECT_NE(complaint(header("[" + number + "]", "0", number)), "no DataError");
  }
}

TEST_F(LyingHeader, TensorsThatShareBytesOrLeaveSome) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}";
  };
  EXPECT_EQ(complaint(two("[0,2]", "[2,4]")), "no DataError");
  EXPECT_EQ(complaint(two("[2,4]", "[0,2]")), "no DataError");
  for (const auto& [first, second] : {std::pair{"[0,2]", "[0,2]"},
                                      {"[0,2]", "[1,3]"},
                                      {"[0,2]", "[3,5]"},
                                      {"[1,3]", "[3,5]"},
                                      {"[0,2]", "[2,1]"},
                                      {"[0,4]", "[4,4]"},
                                      {"[2,0]", "[2,4]"}})
    EXPECT_NE(complaint(two(first, second)), "no DataError") << first << second;
}

// No input makes the readers fail in another way than by one of demi's errors.
TEST(CheckpointFuzz, EveryInputEndsInAValueOrAnError) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 2000);
}

}  // namespace
}  // namespace demi::checkpoint
