#include "lab/files/tar_reader.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <utility>

#include "lab/files/damage.h"
#include "lab/files/gzip_reader.h"

namespace demi::files {
namespace {

namespace fs = std::filesystem;
using Archive = std::unique_ptr<archive, int (*)(archive*)>;

constexpr std::size_t kBlock = 1 << 18;
// Writers fill up their last record with zeros: 10 kB by default, a few MB on some tapes.
constexpr std::size_t kMostFilling = 64 << 20;

[[noreturn]] void cannot_be_read(const fs::path& path, archive* from, std::string_view place) {
  const char* message = archive_error_string(from);
  report_damage({.where = "files.archive",
                 .file = path,
                 .what = "the archive cannot be read",
                 .place = fmt::format("offset {} {}", archive_filter_bytes(from, -1), place),
                 .found = message == nullptr ? "an unknown error" : message,
                 .expected = "a whole tar archive, gzip or xz",
                 .advice = "get it again (demi data get NAME resumes and checks)"});
}

/// gzip, or no compression at all.
class GzipSource : public ByteSource {
 public:
  explicit GzipSource(const fs::path& path) : reader_("files.archive", path) {}
  std::size_t read(void* to, std::size_t bytes) override { return reader_.read(to, bytes); }

 private:
  GzipReader reader_;
};

/// xz by libarchive: liblzma compares the checksums of each block and of the index.
class XzSource : public ByteSource {
 public:
  explicit XzSource(fs::path path)
      : path_(std::move(path)), archive_(archive_read_new(), archive_read_free) {
    archive_read_support_filter_xz(archive_.get());
    archive_read_support_format_raw(archive_.get());
    check(archive_read_open_filename(archive_.get(), path_.c_str(), kBlock));
    archive_entry* all = nullptr;
    check(archive_read_next_header(archive_.get(), &all));
  }
  std::size_t read(void* to, std::size_t bytes) override {
    const la_ssize_t got = archive_read_data(archive_.get(), to, bytes);
    if (got < 0) check(static_cast<int>(got));
    return static_cast<std::size_t>(got);
  }

 private:
  void check(int code) {
    if (code != ARCHIVE_OK) cannot_be_read(path_, archive_.get(), "of the compressed bytes");
  }

  fs::path path_;
  Archive archive_;
};

std::unique_ptr<ByteSource> open(const fs::path& path) {
  constexpr std::string_view kXz(
      "\xFD"
      "7zXZ\0",
      6);
  std::array<char, kXz.size()> first{};
  std::ifstream(path, std::ios::binary).read(first.data(), first.size());
  if (std::string_view(first.data(), first.size()) == kXz) return std::make_unique<XzSource>(path);
  return std::make_unique<GzipSource>(path);
}

}  // namespace

TarReader::TarReader(fs::path path)
    : path_(std::move(path)),
      source_(open(path_)),
      buffer_(kBlock),
      tar_(archive_read_new(), archive_read_free) {
  archive_read_support_format_tar(tar_.get());
  check(archive_read_open2(tar_.get(), this, nullptr, give, nullptr, nullptr));
}

la_ssize_t TarReader::give(archive* tar, void* reader, const void** block) {
  auto& self = *static_cast<TarReader*>(reader);
  try {
    *block = self.buffer_.data();
    return static_cast<la_ssize_t>(self.source_->read(self.buffer_.data(), self.buffer_.size()));
  } catch (...) {
    self.failure_ = std::current_exception();
    archive_set_error(tar, EIO, "%s", "the compressed bytes cannot be read");
    return -1;
  }
}

void TarReader::check(int code) {
  if (failure_) std::rethrow_exception(failure_);
  if (code != ARCHIVE_OK && code != ARCHIVE_EOF)
    cannot_be_read(path_, tar_.get(), "of the decompressed bytes");
}

archive_entry* TarReader::next() {
  archive_entry* entry = nullptr;
  const int code = archive_read_next_header(tar_.get(), &entry);
  check(code);
  if (code != ARCHIVE_EOF) return entry;
  read_to_end();
  return nullptr;
}

void TarReader::read_to_end() {
  std::size_t bytes = 0;
  while (const std::size_t got = source_->read(buffer_.data(), buffer_.size())) {
    bytes += got;
    if (bytes > kMostFilling)
      report_damage({.where = "files.archive",
                     .file = path_,
                     .what = "the file continues behind the end of the archive",
                     .found = fmt::format("more than {} bytes", kMostFilling),
                     .expected = "one tar archive",
                     .advice = "get it again (demi data get NAME resumes and checks)"});
  }
}

void TarReader::content(const std::function<void(const void*, std::size_t)>& take) {
  const void* block = nullptr;
  std::size_t bytes = 0;
  la_int64_t offset = 0, done = 0;
  for (;;) {
    const int code = archive_read_data_block(tar_.get(), &block, &bytes, &offset);
    check(code);
    if (code == ARCHIVE_EOF) return;
    if (offset != done)
      report_damage({.where = "files.archive",
                     .file = path_,
                     .what = "a member has holes (a sparse file)",
                     .found = fmt::format("offset {} of the member after {}", offset, done),
                     .expected = "members that hold all of their bytes",
                     .advice = "pack it again without --sparse"});
    done += static_cast<la_int64_t>(bytes);
    take(block, bytes);
  }
}

}  // namespace demi::files
