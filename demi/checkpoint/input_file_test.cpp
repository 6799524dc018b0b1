#include "demi/checkpoint/input_file.h"

#include <gmock/gmock.h>

#include <string>

namespace demi::checkpoint {
namespace {

using namespace std::string_view_literals;
using testing::HasSubstr;

std::string named(std::string_view first) { return std::string(file_kind(first).name); }

// The signatures of the formats: PNG (ISO 15948, 5.2), JPEG's SOI and the marker behind it (ITU-T
// T.81, B.1), ZIP (APPNOTE 4.3.7), gzip (RFC 1952, 2.3.1), HDF5 (format specification, II.A), ELF
// (gABI, chapter 4), pickle protocol 2 (Python's pickletools: PROTO), GGUF.
TEST(FileKind, IsThatOfTheFormatsSignature) {
  EXPECT_THAT(named("\x89PNG\r\n\x1a\n"sv), HasSubstr("PNG"));
  EXPECT_THAT(named("\xff\xd8\xff\xe0\0\x10JF"sv), HasSubstr("JPEG"));
  EXPECT_THAT(named("PK\x03\x04\0\0\x08\x08"sv), HasSubstr("zip"));
  EXPECT_THAT(named("\x1f\x8b\x08\0\0\0\0\0"sv), HasSubstr("gzip"));
  EXPECT_THAT(named("\x89HDF\r\n\x1a\n"sv), HasSubstr("HDF5"));
  EXPECT_THAT(named("\x7f"
                    "ELF\x02\x01\x01\0"sv),
              HasSubstr("program"));
  EXPECT_THAT(named("\x80\x02\x8a\x0al\xfc\x9c\x46"sv), HasSubstr("pickle"));
  EXPECT_THAT(named("GGUF\x03\0\0\0"sv), HasSubstr("GGUF"));
  EXPECT_THAT(named("{\n  \"for"), HasSubstr("text"));
  EXPECT_THAT(named("a"), HasSubstr("text"));
  EXPECT_THAT(named("version "), HasSubstr("git-lfs"));
  EXPECT_THAT(std::string(file_kind("version ").advice), HasSubstr("git lfs pull"));
}

TEST(FileKind, OfOtherBytesIsUnknown) {
  for (const std::string_view first : {""sv, "\xc8\0\0\0\0\0\0\0"sv, "text, \0 "sv, "\x89PN"sv,
                                       "\xff\xff\xff\xff\xff\xff\xff\xff"sv})
    EXPECT_EQ(named(first), "");
}

TEST(FileKind, WhatTorchSaveWroteIsToBeConverted) {
  for (const std::string_view first : {"PK\x03\x04"sv, "\x80\x02"sv})
    EXPECT_THAT(std::string(file_kind(first).advice), HasSubstr("demi_checkpoint.py convert"));
}

}  // namespace
}  // namespace demi::checkpoint
