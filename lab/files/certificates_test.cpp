#include "lab/files/certificates.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lab/files/folder_testing.h"

namespace demi::files {
namespace {

// The places are those that Go's crypto/x509 names (root_linux.go).
TEST(Certificates, AreLookedForWhereEachSystemKeepsThem) {
  ::unsetenv("SSL_CERT_FILE");
  for (const char* place : {"etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt",
                            "etc/ssl/ca-bundle.pem", "etc/ssl/cert.pem"}) {
    const TestFolder root;
    EXPECT_EQ(certificate_file("/nowhere/ca.crt", root.path()), "");
    root.write(place, "certificates");
    EXPECT_EQ(certificate_file("/nowhere/ca.crt", root.path()), root / place);
    EXPECT_EQ(certificate_file("", root.path()), root / place);
    root.write("own.crt", "certificates");
    EXPECT_EQ(certificate_file(root / "own.crt", root.path()), "") << "libcurl's own";
  }
}

TEST(Certificates, AreThoseThatTheEnvironmentNames) {
  const TestFolder root;
  root.write("etc/ssl/cert.pem", "certificates");
  ::setenv("SSL_CERT_FILE", "/company/ca.pem", 1);
  EXPECT_EQ(certificate_file(root / "etc/ssl/cert.pem", root.path()), "/company/ca.pem");
  ::setenv("SSL_CERT_FILE", "", 1);
  EXPECT_EQ(certificate_file("", root.path()), root / "etc/ssl/cert.pem");
  ::unsetenv("SSL_CERT_FILE");
}

}  // namespace
}  // namespace demi::files
