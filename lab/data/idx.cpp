#include "lab/data/idx.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "lab/files/damage.h"
#include "lab/files/gzip_reader.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReadIdx = "data.read_idx";

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

/// The sizes that the header names, 1 to 4.
std::vector<int64_t> read_sizes(files::GzipReader& reader, const fs::path& file) {
  std::array<uint8_t, 4 + 4 * 4> header{};
  const auto read = [&](std::size_t from, std::size_t bytes) {
    const std::size_t got = reader.read(header.data() + from, bytes);
    if (got < bytes)
      files::report_damage({.where = kReadIdx,
                            .file = file,
                            .what = "the header is cut short",
                            .place = fmt::format("offset {}", from + got),
                            .found = fmt::format("{} bytes", from + got),
                            .expected = fmt::format("at least {}", from + bytes)});
  };
  read(0, 4);
  const uint32_t magic = big_endian(header.data());
  const uint32_t rank = magic & 0xFF;
  if (magic >> 8 != 0x08 || rank < 1 || rank > 4)
    files::report_damage(
        {.where = kReadIdx,
         .file = file,
         .what = "the magic number is wrong",
         .place = "offset 0",
         .found = fmt::format("0x{:08x}", magic),
         .expected = "0x00000801 (labels) or 0x00000803 (pictures): IDX of unsigned bytes",
         .advice = "this is another kind of file, or a damaged one; get a fresh copy"});
  read(4, 4 * std::size_t{rank});
  std::vector<int64_t> sizes;
  for (std::size_t i = 0; i < rank; ++i) sizes.push_back(big_endian(header.data() + 4 + 4 * i));
  return sizes;
}

using Block = std::vector<uint8_t>;

/// Reads at most `total` bytes and one more. The header may name far more than the file holds, and
/// the file hold far more than the header names, so memory is allocated as bytes come.
std::vector<Block> read_values(files::GzipReader& reader, unsigned __int128 total) {
  constexpr std::size_t kBlock = 1 << 22;
  std::vector<Block> blocks;
  for (unsigned __int128 left = total + 1; left > 0;) {
    Block block(left < kBlock ? static_cast<std::size_t>(left) : kBlock);
    const std::size_t wanted = block.size();
    block.resize(reader.read(block.data(), wanted));
    const bool over = block.size() < wanted;
    left -= block.size();
    blocks.push_back(std::move(block));
    if (over) break;
  }
  return blocks;
}

}  // namespace

at::Tensor read_idx(const fs::path& file) {
  files::GzipReader reader(std::string(kReadIdx), file);
  const std::vector<int64_t> sizes = read_sizes(reader, file);
  unsigned __int128 total = 1;  // four sizes of 32 bits
  for (int64_t size : sizes) total *= static_cast<unsigned __int128>(size);
  std::vector<Block> blocks = read_values(reader, total);
  std::size_t bytes = 0;
  for (const Block& block : blocks) bytes += block.size();
  const bool more = bytes > total;
  if (bytes != total)
    files::report_damage(
        {.where = kReadIdx,
         .file = file,
         .what = "the file's size does not fit the sizes in its header",
         .place = fmt::format("offset {}", 4 + 4 * sizes.size() + bytes - more),
         .found =
             fmt::format("{}{} bytes after the header", more ? "more than " : "", bytes - more),
         .expected = fmt::format(
             "{} (sizes {})",
             total > UINT64_MAX ? "far more" : fmt::to_string(static_cast<uint64_t>(total)),
             fmt::join(sizes, " x "))});
  at::Tensor tensor = at::empty(sizes, at::kByte);
  auto* to = tensor.mutable_data_ptr<uint8_t>();
  for (Block& block : blocks) {
    to = std::ranges::copy(block, to).out;
    block = {};
  }
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
      files::report_damage({.where = kWhere,
                            .file = file,
                            .what = "another kind of IDX file than its name says",
                            .place = "offset 0",
                            .found = fmt::format("magic 0x{:08x}", 0x800 + tensor.dim()),
                            .expected = fmt::format("0x{:08x}", 0x800 + rank)});
  };
  check_rank(image_file, images, 3);
  check_rank(label_file, labels, 1);
  if (images.size(0) != labels.size(0))
    files::report_damage({.where = kWhere,
                          .file = label_file,
                          .what = "the number of labels is wrong",
                          .place = "offset 4",
                          .found = fmt::format("{} labels", labels.size(0)),
                          .expected = fmt::format("{}, one a picture of {}", images.size(0),
                                                  image_file.filename().string())});
  const uint8_t* label = labels.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < labels.size(0); ++i)
    if (label[i] >= classes.size())
      files::report_damage({.where = kWhere,
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
