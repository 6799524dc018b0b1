#include "demi/imported/other_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "demi/checkpoint/input_file.h"
#include "demi/core/error.h"

namespace demi::imported {
namespace {

constexpr std::string_view kExport =
    "export the network in Python: demi_export.py, or torch.export.save";

struct OtherKind {
  std::string_view name, advice;
};

[[noreturn]] void refuse_kind(const std::filesystem::path& path, std::string_view where,
                              const OtherKind& kind) {
  refuse<DataError>({.where = where,
                     .what = path.string() + " holds no exported network",
                     .seen = kind.name,
                     .accepted = "a .pt2 file of torch.export.save, PyTorch 2.9 or newer",
                     .advice = kind.advice});
}

/// ModelProto (onnx.proto): field 1, ir_version, then 2, producer_name, or 7, graph, or 8.
bool is_onnx(std::string_view first) {
  return first.size() >= 3 && first[0] == '\x08' && first[1] > 0 && first[1] < 0x20 &&
         (first[2] == '\x12' || first[2] == '\x3a' || first[2] == '\x42');
}

/// Eight bytes of a length, whose upper ones are zero, and the beginning of a JSON object.
bool is_safetensors(std::string_view first) {
  return first.size() >= 9 && first.substr(4, 4) == std::string_view("\0\0\0\0", 4) &&
         first[8] == '{';
}

OtherKind kind_of(std::string_view first) {
  if (is_onnx(first)) return {"an ONNX file, which has no backward pass", kExport};
  if (is_safetensors(first)) return {"a safetensors file: weights without a network", kExport};
  const checkpoint::FileKind kind = checkpoint::file_kind(first.substr(0, 8));
  if (kind.name.empty()) return {"bytes of no known kind", kExport};
  return {kind.name, kExport};
}

bool has_folder(const ZipArchive& archive, std::string_view folder) {
  return std::ranges::any_of(archive.records(),
                             [&](const auto& record) { return record.first.starts_with(folder); });
}

OtherKind kind_of(const ZipArchive& archive) {
  if (has_folder(archive, "data/aotinductor/"))
    return {"a package of AOTInductor, which is compiled for inference", kExport};
  if (archive.find("serialized_exported_program.json") != nullptr)
    return {"an exported program in the older form",
            "in Python: torch.export.save(torch.export.load(OLD), NEW) of PyTorch 2.9 or newer"};
  if (archive.find("constants.pkl") != nullptr && has_folder(archive, "code/"))
    return {"a TorchScript file", kExport};
  if (archive.find("data.pkl") != nullptr)
    return {"what torch.save writes: weights, or a pickled network", kExport};
  return {"a zip archive of another kind", kExport};
}

}  // namespace

void require_zip(const std::filesystem::path& path, std::string_view where) {
  const checkpoint::InputFile file(path, where, "a .pt2 file of torch.export.save");
  std::string first(std::min<std::uint64_t>(file.bytes(), 16), '\0');
  file.read(first.data(), 0, first.size());
  if (first.empty()) refuse_kind(path, where, {"an empty file", kExport});
  if (!first.starts_with("PK\x03\x04")) refuse_kind(path, where, kind_of(first));
}

void require_exported_program(const ZipArchive& archive, std::string_view where) {
  const bool is_archive = archive.find("archive_format") != nullptr;
  if (!is_archive || !has_folder(archive, "models/"))
    refuse_kind(archive.path(), where, kind_of(archive));
  const Record* order = archive.find("byteorder");
  if (order != nullptr && archive.text(*order) != "little")
    refuse_kind(archive.path(), where, {"numbers that begin with their highest byte", kExport});
}

}  // namespace demi::imported
