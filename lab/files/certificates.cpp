#include "lab/files/certificates.h"

#include <cstdlib>

namespace demi::files {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFiles[] = {
    "etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
    "etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // where Fedora's link above leads
    "etc/ssl/ca-bundle.pem",                             // openSUSE
    "etc/ssl/cert.pem",                                  // Alpine
};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

}  // namespace

fs::path certificate_file(const fs::path& built_in, const fs::path& root) {
  if (const char* named = std::getenv("SSL_CERT_FILE"); named && *named) return named;
  if (is_file(built_in)) return "";
  for (const char* file : kFiles)
    if (is_file(root / file)) return root / file;
  return "";
}

}  // namespace demi::files
