#include "demi/imported/zip_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "demi/core/crc32.h"
#include "demi/core/error.h"

namespace demi::imported {
namespace {

using namespace std::string_view_literals;

// The sizes and signatures of APPNOTE 4.3.
constexpr std::string_view kLocal = "PK\x03\x04"sv, kCentral = "PK\x01\x02"sv,
                           kEnd = "PK\x05\x06"sv, kEnd64 = "PK\x06\x06"sv,
                           kLocator64 = "PK\x06\x07"sv;
constexpr std::uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                        kLocator64Bytes = 20, kLongestComment = 0xFFFF;
constexpr std::uint64_t kIn64 = 0xFFFFFFFF, kCountIn64 = 0xFFFF;
constexpr std::uint16_t kExtra64 = 1;
constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;

std::uint64_t little_endian(std::string_view bytes, std::uint64_t at, int count) {
  std::uint64_t number = 0;
  for (int i = 0; i < count; ++i)
    number |= std::uint64_t{static_cast<unsigned char>(bytes[at + static_cast<std::uint64_t>(i)])}
              << (8 * i);
  return number;
}

std::uint64_t two(std::string_view bytes, std::uint64_t at) { return little_endian(bytes, at, 2); }
std::uint64_t four(std::string_view bytes, std::uint64_t at) { return little_endian(bytes, at, 4); }
std::uint64_t eight(std::string_view bytes, std::uint64_t at) {
  return little_endian(bytes, at, 8);
}

/// Puts the 64-bit numbers of an entry's extra fields where the entry says that it has them. False:
/// one is missing.
bool widen(std::string_view extra, Record& record, std::uint64_t& packed) {
  while (extra.size() >= 4) {
    const std::uint64_t id = two(extra, 0), bytes = two(extra, 2);
    if (bytes > extra.size() - 4) return false;
    std::string_view field = extra.substr(4, bytes);
    extra.remove_prefix(4 + bytes);
    if (id != kExtra64) continue;
    for (std::uint64_t* number : {&record.bytes, &packed, &record.offset}) {
      if (*number != kIn64) continue;
      if (field.size() < 8) return false;
      *number = eight(field, 0);
      field.remove_prefix(8);
    }
  }
  return true;
}

}  // namespace

void ZipArchive::refuse(std::string_view what, std::uint64_t offset, std::string_view seen,
                        std::string_view accepted) const {
  throw DataError({.where = file_.fault().where,
                   .what = fmt::format("{}, offset {}: {}", path().string(), offset, what),
                   .seen = checkpoint::excerpt(seen),
                   .accepted = accepted,
                   .advice = "the file is damaged or was cut off: copy or export it again"});
}

ZipArchive::ZipArchive(const std::filesystem::path& path, std::string_view where)
    : file_(path, where, "a .pt2 file of torch.export.save") {
  read_records(find_directory());
  check_overlaps();
  leave_out_root();
}

ZipArchive::~ZipArchive() = default;

ZipArchive::Directory ZipArchive::find_directory() const {
  const std::uint64_t tail = std::min(file_.bytes(), kEndBytes + kLongestComment);
  const std::uint64_t start = file_.bytes() - tail;
  std::string bytes(tail, '\0');
  file_.read(bytes.data(), start, tail);
  for (std::size_t at = bytes.rfind(kEnd); at != std::string::npos;
       at = at == 0 ? std::string::npos : bytes.rfind(kEnd, at - 1)) {
    if (tail - at < kEndBytes || at + kEndBytes + two(bytes, at + 20) != tail) continue;
    Directory directory{.offset = four(bytes, at + 16),
                        .bytes = four(bytes, at + 12),
                        .records = two(bytes, at + 10)};
    find_directory64(start + at, directory);
    if (directory.offset > start + at || directory.bytes > start + at - directory.offset)
      refuse("the list of records lies outside of the file", start + at,
             fmt::format("{} bytes from {}", directory.bytes, directory.offset),
             "a list that ends before this offset");
    return directory;
  }
  refuse("the archive has no end: its list of records is missing", file_.bytes(), "none",
         "the end of a zip archive");
}

void ZipArchive::find_directory64(std::uint64_t end, Directory& directory) const {
  if (directory.offset != kIn64 && directory.bytes != kIn64 && directory.records != kCountIn64)
    return;
  if (end < kLocator64Bytes) return;
  std::string locator(kLocator64Bytes, '\0');
  file_.read(locator.data(), end - kLocator64Bytes, kLocator64Bytes);
  const std::uint64_t at = eight(locator, 8);
  std::string end64(kEnd64Bytes, '\0');
  if (!locator.starts_with(kLocator64) || at > end || end - at < kEnd64Bytes)
    refuse("the archive's 64-bit end is missing", end, "none", "a locator of it");
  file_.read(end64.data(), at, kEnd64Bytes);
  if (!end64.starts_with(kEnd64))
    refuse("the archive's 64-bit end is missing", at, end64.substr(0, 4), "PK\\x06\\x06");
  directory = {.offset = eight(end64, 48), .bytes = eight(end64, 40), .records = eight(end64, 32)};
}

void ZipArchive::read_records(const Directory& directory) {
  std::string bytes(directory.bytes, '\0');
  file_.read(bytes.data(), directory.offset, bytes.size());
  std::string_view rest = bytes;
  for (std::uint64_t i = 0; i < directory.records; ++i) {
    const std::uint64_t at = directory.offset + bytes.size() - rest.size();
    if (rest.size() < kCentralBytes || !rest.starts_with(kCentral))
      refuse(fmt::format("entry {} of {} is no entry", i, directory.records), at, rest.substr(0, 4),
             "PK\\x01\\x02");
    const std::uint64_t name = two(rest, 28), extra = two(rest, 30), comment = two(rest, 32);
    if (rest.size() - kCentralBytes < name + extra + comment)
      refuse("an entry is cut off", at, fmt::format("{} bytes", rest.size()),
             fmt::to_string(kCentralBytes + name + extra + comment));
    Record record{.name = std::string(rest.substr(kCentralBytes, name)),
                  .offset = four(rest, 42),
                  .bytes = four(rest, 24),
                  .crc32 = static_cast<std::uint32_t>(four(rest, 16)),
                  .method = static_cast<std::uint16_t>(two(rest, 10))};
    std::uint64_t packed = four(rest, 20);
    if (!widen(rest.substr(kCentralBytes + name, extra), record, packed))
      refuse("the 64-bit sizes of " + record.name + " are missing", at, "none", "an extra field 1");
    if (record.method == 0 && packed != record.bytes)
      refuse("the two sizes of " + record.name + " differ", at, fmt::to_string(packed),
             fmt::to_string(record.bytes));
    rest.remove_prefix(kCentralBytes + name + extra + comment);
    std::string key = record.name;
    if (!records_.emplace(std::move(key), std::move(record)).second)
      refuse("a name occurs twice", at, bytes.substr(at - directory.offset + kCentralBytes, name),
             "each once");
  }
  if (!rest.empty())
    refuse("there is more than the entries", directory.offset + directory.bytes - rest.size(),
           fmt::format("{} bytes", rest.size()), "none");
}

void ZipArchive::check_overlaps() const {
  std::vector<const Record*> by_place;
  for (const auto& [name, record] : records_) by_place.push_back(&record);
  std::ranges::sort(by_place, {}, &Record::offset);
  std::uint64_t next = 0;
  for (const Record* record : by_place) {
    const std::uint64_t least = kLocalBytes + record->name.size();
    if (record->offset < next)
      refuse(record->name + " overlaps the record before it", record->offset,
             fmt::to_string(record->offset), fmt::format("at least {}", next));
    if (record->method != 0) {
      next = record->offset + least;
      continue;
    }
    if (record->offset > file_.bytes() || least > file_.bytes() - record->offset ||
        record->bytes > file_.bytes() - record->offset - least)
      refuse(record->name + " lies outside of the file", record->offset,
             fmt::format("{} bytes", record->bytes),
             fmt::format("a file of {} bytes", file_.bytes()));
    next = record->offset + least + record->bytes;
  }
}

void ZipArchive::leave_out_root() {
  if (records_.empty()) return;
  const std::string& first = records_.begin()->first;
  const std::string root = first.substr(0, first.find('/') + 1);  // empty: there is none
  for (const auto& [name, record] : records_)
    if (!name.starts_with(root)) return;
  std::map<std::string, Record> shorter;
  for (auto& [name, record] : records_)
    shorter.emplace(name.substr(root.size()), std::move(record));
  records_ = std::move(shorter);
}

const Record* ZipArchive::find(std::string_view name) const {
  const auto found = records_.find(std::string(name));
  return found == records_.end() ? nullptr : &found->second;
}

std::uint64_t ZipArchive::data_offset(const Record& record) const {
  std::string header(kLocalBytes + record.name.size(), '\0');
  file_.read(header.data(), record.offset, header.size());
  const std::string_view view = header;
  if (!view.starts_with(kLocal) || two(view, 26) != record.name.size() ||
      view.substr(kLocalBytes) != record.name)
    refuse("this is not the beginning of " + record.name, record.offset, view.substr(0, 4),
           "PK\\x03\\x04 and its name");
  if (record.method != 0 || two(view, 8) != 0)
    refuse(record.name + " is compressed", record.offset,
           fmt::format("method {}", std::max<std::uint64_t>(record.method, two(view, 8))),
           "records that are stored as they are, as torch.export.save does");
  return record.offset + header.size() + two(view, 28);
}

void ZipArchive::check_names() const {
  for (const auto& [name, record] : records_) data_offset(record);
}

void ZipArchive::read(const Record& record, void* to) const {
  const std::uint64_t offset = data_offset(record);
  auto* next = static_cast<char*>(to);
  std::uint32_t sum = 0;
  // Reads in pieces, which are still in the processor's cache when they are summed.
  for (std::uint64_t done = 0, piece = 0; done < record.bytes; done += piece) {
    piece = std::min(record.bytes - done, kPiece);
    file_.read(next + done, offset + done, piece);
    sum = crc32(next + done, piece, sum);
  }
  if (sum != record.crc32)
    refuse(record.name + " is damaged", offset, fmt::format("checksum {:08x}", sum),
           fmt::format("{:08x}", record.crc32));
}

std::string ZipArchive::text(const Record& record) const {
  std::string text(record.bytes, '\0');
  read(record, text.data());
  return text;
}

}  // namespace demi::imported
