#include "lab/files/archive.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <string>

#include "demi/core/error.h"
#include "demi/core/memory_testing.h"
#include "lab/data/cifar.h"
#include "lab/data/cifar_testing.h"
#include "lab/data/get.h"
#include "lab/data/registry.h"

namespace demi::data {
namespace {

using files::complaint;
using files::contents;
using testing::HasSubstr;
using namespace cifar_testing;

/// A record whose pixels do not compress.
std::string noisy_record(int label, uint32_t seed) {
  std::string text(1, static_cast<char>(label));
  for (uint32_t i = 0; i < 3 * 32 * 32; ++i) {
    seed = seed * 1664525U + 1013904223U;
    text.push_back(static_cast<char>(seed >> 24));
  }
  return text;
}

// libarchive does not compare gzip's CRC-32, and reads no further than the end of the tar in it: 26
// of 30 flipped bits in CIFAR-10 were whole data. The 10 bytes of gzip's header are left out: its
// time and system are under no checksum, and no part of the data.
TEST(Archive, RefusesEverySingleFlippedBit) {
  const TestFolder files, folder;
  for (int batch = 1; batch <= 5; ++batch)
    files.write("data_batch_" + std::to_string(batch) + ".bin",
                noisy_record(batch, static_cast<uint32_t>(batch)));
  files.write("readme.html", std::string(1000, 'x'));
  for (const bool gzip : {true, false}) {
    const auto file = folder / (gzip ? "cifar-10-binary.tar.gz" : "cifar-10-batches-bin.tar.xz");
    pack(files.path(), file, "cifar-10-batches-bin/", !gzip);
    const std::string packed = contents(file);
    EXPECT_EQ(read_cifar(file, Cifar::ten, Split::train).labels.numel(), 5);
    const std::size_t start = gzip ? 10 : 0;
    int refused = 0;
    constexpr int kFlips = 300;
    for (int i = 0; i < kFlips; ++i) {
      std::string flipped = packed;
      const std::size_t byte =
          start + (packed.size() - start) * static_cast<std::size_t>(i) / kFlips;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << i % 8));
      folder.write(file.filename().string(), flipped);
      refused += complaint([&] { read_cifar(file, Cifar::ten, Split::train); }) != "no DataError";
    }
    EXPECT_EQ(refused, kFlips) << file;
    // What comes behind the tar in the compressed stream counts as well: its sums do.
    folder.write(file.filename().string(), packed.substr(0, packed.size() - 4));
    EXPECT_NE(complaint([&] { read_cifar(file, Cifar::ten, Split::train); }), "no DataError");
  }
}

/// The content of `file`'s gzip and zeros up to `bytes`, in a gzip of its own.
void fill_up(const std::filesystem::path& file, std::size_t bytes) {
  std::string tar(bytes, '\0');
  gzFile in = gzopen(file.c_str(), "rb");
  gzread(in, tar.data(), static_cast<unsigned>(bytes));
  gzclose(in);
  gzFile out = gzopen(file.c_str(), "wb1");
  gzwrite(out, tar.data(), static_cast<unsigned>(bytes));
  gzclose(out);
}

// The sums of a stream come behind all of it, and tapes fill it up with zeros.
TEST(Archive, IsReadToItsEndButNotWithoutEnd) {
  const TestFolder files, folder;
  const auto file = folder / "x.tar.gz";
  files.write("a", "1");
  pack(files.path(), file, "");
  const auto read = [&] { files::read_members(file, {"a"}); };
  fill_up(file, 4 << 20);
  EXPECT_EQ(complaint(read), "no DataError");
  std::string bytes = contents(file);
  bytes[bytes.size() - 8] = static_cast<char>(bytes[bytes.size() - 8] ^ 1);  // of the CRC-32
  folder.write("x.tar.gz", bytes);
  EXPECT_THAT(complaint(read), HasSubstr("damaged or cut short"));
  pack(files.path(), file, "");
  fill_up(file, 66 << 20);
  EXPECT_THAT(complaint(read), HasSubstr("continues behind the end of the archive"));
}

