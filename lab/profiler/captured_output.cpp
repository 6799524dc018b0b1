#include "lab/profiler/captured_output.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <iostream>

namespace demi::profiler {
namespace {

constexpr std::size_t kMost = 64'000'000;

void flush() {
  std::cout.flush();
  std::fflush(stdout);
}

}  // namespace

CapturedOutput::CapturedOutput() {
  flush();
  file_ = memfd_create("output", MFD_CLOEXEC);
  if (file_ < 0) return;
  before_ = dup(STDOUT_FILENO);
  if (before_ >= 0 && dup2(file_, STDOUT_FILENO) >= 0) return;
  give_back();
}

CapturedOutput::~CapturedOutput() {
  give_back();
  if (file_ >= 0) close(file_);
}

void CapturedOutput::give_back() {
  if (before_ < 0) return;
  flush();
  dup2(before_, STDOUT_FILENO);
  close(before_);
  before_ = -1;
}

std::string CapturedOutput::text() {
  give_back();
  std::string all;
  if (file_ < 0 || lseek(file_, 0, SEEK_SET) != 0) return all;
  std::array<char, 65536> part{};
  for (ssize_t n = 0; all.size() < kMost && (n = read(file_, part.data(), part.size())) > 0;)
    all.append(part.data(), static_cast<std::size_t>(n));
  return all;
}

}  // namespace demi::profiler
