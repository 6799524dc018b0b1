#include "lab/data/idx.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <functional>

#include "demi/core/error.h"
#include "demi/core/memory_testing.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using files::complaint;
using files::contents;
using testing::HasSubstr;

// The layout is written out here by hand from its description, not by our own code.
const std::string kImages(
    "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03"
    "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\xff",
    28);
const std::string kLabels("\0\0\x08\x01\0\0\0\x02\x02\0", 10);

std::string gzipped(const std::string& text) {
  const TestFolder folder;
  const auto path = folder / "packed.gz";
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return contents(path);
}

ImageSet read(const TestFolder& folder) {
  return read_mnist_layout(folder.path(), Split::train, {"a", "b", "c"}, "tiny");
}

TEST(Idx, ReadsSizesAndBytes) {
  const TestFolder folder;
  folder.write("x", kImages);
  const at::Tensor tensor = read_idx(folder / "x");
  EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(tensor.scalar_type(), at::kByte);
  EXPECT_EQ(tensor[1][0][0].item<int>(), 7);
  EXPECT_EQ(tensor[1][1][2].item<int>(), 255);
}

TEST(Idx, ReadsEverySpellingRawAndCompressed) {
  for (const char* joint : {"-", "."})
    for (bool packed : {false, true}) {
      const TestFolder folder;
      const std::string ending = packed ? ".gz" : "";
      folder.write(std::string("train-images") + joint + "idx3-ubyte" + ending,
                   packed ? gzipped(kImages) : kImages);
      folder.write(std::string("train-labels") + joint + "idx1-ubyte" + ending,
                   packed ? gzipped(kLabels) : kLabels);
      const ImageSet set = read(folder);
      EXPECT_EQ(set.images.sizes(), (std::vector<int64_t>{2, 1, 2, 3}));
      EXPECT_EQ(set.labels[0].item<int64_t>(), 2);
      EXPECT_EQ(set.labels.scalar_type(), at::kLong);
    }
}

TEST(Idx, SaysWhatIsWrongWithAFile) {
  const TestFolder folder;
  const auto path = folder / "x";
  const auto said = [&](const std::string& content) {
    folder.write("x", content);
    return complaint([&] { read_idx(path); });
  };
  EXPECT_THAT(said(""), HasSubstr("the header is cut short"));
  EXPECT_THAT(said(kImages.substr(0, 9)), HasSubstr("at least 16"));
  EXPECT_THAT(said(kImages.substr(0, 27)),
              HasSubstr("11 bytes after the header; accepted: 12 (sizes 2 x 2 x 3)"));
  EXPECT_THAT(said(kImages + "x"),
              HasSubstr("offset 28: the file's size does not fit the sizes in its header; seen: "
                        "more than 12 bytes after the header"));
  EXPECT_THAT(said("PK\x03\x04" + kImages),
              HasSubstr("offset 0: the magic number is wrong; seen: 0x504b0304"));
  const std::string huge = std::string("\0\0\x08\x04", 4) + std::string(16, '\xff');
  EXPECT_THAT(said(huge), HasSubstr("far more"));
  EXPECT_THAT(complaint([&] { read_idx(folder / "absent"); }),
              HasSubstr("absent: cannot be opened; seen: No such file"));
  EXPECT_THAT(complaint([&] { read_idx(folder.path()); }), HasSubstr("cannot be opened"));
  EXPECT_THAT(said(kImages), testing::Eq("no DataError"));
}

TEST(Idx, SaysWhereAGzipFileBreaks) {
  const TestFolder folder;
  const std::string packed = gzipped(kImages);
  folder.write("cut.gz", packed.substr(0, packed.size() - 9));
  EXPECT_THAT(complaint([&] { read_idx(folder / "cut.gz"); }), HasSubstr("damaged or cut short"));
  std::string flipped = packed;
  flipped[packed.size() - 6] =
      static_cast<char>(flipped[packed.size() - 6] ^ 1);  // a bit of the CRC-32
  folder.write("flipped.gz", flipped);
  EXPECT_THAT(complaint([&] { read_idx(folder / "flipped.gz"); }),
              HasSubstr("incorrect data check"));
}

// The header says 12 bytes, and 256 MB of zeros follow: a file of 250 kB took all of them.
TEST(Idx, ReadsNoMoreThanTheHeaderNames) {
  const TestFolder folder;
  folder.write("bomb.gz", gzipped(kImages.substr(0, 16) + std::string(256 << 20, '\0')));
  const int64_t taken = peak_kilobytes_of([&] {
    EXPECT_THAT(complaint([&] { read_idx(folder / "bomb.gz"); }), HasSubstr("more than 12 bytes"));
  });
  EXPECT_LT(taken, 64 << 10);
}

// 2^32 - 1 labels by the header, 12 in the file: no memory is taken for what is only said.
TEST(Idx, TakesNoMemoryForWhatIsNotThere) {
  const TestFolder folder;
  for (const char* rank : {"\x01", "\x04"}) {
    folder.write("liar.gz", gzipped(std::string("\0\0\x08", 3) + rank + std::string(16, '\xff')));
    EXPECT_THAT(complaint([&] { read_idx(folder / "liar.gz"); }),
                HasSubstr("does not fit the sizes in its header"));
  }
}

// zlib compares CRC-32 and length behind the data. The 10 bytes of gzip's header are left out: its
// time and system are under no checksum, and no part of the data.
TEST(Idx, RefusesEverySingleFlippedBit) {
  const TestFolder folder;
  std::string content("\0\0\x08\x01\0\0\x27\x10", 8);  // 10,000 labels
  for (uint32_t i = 0; i < 10'000; ++i)
    content.push_back(static_cast<char>(i * i * 2654435761U >> 24));
  const std::string packed = gzipped(content);
  int refused = 0;
  constexpr int kFlips = 300;
  for (int i = 0; i < kFlips; ++i) {
    std::string flipped = packed;
    const std::size_t byte = 10 + (packed.size() - 10) * static_cast<std::size_t>(i) / kFlips;
    flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << i % 8));
    folder.write("x.gz", flipped);
    refused += complaint([&] { read_idx(folder / "x.gz"); }) != "no DataError";
  }
  EXPECT_EQ(refused, kFlips);
  folder.write("x.gz", packed);
  EXPECT_EQ(read_idx(folder / "x.gz").numel(), 10'000);
}

TEST(Idx, ComparesPicturesWithLabels) {
  const TestFolder folder;
  folder.write("train-images-idx3-ubyte", kImages);
  EXPECT_THAT(complaint([&] { read(folder); }),
              HasSubstr("train-labels-idx1-ubyte.gz: cannot be opened"));
  folder.write("train-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\x01\x02", 9));
  EXPECT_THAT(complaint([&] { read(folder); }), HasSubstr("1 labels; accepted: 2"));
  folder.write("train-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\x02\x02\x03", 10));
  EXPECT_THAT(complaint([&] { read(folder); }),
              HasSubstr("offset 9: a label is out of range; seen: 3; accepted: 0 to 2"));
  folder.write("train-labels-idx1-ubyte", kImages);
  EXPECT_THAT(complaint([&] { read(folder); }), HasSubstr("another kind of IDX file"));
}

}  // namespace
}  // namespace demi::data