TEST(Archive, RefusesMembersWithHoles) {
  const TestFolder folder;
  const auto file = folder / "x.tar.gz";
  archive* out = archive_write_new();
  archive_write_add_filter_gzip(out);
  archive_write_set_format_pax(out);
  archive_write_open_filename(out, file.c_str());
  archive_entry* entry = archive_entry_new();
  archive_entry_set_pathname(entry, "a");
  archive_entry_set_size(entry, 8192);
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_sparse_add_entry(entry, 4096, 4096);
  archive_write_header(out, entry);
  const std::string content(8192, 'x');
  archive_write_data(out, content.data(), content.size());
  archive_entry_free(entry);
  archive_write_free(out);
  EXPECT_THAT(complaint([&] { files::read_members(file, {"a"}); }), HasSubstr("has holes"));
}

// A record file of 256 MB in 250 kB: what is longer than a published one is not read.
TEST(Archive, TakesNoMemoryForABomb) {
  const TestFolder files, folder;
  for (int batch = 1; batch <= 5; ++batch)
    files.write("data_batch_" + std::to_string(batch) + ".bin", "");
  std::filesystem::resize_file(files / "data_batch_3.bin", 256 << 20);
  pack(files.path(), folder / "cifar-10-binary.tar.gz", "");
  const int64_t taken = peak_kilobytes_of([&] {
    EXPECT_THAT(complaint([&] { load_images("cifar10", Split::train, folder.path()); }),
                HasSubstr("longer than its kind can be; seen: 268435456 bytes in data_batch_3.bin; "
                          "accepted: at most 30730000 bytes"));
  });
  EXPECT_LT(taken, 64 << 10);
}

TEST(Archive, RefusesAFileThatStandsTwice) {
  const TestFolder files, folder;
  files.write("a/data_batch_1.bin", record({1}, 1, 2, 3));
  files.write("b/data_batch_1.bin", record({2}, 1, 2, 3));
  pack(files.path(), folder / "x.tar.gz", "");
  EXPECT_THAT(complaint([&] { files::read_members(folder / "x.tar.gz", {"data_batch_1.bin"}); }),
              HasSubstr("a file occurs twice in the archive; seen: data_batch_1.bin"));
}

TEST(Archive, OfThePublishedNameIsThePublishedOne) {
  const TestFolder files, folder;
  write_ten(files);
  pack(files.path(), folder / "cifar-10-binary.tar.gz", "");
  EXPECT_THAT(complaint([&] { check_data_set("cifar10", folder.path()); }),
              testing::AllOf(HasSubstr("not the archive that is published"),
                             HasSubstr("accepted: MD5 c32a1d4ab5d03f1284b67883e8d87530")));
  std::filesystem::rename(folder / "cifar-10-binary.tar.gz",
                          folder / "cifar-10-batches-bin.tar.gz");
  EXPECT_THAT(complaint([&] { check_data_set("cifar10", folder.path()); }),
              HasSubstr("is not the whole set; seen: 10 training and 1 test examples"));
}

TEST(Archive, SaysThatItIsDamaged) {
  const TestFolder files, folder;
  write_ten(files);
  pack(files.path(), folder / "whole.tar.gz", "");
  const std::string bytes = contents(folder / "whole.tar.gz");
  folder.write("cifar-10-binary.tar.gz", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(complaint([&] { load_images("cifar10", Split::train, folder.path()); }),
              HasSubstr("damaged or cut short"));
  EXPECT_THAT(complaint([&] { files::unpack(folder / "cifar-10-binary.tar.gz", folder / "out"); }),
              HasSubstr("damaged or cut short"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  EXPECT_THAT(complaint([&] { files::read_members(folder / "absent", {"x"}); }),
              HasSubstr("cannot be opened"));
}

TEST(Archive, UnpacksIntoAFolderThatIsWholeOrNotThere) {
  const TestFolder files, folder;
  files.write("a", "1");
  pack(files.path(), folder / "x.tar.gz", "./inner/");
  files::unpack(folder / "x.tar.gz", folder / "out");
  EXPECT_EQ(contents(folder / "out/inner/a"), "1");
  EXPECT_THAT(complaint([&] { files::unpack(folder / "x.tar.gz", folder / "out"); }),
              HasSubstr("exists already"));
  pack(files.path(), folder / "evil.tar.gz", "../");
  EXPECT_THAT(complaint([&] { files::unpack(folder / "evil.tar.gz", folder / "evil"); }),
              HasSubstr("points out of the folder"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_FALSE(std::filesystem::exists(folder / "evil"));
}

}  // namespace
}  // namespace demi::data
