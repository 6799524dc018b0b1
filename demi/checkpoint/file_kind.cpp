#include "demi/checkpoint/file_kind.h"

#include <algorithm>
#include <cctype>

namespace demi::checkpoint {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kAnother = "name the weights' file";
constexpr std::string_view kConvert =
    "if torch.save wrote it: scripts/demi_checkpoint.py convert FILE OUT.safetensors";

struct Beginning {
  std::string_view bytes;
  FileKind kind;
};

// Each format's own specification fixes these bytes.
constexpr Beginning kBeginnings[] = {
    {"PK\x03\x04"sv, {"a zip archive, as torch.save writes", kConvert}},
    {"\x80\x02"sv, {"a Python pickle, as old versions of torch.save write", kConvert}},
    {"\x89PNG"sv, {"a PNG picture", kAnother}},
    {"\xff\xd8\xff"sv, {"a JPEG picture", kAnother}},
    {"\x89HDF"sv, {"an HDF5 file", kAnother}},
    {"\x1f\x8b"sv, {"a gzip archive", "unpack it first"}},
    {"GGUF"sv, {"a GGUF file", kAnother}},
    {"\x7f\x45LF"sv, {"a program or a library", kAnother}},
};

}  // namespace

FileKind file_kind(std::string_view first) {
  for (const Beginning& one : kBeginnings)
    if (first.starts_with(one.bytes)) return one.kind;
  const auto is_text = [](char c) {
    return std::isprint(static_cast<unsigned char>(c)) != 0 || c == '\n' || c == '\r' || c == '\t';
  };
  if (!first.empty() && std::ranges::all_of(first, is_text)) return {"a text", kAnother};
  return {};
}

}  // namespace demi::checkpoint
