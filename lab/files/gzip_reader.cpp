#include "lab/files/gzip_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lab/files/damage.h"

namespace demi::files {

GzipReader::GzipReader(std::string where, std::filesystem::path path)
    : where_(std::move(where)), path_(std::move(path)) {
  errno = 0;
  std::error_code code;
  if (std::filesystem::is_regular_file(path_, code)) file_.reset(gzopen(path_.c_str(), "rb"));
  if (!file_)
    report_damage({.where = where_,
                   .file = path_,
                   .what = "cannot be opened",
                   .found = std::strerror(errno ? errno : ENOENT),
                   .expected = "a file that can be read"});
  gzbuffer(file_.get(), 1 << 18);
}

std::size_t GzipReader::read(void* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const auto wanted = static_cast<unsigned>(std::min<std::size_t>(bytes - done, 1 << 30));
    const int got = gzread(file_.get(), static_cast<char*>(to) + done, wanted);
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  total_ += done;
  int code = Z_OK;
  const char* message = gzerror(file_.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END)
    report_damage({.where = where_,
                   .file = path_,
                   .what = "the compressed data are damaged or cut short",
                   .place = fmt::format("offset {}", static_cast<long long>(gzoffset(file_.get()))),
                   .found = fmt::format("{} after {} decompressed bytes", message, total_),
                   .expected = "a complete gzip stream with the right CRC-32"});
  return done;
}

std::string read_gzip(const std::string& where, const std::filesystem::path& path) {
  GzipReader reader(where, path);
  std::string text;
  std::string block(1 << 20, '\0');
  while (const std::size_t bytes = reader.read(block.data(), block.size()))
    text.append(block, 0, bytes);
  return text;
}

}  // namespace demi::files
