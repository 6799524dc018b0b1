#include "lab/tokens/token_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/git_lfs.h"

namespace demi::tokens {
namespace {

using namespace std::string_view_literals;
namespace fs = std::filesystem;

constexpr int64_t kHeaderBytes = 256 * sizeof(int32_t);  // llm.c's
constexpr auto kForms =
    "token files of nanoGPT, llm.c, build-nanogpt (numpy) or Megatron, with its .idx beside it";
constexpr auto kUndamaged = "get an undamaged copy of the file";

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number{};
  if (at + sizeof number <= bytes.size()) std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

void require_size(const FileBytes& file, int64_t header, int64_t tokens, TokenType type) {
  const int64_t width = bytes_of(type);
  const bool fits = tokens >= 0 && tokens <= (int64_t{1} << 50);
  if (fits && file.size == header + tokens * width) return;
  refuse_token_file(file, "the size is not that of the header's tokens",
                    fmt::format("{} bytes", file.size),
                    fits ? fmt::format("{} bytes: {} of header and {} tokens of {}",
                                       header + tokens * width, header, tokens, width)
                         : fmt::format("{} tokens", tokens),
                    kUndamaged);
}

/// The form of a file with one of llm.c's headers.
TokenForm form_of_llm_c(const FileBytes& file, int32_t version, TokenType type) {
  if (const auto seen = number_at<int32_t>(file.first, 4); seen != version)
    refuse_token_file(file, "another version of llm.c's token files", std::to_string(seen),
                      std::to_string(version));
  require_size(file, kHeaderBytes, number_at<uint32_t>(file.first, 8), type);
  return {kHeaderBytes, type};
}

/// The text after a key in numpy's header, a Python dictionary: "'descr': '<u2', ...".
std::string_view entry_of(std::string_view header, std::string_view key) {
  const std::size_t found = header.find(key);
  if (found == std::string_view::npos) return "";
  std::string_view rest = header.substr(found + key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" :"), rest.size()));
  return rest;
}

std::optional<TokenType> numpy_type(std::string_view descr) {
  constexpr std::array<std::pair<std::string_view, TokenType>, 6> kTypes{{
      {"'|u1'", TokenType::u8},
      {"'<u2'", TokenType::u16},
      {"'<u4'", TokenType::u32},
      {"'<i4'", TokenType::i32},
      {"'<i8'", TokenType::i64},
      {"'<u8'", TokenType::i64},  // of 2^63 and more: below 0, beyond every vocabulary
  }};
  for (const auto& [name, type] : kTypes)
    if (descr.starts_with(name)) return type;
  return std::nullopt;
}

/// numpy.save's .npy (numpy/lib/format.py): the magic, a version, the length of the header, and the
/// header as a Python dictionary.
TokenForm form_of_numpy(const FileBytes& file) {
  constexpr auto kAccepted = "one dimension of uint8, uint16, uint32, int32 or int64";
  const bool is_long = number_at<uint8_t>(file.first, 6) >= 2;
  const std::size_t before = is_long ? 12 : 10;
  const auto length =
      is_long ? number_at<uint32_t>(file.first, 8) : uint32_t{number_at<uint16_t>(file.first, 8)};
  const std::string_view header = file.first.substr(std::min(before, file.first.size()), length);
  const std::string_view descr = entry_of(header, "'descr'"), shape = entry_of(header, "'shape'");
  const auto type = numpy_type(descr);
  if (header.size() != length || descr.empty() || shape.empty())
    refuse_token_file(file, "numpy's header is damaged", std::string(header.substr(0, 100)),
                      "a dictionary with descr and shape", kUndamaged);
  if (!type)
    refuse_token_file(file, "numpy's dtype holds no tokens",
                      std::string(descr.substr(0, descr.find(','))), kAccepted);
  int64_t tokens = -1;
  const char* const first = shape.data() + (shape.starts_with('(') ? 1 : 0);
  const auto [end, code] = std::from_chars(first, shape.data() + shape.size(), tokens);
  const std::string_view rest(end, static_cast<std::size_t>(shape.data() + shape.size() - end));
  if (code != std::errc() || !(rest.starts_with(",)") || rest.starts_with(")")))
    refuse_token_file(file, "numpy's array is no row of tokens",
                      std::string(shape.substr(0, shape.find(')') + 1)), kAccepted,
                      "in Python: numpy.save(FILE, array.reshape(-1))");
  const auto bytes = static_cast<int64_t>(before + length);
  require_size(file, bytes, tokens, *type);
  return {bytes, *type};
}

constexpr auto kMegatronMagic = "MMIDIDX\0\0"sv;

std::optional<TokenType> megatron_type(uint8_t code) {  // its enum DType
  switch (code) {
    case 1:
      return TokenType::u8;
    case 4:
      return TokenType::i32;
    case 5:
      return TokenType::i64;
    case 8:
      return TokenType::u16;
    default:
      return std::nullopt;
  }
}

