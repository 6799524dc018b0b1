#include "lab/data/corpus_cache.h"

#include <ATen/ATen.h>
#include <sys/stat.h>
#include <zlib.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "demi/core/atomic_file.h"
#include "lab/open_text.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little,
              "the cache is written as it lies in memory");

constexpr std::string_view kMagic = "demitext";
constexpr uint64_t kVersion = 1;

uint32_t checksum(std::string_view bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

class Packer {
 public:
  void number(uint64_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void bytes(std::string_view value) {
    number(value.size());
    text_.append(value);
  }
  void strings(std::span<const std::string> values) {
    number(values.size());
    for (const std::string& value : values) bytes(value);
  }
  void values(const at::Tensor& tensor) {
    bytes({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  void set(const TextSet& set) {
    bytes(set.name);
    values(set.tokens);
    values(set.offsets);
    values(set.labels);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_{kMagic};
};

/// Reads what Packer wrote. The checksum was right, so lengths are too.
class Unpacker {
 public:
  explicit Unpacker(std::string_view text) : text_(text) {}

  uint64_t number() {
    uint64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view bytes() { return take(number()); }
  std::vector<std::string> strings() {
    std::vector<std::string> values(number());
    for (std::string& value : values) value = bytes();
    return values;
  }
  at::Tensor values(c10::ScalarType dtype) {
    const std::string_view raw = bytes();
    at::Tensor tensor =
        at::empty({static_cast<int64_t>(raw.size() / c10::elementSize(dtype))}, dtype);
    std::memcpy(tensor.mutable_data_ptr(), raw.data(), raw.size());
    return tensor;
  }
  TextSet set() {
    std::string name(bytes());
    at::Tensor tokens = values(at::kInt), offsets = values(at::kLong), labels = values(at::kLong);
    return {.tokens = std::move(tokens),
            .offsets = std::move(offsets),
            .labels = std::move(labels),
            .name = std::move(name)};
  }
  std::string_view take(std::size_t count) {
    const std::string_view taken = text_.substr(0, count);
    text_.remove_prefix(count);
    return taken;
  }

 private:
  std::string_view text_;
};

}  // namespace

void write_corpus(const fs::path& file, const TextCorpus& corpus, uint64_t fingerprint) {
  Packer packer;
  packer.number(kVersion);
  packer.number(fingerprint);
  packer.strings(corpus.classes);
  packer.strings(corpus.vocabulary->words());
  packer.set(corpus.train);
  packer.set(corpus.test);
  const uint32_t sum = checksum(packer.text());
  AtomicFile out(file);
  out.write(packer.text());
  out.write(&sum, sizeof sum);
  out.commit();
}

std::optional<TextCorpus> read_corpus(const fs::path& file, uint64_t fingerprint) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  const std::string content = lab::rest_of(in).value_or("");  // an unreadable cache is made anew
  uint32_t sum = 0;
  if (content.size() < kMagic.size() + 2 * sizeof(uint64_t) + sizeof sum ||
      !content.starts_with(kMagic))
    return std::nullopt;
  const std::string_view body = std::string_view(content).substr(0, content.size() - sizeof sum);
  std::memcpy(&sum, content.data() + body.size(), sizeof sum);
  if (sum != checksum(body)) return std::nullopt;
  Unpacker unpacker(body.substr(kMagic.size()));
  if (unpacker.number() != kVersion || unpacker.number() != fingerprint) return std::nullopt;
  std::vector<std::string> classes = unpacker.strings();
  auto vocabulary = std::make_shared<const Vocabulary>(unpacker.strings());
  TextSet train = unpacker.set(), test = unpacker.set();
  return TextCorpus{.train = std::move(train),
                    .test = std::move(test),
                    .classes = std::move(classes),
                    .vocabulary = std::move(vocabulary)};
}

uint64_t fingerprint(const fs::path& folder, std::span<const std::string> parts) {
  // A sum over files, each hashed by itself (FNV-1a, 64 bits), so that the order of a folder's
  // entries does not matter.
  uint64_t total = 0;
  const auto add_file = [&](const std::string& name) {
    uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&](const void* data, std::size_t bytes) {
      for (std::size_t i = 0; i < bytes; ++i)
        hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
    };
    add(name.data(), name.size());
    struct stat file {};
    if (stat((folder / name).c_str(), &file) == 0)
      for (const int64_t number : {int64_t{file.st_size}, static_cast<int64_t>(file.st_ino),
                                   int64_t{file.st_mtim.tv_sec}, int64_t{file.st_mtim.tv_nsec},
                                   int64_t{file.st_ctim.tv_sec}, int64_t{file.st_ctim.tv_nsec}})
        add(&number, sizeof number);
    total += hash;
  };
  for (const std::string& part : parts) {
    std::error_code code;
    if (!fs::is_directory(folder / part, code)) add_file(part);
    for (fs::directory_iterator it(folder / part, code), end; !code && it != end;
         it.increment(code))
      add_file(part + "/" + it->path().filename().string());
  }
  return total;
}

}  // namespace demi::data
