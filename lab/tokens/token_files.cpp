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
#include <string_view>
#include <system_error>
#include <utility>

#include "lab/tokens/token_form.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_file(const fs::path& file, const std::string& what,
                              const std::string& seen, const std::string& accepted,
                              const std::string& advice = "") {
  refuse_token_file({file, {}, 0}, what, seen, accepted, advice);
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

class Shard {
 public:
  explicit Shard(const fs::path& path) : file_(path), form_(form_of(file_)) {
    if (size() == 0) refuse_file(path, "the file holds no tokens", "0", "1 or more");
  }

  int64_t size() const { return (file_.bytes() - form_.header) / bytes_of(form_.type); }

  void copy(int64_t first, int64_t count, int64_t vocabulary, int64_t* to) const {
    switch (form_.type) {
      case TokenType::u8:
        return copy_as<uint8_t>(first, count, vocabulary, to);
      case TokenType::u16:
        return copy_as<uint16_t>(first, count, vocabulary, to);
      case TokenType::u32:
        return copy_as<uint32_t>(first, count, vocabulary, to);
      case TokenType::i32:
        return copy_as<int32_t>(first, count, vocabulary, to);
      case TokenType::i64:
        return copy_as<int64_t>(first, count, vocabulary, to);
    }
  }

 private:
  template <class Stored>
  void copy_as(int64_t first, int64_t count, int64_t vocabulary, int64_t* to) const {
    const auto width = static_cast<int64_t>(sizeof(Stored));
    const char* from = file_.at(form_.header + first * width);
    for (int64_t i = 0; i < count; ++i) {
      Stored token;
      std::memcpy(&token, from + i * width, sizeof token);
      const auto number = static_cast<int64_t>(token);
      if (number < 0 || number >= vocabulary) refuse_token(first + i, number, vocabulary);
      to[i] = number;
    }
  }

  [[noreturn]] void refuse_token(int64_t place, int64_t token, int64_t vocabulary) const {
    refuse_token_file(bytes_in(file_),
                      fmt::format("a token beyond the vocabulary, at byte {}",
                                  form_.header + place * bytes_of(form_.type)),
                      std::to_string(token), fmt::format("0 to {}", vocabulary - 1),
                      "give the size of the tokenizer's vocabulary that made the file");
  }

  static FileBytes bytes_in(const MappedFile& file) {
    constexpr int64_t kRead = 1 << 16;  // of a form's header, or of what stands in its place
    const int64_t some = std::min(file.bytes(), kRead);
    return {file.path(),
            some > 0 ? std::string_view(file.at(0), static_cast<std::size_t>(some))
                     : std::string_view(),
            file.bytes()};
  }

  static TokenForm form_of(const MappedFile& file) { return token_form_of(bytes_in(file)); }

  MappedFile file_;
  TokenForm form_;
};

/// The files that a pattern means, by their names' bytes.
std::vector<fs::path> files_of(const std::string& pattern) {
  const fs::path path = pattern;
  std::error_code error;
  if (fs::exists(path, error) || pattern.find_first_of("*?") == std::string::npos) return {path};
  const fs::path folder = path.parent_path().empty() ? "." : path.parent_path();
  std::vector<fs::path> found;
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
