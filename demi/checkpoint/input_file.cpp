#include "demi/checkpoint/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "demi/core/git_lfs.h"

namespace demi::checkpoint {
namespace {

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::string_view advice_about(int error) {
  if (error == ENOENT || error == ENOTDIR) return "look for its name in the folder";
  if (error == EACCES) return "let this user read it, and enter the folders above it (chmod)";
  return "";
}

/// Control characters as \x1b, so that a file's bytes neither steer a terminal nor end the message.
std::string without_control_characters(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F)
      plain += fmt::format("\\x{:02x}", byte);
    else
      plain += c;
  }
  return plain;
}

using namespace std::string_view_literals;

constexpr std::string_view kAnother = "name the weights' file";
constexpr std::string_view kConvert =
    "if torch.save wrote it: demi_checkpoint.py convert FILE OUT.safetensors";

struct Signature {
  std::string_view bytes;
  FileKind kind;
};

// Each format's own specification fixes these bytes.
constexpr Signature kSignatures[] = {
    {"PK\x03\x04"sv, {"a zip archive, as torch.save and torch.jit.save write", kConvert}},
    {"\x80\x02"sv, {"a Python pickle, as old versions of torch.save write", kConvert}},
    {"\x89PNG"sv, {"a PNG picture", kAnother}},
    {"\xff\xd8\xff"sv, {"a JPEG picture", kAnother}},
    {"\x89HDF"sv, {"an HDF5 file", kAnother}},
    {"\x1f\x8b"sv, {"a gzip archive", "unpack it first"}},
    {"GGUF"sv, {"a GGUF file", kAnother}},
    {"\x7f\x45LF"sv, {"a program or a library", kAnother}},
    {"version "sv, {"a text, as git-lfs's pointer to a file is", kGitLfsAdvice}},
};

}  // namespace

Mapping::~Mapping() {
  if (bytes_ > 0) ::munmap(data_, bytes_);
}

void Mapping::release(uint64_t begin, uint64_t end) const {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  begin = (begin + page - 1) / page * page;
  end = end / page * page;
  if (begin < end) ::madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

InputFile::InputFile(const std::filesystem::path& path, std::string_view where,
                     std::string_view expected)
    : fault_{path, where} {
  const auto complaint = [&, what = fmt::format("{} cannot be opened", path.string())](
                             std::string_view seen, std::string_view advice) {
    return Complaint{
        .where = where, .what = what, .seen = seen, .accepted = expected, .advice = advice};
  };
  const auto refuse_by_system = [&] {
    const int error = errno;
    const Complaint why = complaint(std::strerror(error), advice_about(error));
    if (error == ENOENT || error == ENOTDIR) throw DataError(why);
    throw UnreadableError(why);
  };
  struct stat status {};
  // Before it is opened: opening a pipe would wait for its writer.
  if (::stat(path.c_str(), &status) != 0) refuse_by_system();
  if (!S_ISREG(status.st_mode)) throw DataError(complaint(kind_of(status.st_mode), ""));
  do fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) refuse_by_system();
  bytes_ = static_cast<uint64_t>(status.st_size);
  // The system then reads further ahead. Asking it for pages explicitly was slower.
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::refuse(std::string_view what, int error) const {
  throw UnreadableError({.where = fault_.where,
                         .what = fmt::format("{} {}", fault_.path.string(), what),
                         .seen = std::strerror(error)});
}

void InputFile::read(void* to, uint64_t offset, uint64_t bytes) const {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, next, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse("cannot be read: the disk fails", errno);
    if (got == 0)
      fault_("the file ends too early", offset, "no bytes", fmt::format("{} more", bytes));
    next += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

std::shared_ptr<const Mapping> InputFile::map() const {
  if (bytes_ == 0) return std::make_shared<const Mapping>(nullptr, 0);
  void* data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_, 0);
  if (data == MAP_FAILED && errno == ENOMEM)
    throw TrainingError({.where = fault_.where,
                         .what = "there is not enough address space for " + fault_.path.string(),
                         .seen = fmt::format("{} bytes", bytes_),
                         .advice = "raise the limit (ulimit -v), or end other programs"});
  if (data == MAP_FAILED) refuse("cannot be mapped", errno);
  return std::make_shared<const Mapping>(data, bytes_);
}

std::string excerpt(std::string_view text) {
  constexpr std::size_t kMost = 200;
  if (text.size() <= kMost) return without_control_characters(text);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // not inside of a UTF-8 character
  return fmt::format("{}... ({} bytes)", without_control_characters(text.substr(0, end)),
                     text.size());
}

void Fault::operator()(std::string_view what, uint64_t offset, std::string_view found,
                       std::string_view expected) const {
  throw DataError(
      {.where = where,
       .what = fmt::format("{}, offset {}: {}", path.string(), offset, what),
       .seen = excerpt(found),
       .accepted = expected,
       .advice =
           "the file is damaged or of another kind; use another copy or an older checkpoint"});
}

FileKind file_kind(std::string_view first) {
  for (const Signature& one : kSignatures)
    if (first.starts_with(one.bytes)) return one.kind;
  const auto is_text = [](char c) {
    return std::isprint(static_cast<unsigned char>(c)) != 0 || c == '\n' || c == '\r' || c == '\t';
  };
  if (!first.empty() && std::ranges::all_of(first, is_text)) return {"a text", kAnother};
  return {};
}

}  // namespace demi::checkpoint
