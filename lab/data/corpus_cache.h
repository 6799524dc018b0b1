#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "demi/core/export.h"
#include "lab/data/text_set.h"

namespace demi::data {

/// A tokenized corpus in one file, so that 50,000 reviews are read once. Little-endian: "demitext",
/// version, the fingerprint of the files it was made from, then classes, words, tokens, offsets,
/// labels, each with its length in front, and at the end the CRC-32 of everything before it.
DEMI_API void write_corpus(const std::filesystem::path& file, const TextCorpus& corpus,
                           uint64_t fingerprint);

/// Reads the cached corpus. nullopt if there is no such file, if it was made from other files or by
/// another version, or if a single bit of it is wrong: then the texts are read again.
DEMI_API std::optional<TextCorpus> read_corpus(const std::filesystem::path& file,
                                               uint64_t fingerprint);

/// A number that changes when a file in one of folder's `parts`, or a part that is a file itself,
/// is added, removed, renamed, replaced or written. It is made of sizes, inodes, and the times at
/// which contents and inodes changed, the last of which no program can set. A file that cannot be
/// read is left for the reader to report.
DEMI_API uint64_t fingerprint(const std::filesystem::path& folder,
                              std::span<const std::string> parts);

}  // namespace demi::data
