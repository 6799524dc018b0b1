#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::tokens {

/// Tokens in a row, wherever they are. May be read from several threads.
class DEMI_API TokenSource {
 public:
  virtual ~TokenSource() = default;
  /// How many there are.
  virtual int64_t size() const = 0;
  /// Writes `count` tokens from number `first` on, which must be there: first + count <= size().
  /// Throws DataError for one beyond the vocabulary.
  virtual void copy(int64_t first, int64_t count, int64_t* to) const = 0;
};

/// Tokens in memory, each of which is in the vocabulary.
DEMI_API std::unique_ptr<TokenSource> in_memory(std::vector<int32_t> tokens);

/// Token files, mapped and not copied, one behind the other in the order of their names. `pattern`
/// is a file, or a name with * and ? in the last part of the path. Their forms, all little-endian:
///   nanoGPT's              uint16, no header
///   llm.c's of GPT-2       256 int32, of which 20240520, 1, the number of tokens; then uint16
///   llm.c's of Llama 3     256 int32, of which 20240801, 7, the number of tokens; then uint32
///   numpy's .npy           one dimension of uint8, uint16, uint32, int32, int64 (build-nanogpt's)
///   Megatron's .bin        uint8, uint16, int32 or int64, as the .idx of the same name says
/// A file of none of these beginnings is nanoGPT's, unless it is seen to be something else: a text,
/// an archive, git-lfs's pointer, numbers of 32 or 64 bits. Tokens must be below `vocabulary`,
/// which copy() checks as it reads: DataError names file, offset and value. Throws DataError: no
/// such file, no tokens, a size that is not the header's, another version, and what the file is
/// instead.
DEMI_API std::unique_ptr<TokenSource> open_token_files(const std::string& pattern,
                                                       int64_t vocabulary);

}  // namespace demi::tokens
