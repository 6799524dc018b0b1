#include "lab/files/fetch.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "demi/core/error.h"
#include "lab/files/certificates.h"
#include "lab/files/md5.h"

namespace demi::files {
namespace {

namespace fs = std::filesystem;

struct Transfer {
  const std::string& url;
  const fs::path& part;
  const FetchProgress& progress;
  int64_t have = 0;  // bytes in the part before it
};

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// The part, to be written at its end, and locked while it is open: a second process that fetches
/// the same file waits here. On a file system without locks nobody waits.
File locked(const fs::path& part) {
  for (;;) {
    File out(std::fopen(part.c_str(), "ab"), std::fclose);
    if (!out)
      throw TrainingError(
          {.where = "files.fetch",
           .what = part.string() + " cannot be written",
           .seen = std::strerror(errno),
           .advice = "choose a folder that you may write to: --data-dir or DEMI_DATA_DIR"});
    while (::flock(::fileno(out.get()), LOCK_EX) != 0 && errno == EINTR) {
    }
    struct stat opened {
    }, named{};
    // The process that had it before may have renamed or removed it.
    if (::fstat(::fileno(out.get()), &opened) == 0 && ::stat(part.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
      return out;
  }
}

int on_progress(void* user, curl_off_t total, curl_off_t now, curl_off_t, curl_off_t) {
  const auto& transfer = *static_cast<Transfer*>(user);
  if (transfer.progress)
    transfer.progress(transfer.have + now, total > 0 ? transfer.have + total : 0);
  return 0;
}

[[noreturn]] void broken_off(const Transfer& transfer, CURLcode code, const std::string& why) {
  std::error_code ignored;
  const auto bytes = fs::file_size(transfer.part, ignored);
  throw DataError(
      {.where = "files.fetch",
       .what = fmt::format("{} could not be fetched", transfer.url),
       .seen =
           fmt::format("{}; {} bytes are in {}", why, ignored ? 0 : bytes, transfer.part.string()),
       .advice = code == CURLE_SSL_CACERT_BADFILE
                     ? "SSL_CERT_FILE=FILE names the certificates of this system, in PEM"
                     : "run the command again when the network is there: it resumes where it "
                       "stopped"});
}

// libcurl's own file, in the place for certificates of the system that it was built on.
fs::path trusted_by_libcurl() {
  const char* built_in = curl_version_info(CURLVERSION_NOW)->cainfo;
  return certificate_file(built_in ? built_in : "");
}

/// Requests the missing part once. Returns the HTTP status (0 for file:).
long request(const Transfer& transfer, std::FILE* out, CURLcode& code, std::string& message) {
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  char text[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl.get(), CURLOPT_URL, transfer.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, out);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, text);
  curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  if (const fs::path trusted = trusted_by_libcurl(); !trusted.empty())
    curl_easy_setopt(curl.get(), CURLOPT_CAINFO, trusted.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, 30L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT,
                   1L);  // a line that is silent for a minute is broken
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME, 60L);
  curl_easy_setopt(curl.get(), CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(transfer.have));
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFODATA, &transfer);
  code = curl_easy_perform(curl.get());
  message = text[0] != '\0' ? text : curl_easy_strerror(code);
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  return status;
}

}  // namespace

void fetch(const std::string& url, const fs::path& file, const std::string& md5,
           const FetchProgress& progress) {
  const fs::path part = file.string() + ".part";
  Transfer transfer{.url = url, .part = part, .progress = progress};
  const File out = locked(part);
  if (fs::exists(file) && md5_of_file(file) == md5) {  // another process has fetched it meanwhile
    fs::remove(part);
    return;
  }
  transfer.have = static_cast<int64_t>(fs::file_size(part));
  if (transfer.have == 0 || md5_of_file(part) != md5) {
    CURLcode code = CURLE_OK;
    std::string message;
    const long status = request(transfer, out.get(), code, message);
    // Starts over if the server cannot resume in the middle, or if the part is longer than the
    // file.
    const bool again = transfer.have > 0 && (status == 416 || code == CURLE_RANGE_ERROR ||
                                             code == CURLE_BAD_DOWNLOAD_RESUME);
    if (again) {
      std::fflush(out.get());
      fs::resize_file(part, 0);
      transfer.have = 0;
      request(transfer, out.get(), code, message);
    }
    if (std::fflush(out.get()) != 0 || code == CURLE_WRITE_ERROR)
      throw TrainingError({.where = "files.fetch",
                           .what = part.string() + " cannot be written",
                           .advice = "free some space"});
    if (code != CURLE_OK) broken_off(transfer, code, message);
  }
  if (const std::string found = md5_of_file(part); found != md5) {
    fs::remove(part);
    throw DataError({.where = "files.fetch",
                     .what = fmt::format("{} has another checksum", url),
                     .seen = "MD5 " + found,
                     .accepted = "MD5 " + md5,
                     .advice = "it was removed; run the command again"});
  }
  fs::rename(part, file);
}

}  // namespace demi::files
