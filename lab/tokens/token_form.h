#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace demi::tokens {

/// The type of a stored token, little-endian.
enum class TokenType { u8, u16, u32, i32, i64 };

constexpr int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return 1;
    case TokenType::u16:
      return 2;
    case TokenType::u32:
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  return 0;
}

/// The form of a token file: tokens one after the other, behind a header.
struct TokenForm {
  int64_t header = 0;  // bytes
  TokenType type = TokenType::u16;
};

/// The beginning of a file, at most 64 KiB, and how many bytes there are.
struct FileBytes {
  std::filesystem::path path;
  std::string_view first;
  int64_t size = 0;
};

/// Finds the form by the file's first bytes: one of llm.c's headers, numpy's, Megatron's by the
/// .idx beside it, or none, as nanoGPT's. Throws DataError: a size that is not the header's, a
/// dtype that holds no tokens, and for what is no file of tokens by its first bytes: a text, an
/// archive, git-lfs's pointer, Megatron's index, 32-bit numbers without a header.
TokenForm token_form_of(const FileBytes& file);

[[noreturn]] void refuse_token_file(const FileBytes& file, const std::string& what,
                                    const std::string& seen, const std::string& accepted,
                                    const std::string& advice = "");

}  // namespace demi::tokens