/// Megatron-LM's .bin has tokens alone; the .idx beside it has their dtype and their number
/// (megatron/core/datasets/indexed_dataset.py): magic, version 1, dtype, sequences, documents, then
/// the length of each sequence.
std::optional<TokenForm> form_of_megatron(const FileBytes& file) {
  fs::path index = file.path;
  index.replace_extension(".idx");
  std::ifstream in(index, std::ios::binary);
  if (file.path.extension() != ".bin" || !in) return std::nullopt;
  char head[34] = {};
  in.read(head, sizeof head);
  const std::string_view bytes(head, static_cast<std::size_t>(in.gcount()));
  if (!bytes.starts_with(kMegatronMagic)) return std::nullopt;
  const FileBytes said{index, bytes, 0};
  const auto type = megatron_type(number_at<uint8_t>(bytes, 17));
  if (number_at<uint64_t>(bytes, 9) != 1 || !type)
    refuse_token_file(said, "Megatron's index is of another form",
                      fmt::format("version {}, dtype {}", number_at<uint64_t>(bytes, 9),
                                  number_at<uint8_t>(bytes, 17)),
                      "version 1, dtype 1, 4, 5 or 8: uint8, int32, int64, uint16");
  int64_t tokens = 0;
  for (uint64_t left = number_at<uint64_t>(bytes, 18); left > 0;) {
    std::array<int32_t, 4096> lengths{};
    const auto some = std::min<uint64_t>(left, lengths.size());
    if (!in.read(reinterpret_cast<char*>(lengths.data()),
                 static_cast<std::streamsize>(some * sizeof(int32_t))))
      refuse_token_file(said, "Megatron's index ends within its sequences",
                        fmt::format("{} too few", left), "the length of each", kUndamaged);
    for (const int32_t length : std::span(lengths).first(some)) tokens += std::max(length, 0);
    left -= some;
  }
  require_size(file, 0, tokens, *type);
  return TokenForm{0, *type};
}

bool is_of_text(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return (code >= 0x20 && code < 0x7F) || code == '\n' || code == '\r' || code == '\t';
}

/// Refuses a file that is no token file by its first bytes.
void require_tokens(const FileBytes& file) {
  struct Other {
    std::string_view magic, name;
  };
  constexpr Other kOthers[] = {{"PK\3\4", "a zip archive, as of numpy's .npz and PyTorch's .pt"},
                               {"\x1f\x8b", "a gzip file"},
                               {"\x28\xb5\x2f\xfd", "a zstd file"},
                               {"\xfd"
                                "7zXZ",
                                "an xz file"},
                               {"PAR1", "a Parquet file"},
                               {"ARROW1", "an Arrow file"},
                               {"\x89HDF", "an HDF5 file"},
                               {kMegatronMagic, "Megatron's index"}};
  for (const auto& [magic, name] : kOthers)
    if (file.first.starts_with(magic))
      refuse_token_file(file, "no file of tokens", std::string(name), kForms,
                        magic == kMegatronMagic ? "name the .bin beside it" : "");
  if (is_git_lfs_pointer(file.first))
    refuse_token_file(file, "the file is not there", kGitLfsPointer, kForms, kGitLfsAdvice);
  constexpr std::size_t kEnough = 64, kLooked = 512;
  const std::string_view some = file.first.substr(0, kLooked);
  if (some.size() >= kEnough && std::ranges::all_of(some, is_of_text))
    refuse_token_file(file, "no file of tokens", "a text", kForms,
                      "a text is read with --data text");
}

/// Whether uint16 would read two of each number: the upper halves are 0 to 3, of vocabularies up to
/// 262,144, and the lower ones are not.
bool is_wider(const FileBytes& file) {
  constexpr std::size_t kEnough = 128, kLooked = 4096;
  const std::string_view some = file.first.substr(0, kLooked);
  uint16_t greatest[2] = {};
  for (std::size_t at = 0; at + 2 <= some.size(); at += 2)
    greatest[at / 2 % 2] = std::max(greatest[at / 2 % 2], number_at<uint16_t>(some, at));
  return some.size() >= kEnough && greatest[1] < 4 && greatest[0] >= 4;
}

}  // namespace

void refuse_token_file(const FileBytes& file, const std::string& what, const std::string& seen,
                       const std::string& accepted, const std::string& advice) {
  refuse<DataError>({.where = "tokens.open_token_files",
                     .what = file.path.string() + ": " + what,
                     .seen = seen,
                     .accepted = accepted,
                     .advice = advice});
}

TokenForm token_form_of(const FileBytes& file) {
  const auto magic = file.size >= kHeaderBytes ? number_at<int32_t>(file.first, 0) : 0;
  if (magic == 20240520) return form_of_llm_c(file, 1, TokenType::u16);
  if (magic == 20240801) return form_of_llm_c(file, 7, TokenType::u32);
  if (file.first.starts_with("\x93NUMPY")) return form_of_numpy(file);
  if (const auto form = form_of_megatron(file)) return *form;
  require_tokens(file);
  if (file.size % 2 != 0)
    refuse_token_file(file, "the file ends within a token", fmt::format("{} bytes", file.size),
                      "uint16 tokens, two bytes each", kUndamaged);
  if (is_wider(file))
    refuse_token_file(file, "the numbers have more than 16 bits, and no header says so",
                      "every second uint16 below 4", kForms,
                      "in Python: numpy.save(FILE, numpy.fromfile(OLD, dtype=numpy.uint32)), or "
                      "the dtype that it has");
  return {};
}

}  // namespace demi::tokens
