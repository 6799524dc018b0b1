#include "demi/data/idx.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "demi/core/error.h"
#include "demi/data/damage.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
using Gzip = std::unique_ptr<gzFile_s, CloseGzip>;

/// The whole content, decompressed where it is gzip.
std::vector<uint8_t> read_whole(const fs::path& path) {
  constexpr std::string_view kWhere = "data.read_idx";
  errno = 0;
  const Gzip file(fs::is_regular_file(path) ? gzopen(path.c_str(), "rb") : nullptr);
  if (!file)
    report_damage({.where = kWhere,
                   .file = path,
                   .what = "cannot be opened",
                   .found = std::strerror(errno ? errno : ENOENT),
                   .expected = "a file that can be read"});
  gzbuffer(file.get(), 1 << 18);
  std::vector<uint8_t> bytes;
  constexpr unsigned kChunk = 1 << 22;
  for (int got = 1; got > 0;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kChunk);
    got = gzread(file.get(), bytes.data() + before, kChunk);
    bytes.resize(before + static_cast<std::size_t>(std::max(got, 0)));
  }
  int code = Z_OK;
  const char* message = gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END)
    report_damage({.where = kWhere,
                   .file = path,
                   .what = "the compressed data are damaged or cut short",
                   .place = fmt::format("offset {}", static_cast<long long>(gzoffset(file.get()))),
                   .found = fmt::format("{} after {} decompressed bytes", message, bytes.size()),
                   .expected = "a complete gzip stream with the right CRC-32"});
  return bytes;
}

uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

/// The first spelling that exists, else the first of all.
fs::path find_file(const fs::path& folder, const std::string& stem, const std::string& rank) {
  const std::string names[] = {stem + "-" + rank + "-ubyte", stem + "." + rank + "-ubyte"};
  for (const std::string& name : names)
    for (const char* ending : {"", ".gz"})
      if (fs::exists(folder / (name + ending))) return folder / (name + ending);
  return folder / (names[0] + ".gz");
}

}  // namespace

at::Tensor read_idx(const fs::path& file) {
  constexpr std::string_view kWhere = "data.read_idx";
  const std::vector<uint8_t> bytes = read_whole(file);
  const auto too_short = [&](std::size_t need) {
    if (bytes.size() < need)
      report_damage({.where = kWhere,
                     .file = file,
                     .what = "the header is cut short",
                     .place = fmt::format("offset {}", bytes.size()),
                     .found = fmt::format("{} bytes", bytes.size()),
                     .expected = fmt::format("at least {}", need)});
  };
  too_short(4);
  const uint32_t magic = big_endian(bytes.data());
  const uint32_t rank = magic & 0xFF;
  if (magic >> 8 != 0x08 || rank < 1 || rank > 4)
    report_damage(
        {.where = kWhere,
         .file = file,
         .what = "the magic number is wrong",
         .place = "offset 0",
         .found = fmt::format("0x{:08x}", magic),
         .expected = "0x00000801 (labels) or 0x00000803 (pictures): IDX of unsigned bytes",
         .advice = "this is another kind of file, or a damaged one; get a fresh copy"});
  const std::size_t header = 4 + 4 * std::size_t{rank};
  too_short(header);
  std::vector<int64_t> sizes;
  unsigned __int128 total = 1;  // four sizes of 32 bits
  for (std::size_t i = 0; i < rank; ++i) {
    sizes.push_back(big_endian(bytes.data() + 4 + 4 * i));
    total *= static_cast<unsigned __int128>(sizes.back());
  }
  if (total != bytes.size() - header)
    report_damage(
        {.where = kWhere,
         .file = file,
         .what = "the file's size does not fit the sizes in its header",
         .place = fmt::format("offset {}", bytes.size()),
         .found = fmt::format("{} bytes after the header", bytes.size() - header),
         .expected = fmt::format(
             "{} (sizes {})",
             total > UINT64_MAX ? "far more" : fmt::to_string(static_cast<uint64_t>(total)),
             fmt::join(sizes, " x "))});
  at::Tensor tensor = at::empty(sizes, at::kByte);
  std::memcpy(tensor.mutable_data_ptr<uint8_t>(), bytes.data() + header, bytes.size() - header);
  return tensor;
}

ImageSet read_mnist_layout(const fs::path& folder, Split split, std::vector<std::string> classes,
                           std::string name) {
  constexpr std::string_view kWhere = "data.read_mnist_layout";
  const std::string stem = split == Split::train ? "train" : "t10k";
  const fs::path image_file = find_file(folder, stem + "-images", "idx3");
  const fs::path label_file = find_file(folder, stem + "-labels", "idx1");
  const at::Tensor images = read_idx(image_file);
  const at::Tensor labels = read_idx(label_file);
  const auto check_rank = [&](const fs::path& file, const at::Tensor& tensor, int64_t rank) {
    if (tensor.dim() != rank)
      report_damage({.where = kWhere,
                     .file = file,
                     .what = "another kind of IDX file than its name says",
                     .place = "offset 0",
                     .found = fmt::format("magic 0x{:08x}", 0x800 + tensor.dim()),
                     .expected = fmt::format("0x{:08x}", 0x800 + rank)});
  };
  check_rank(image_file, images, 3);
  check_rank(label_file, labels, 1);
  if (images.size(0) != labels.size(0))
    report_damage({.where = kWhere,
                   .file = label_file,
                   .what = "the number of labels is wrong",
                   .place = "offset 4",
                   .found = fmt::format("{} labels", labels.size(0)),
                   .expected = fmt::format("{}, one a picture of {}", images.size(0),
                                           image_file.filename().string())});
  const uint8_t* label = labels.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < labels.size(0); ++i)
    if (label[i] >= classes.size())
      report_damage({.where = kWhere,
                     .file = label_file,
                     .what = "a label is out of range",
                     .place = fmt::format("offset {}", 8 + i),
                     .found = fmt::to_string(label[i]),
                     .expected = fmt::format("0 to {}", classes.size() - 1)});
  return {.images = images.unsqueeze(1),
          .labels = labels.to(at::kLong),
          .classes = std::move(classes),
          .name = std::move(name)};
}

}  // namespace demi::data
