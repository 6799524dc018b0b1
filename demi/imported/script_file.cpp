#include "demi/imported/script_file.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "demi/checkpoint/input_file.h"
#include "demi/core/crc32.h"
#include "demi/core/error.h"
#include "demi/imported/zip_archive.h"

namespace demi::imported {
namespace {

constexpr std::string_view kReadScript = "imported.read", kZip = "PK\x03\x04";

bool is_zip(const std::filesystem::path& path) {
  const checkpoint::InputFile file(path, kReadScript, "a network's file");
  std::string first(std::min<std::uint64_t>(file.bytes(), kZip.size()), '\0');
  file.read(first.data(), 0, first.size());
  return first == kZip;
}

[[noreturn]] void refuse_record(const std::filesystem::path& path, const std::string& record,
                                const std::string& seen, const std::string& accepted) {
  refuse<DataError>({.where = kReadScript,
                     .what = fmt::format("{}: {} is damaged", path.string(), record),
                     .seen = seen,
                     .accepted = accepted,
                     .advice = "get an undamaged copy, or save it again with torch.jit.save"});
}

/// LibTorch's reader unpacks what is compressed, as code is, without comparing the checksum.
void check_packed(const std::filesystem::path& path, caffe2::serialize::PyTorchStreamReader& reader,
                  const std::string& name, const Record& record) {
  const auto [bytes, size] = reader.getRecord(name);
  const std::uint32_t sum = crc32(bytes.get(), size);
  if (size != record.bytes || sum != record.crc32)
    refuse_record(path, name, fmt::format("{} bytes, checksum {:08x}", size, sum),
                  fmt::format("{} bytes, {:08x}", record.bytes, record.crc32));
}

}  // namespace

bool is_script_file(const std::filesystem::path& path) {
  if (!is_zip(path)) return false;
  const ZipArchive archive(path, kReadScript);
  const bool has_code = std::ranges::any_of(
      archive.records(), [](const auto& one) { return one.first.starts_with("code/"); });
  return has_code && archive.find("constants.pkl") != nullptr &&
         archive.find("data.pkl") != nullptr;
}

void check_script_file(const std::filesystem::path& path) {
  const ZipArchive archive(path, kReadScript);
  if (archive.find("bytecode.pkl") != nullptr)
    refuse<DataError>({.where = kReadScript,
                       .what = path.string() + " cannot be trained",
                       .seen = "a TorchScript file of the lite interpreter, which is for inference",
                       .accepted = "a file of torch.jit.save",
                       .advice = "save the network that it was made from with torch.jit.save, or "
                                 "export it (demi_export.py)"});
  try {
    caffe2::serialize::PyTorchStreamReader reader(path.string());
    for (const auto& [name, record] : archive.records()) {
      if (record.method != 0)
        check_packed(path, reader, name, record);
      else
        static_cast<void>(archive.text(record));
    }
  } catch (const c10::Error& error) {
    refuse_record(path, "a record", error.what_without_backtrace(), "what torch.jit.save writes");
  }
}

}  // namespace demi::imported
