#include "lab/tokens/token_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "demi/core/error.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeaderBytes = 256 * sizeof(int32_t);

[[noreturn]] void refuse_file(const fs::path& file, const std::string& what,
                              const std::string& seen, const std::string& accepted,
                              const std::string& advice = "") {
  refuse<DataError>({.where = "tokens.open_token_files",
                     .what = file.string() + ": " + what,
                     .seen = seen,
                     .accepted = accepted,
                     .advice = advice});
}

/// A file's bytes, as pages that the system reads when they are needed.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path) : path_(path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("cannot be opened", errno);
    struct stat status {};
    const bool known = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    bytes_ = known ? status.st_size : 0;
    if (bytes_ > 0)
      data_ = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (!known) refuse_file(path, "no file of tokens", "another kind of file", "a regular file");
    if (data_ == MAP_FAILED) fail("cannot be mapped", error);
  }
  ~MappedFile() {
    if (data_ && data_ != MAP_FAILED) munmap(data_, static_cast<std::size_t>(bytes_));
  }
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_) {}
  MappedFile& operator=(MappedFile&&) = delete;

  const fs::path& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  const char* at(int64_t offset) const { return static_cast<const char*>(data_) + offset; }

 private:
  [[noreturn]] void fail(const std::string& what, int error) const {
    refuse_file(path_, what, std::generic_category().message(error), "a file that may be read");
  }

  fs::path path_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct Form {
  int64_t header = 0, width = sizeof(uint16_t);  // bytes
};

/// The form of a file with one of llm.c's headers.
Form form_of_header(const MappedFile& file, std::span<const int32_t> header, int32_t version,
                    int64_t width) {
  if (header[1] != version)
    refuse_file(file.path(), "another version of llm.c's token files", std::to_string(header[1]),
                std::to_string(version));
  const int64_t bytes = kHeaderBytes + int64_t{static_cast<uint32_t>(header[2])} * width;
  if (file.bytes() != bytes)
    refuse_file(file.path(), "the size is not that of the header's tokens",
                fmt::format("{} bytes", file.bytes()),
                fmt::format("{} bytes: {} of header and {} tokens of {}", bytes, kHeaderBytes,
                            static_cast<uint32_t>(header[2]), width),
                "get an undamaged copy of the file");
  return {kHeaderBytes, width};
}

Form form_of(const MappedFile& file) {
  int32_t header[3] = {};
  if (file.bytes() >= kHeaderBytes) std::memcpy(header, file.at(0), sizeof header);
  if (header[0] == 20240520) return form_of_header(file, header, 1, sizeof(uint16_t));
  if (header[0] == 20240801) return form_of_header(file, header, 7, sizeof(uint32_t));
  if (file.bytes() % 2 != 0)
    refuse_file(file.path(), "the file ends within a token", fmt::format("{} bytes", file.bytes()),
                "uint16 tokens, two bytes each", "get an undamaged copy of the file");
  return {};
}

class Shard {
 public:
  explicit Shard(const fs::path& path) : file_(path), form_(form_of(file_)) {
    if (size() == 0) refuse_file(path, "the file holds no tokens", "0", "1 or more");
  }

  int64_t size() const { return (file_.bytes() - form_.header) / form_.width; }

  void copy(int64_t first, int64_t count, int64_t vocabulary, int64_t* to) const {
    if (form_.width == 2)
      copy_as<uint16_t>(first, count, vocabulary, to);
    else
      copy_as<uint32_t>(first, count, vocabulary, to);
  }

 private:
  template <class Stored>
  void copy_as(int64_t first, int64_t count, int64_t vocabulary, int64_t* to) const {
    const char* from = file_.at(form_.header + first * form_.width);
    for (int64_t i = 0; i < count; ++i) {
      Stored token;
      std::memcpy(&token, from + i * form_.width, sizeof token);
      if (int64_t{token} >= vocabulary) refuse_token(first + i, int64_t{token}, vocabulary);
      to[i] = int64_t{token};
    }
  }

  [[noreturn]] void refuse_token(int64_t place, int64_t token, int64_t vocabulary) const {
    refuse_file(file_.path(),
                fmt::format("a token beyond the vocabulary, at byte {}",
                            form_.header + place * form_.width),
                std::to_string(token), fmt::format("0 to {}", vocabulary - 1),
                "give the size of the tokenizer's vocabulary that made the file");
  }

  MappedFile file_;
  Form form_;
};

/// The files that a pattern means, by their names' bytes.
std::vector<fs::path> files_of(const std::string& pattern) {
  const fs::path path = pattern;
  if (fs::exists(path) || pattern.find_first_of("*?") == std::string::npos) return {path};
  const fs::path folder = path.parent_path().empty() ? "." : path.parent_path();
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (fnmatch(path.filename().c_str(), entry.path().filename().c_str(), FNM_PERIOD) == 0)
      found.push_back(entry.path());
  if (found.empty())
    refuse_file(path, "no file has such a name", error ? error.message() : "none in its folder",
                "the name of a file, or a pattern such as 'train_*.bin'");
  std::ranges::sort(found);
  return found;
}

class TokenFiles : public TokenSource {
 public:
  TokenFiles(const std::string& pattern, int64_t vocabulary) : vocabulary_(vocabulary) {
    for (const fs::path& file : files_of(pattern)) {
      shards_.emplace_back(file);
      ends_.push_back(size() + shards_.back().size());
    }
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }

  void copy(int64_t first, int64_t count, int64_t* to) const override {
    auto shard = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
    while (count > 0) {
      const int64_t begin = shard == 0 ? 0 : ends_[shard - 1];
      const int64_t some = std::min(count, ends_[shard] - first);
      shards_[shard].copy(first - begin, some, vocabulary_, to);
      first += some, to += some, count -= some, ++shard;
    }
  }

 private:
  int64_t vocabulary_;
  std::vector<Shard> shards_;
  std::vector<int64_t> ends_;  // tokens of this shard and those before it
};

class InMemory : public TokenSource {
 public:
  explicit InMemory(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void copy(int64_t first, int64_t count, int64_t* to) const override {
    std::copy_n(tokens_.begin() + first, count, to);
  }

 private:
  std::vector<int32_t> tokens_;
};

}  // namespace

std::unique_ptr<TokenSource> in_memory(std::vector<int32_t> tokens) {
  return std::make_unique<InMemory>(std::move(tokens));
}

std::unique_ptr<TokenSource> open_token_files(const std::string& pattern, int64_t vocabulary) {
  return std::make_unique<TokenFiles>(pattern, vocabulary);
}

}  // namespace demi::tokens
