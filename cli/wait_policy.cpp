// Sets how long the program's threads spin before they sleep, before the OpenMP runtime is loaded.
//
// GCC's runtime reads its environment while it is loaded, before main() and with no call to change
// it later, so the program starts itself once more with GOMP_SPINCOUNT set. It does so from
// .preinit_array, which the loader calls before any library's constructors: 10 ms, where main()
// would have paid for LibTorch's 0.3 s twice.
#include <signal.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstring>

namespace {

// The runtime's default spins for about 4 ms at each end of a parallel part: fast on quiet cores,
// but 10 times as slow if another program holds one of them, since a waiting thread keeps the core
// that the thread it waits for could use. docs/reference/train.md has the figures.
constexpr const char* kSpinCount = "GOMP_SPINCOUNT=5000";

// The user has decided, or this is the second start.
constexpr const char* kDecided[] = {"GOMP_SPINCOUNT=", "OMP_WAIT_POLICY="};

constexpr int kMostVariables = 4096;

bool is_decided(char** environment) {
  for (char** entry = environment; *entry; ++entry)
    for (const char* name : kDecided)
      if (std::strncmp(*entry, name, std::strlen(name)) == 0) return true;
  return false;
}

/// False where the loader was started by hand with this program as its argument: what could be
/// started again is then the loader. The kernel gives the address of a loader that it has started.
bool was_started_by_the_kernel() { return getauxval(AT_BASE) != 0; }

// Allocates no memory and writes no variable: the C library is not set up yet. If anything fails,
// the program continues unchanged.
void start_again_with_spin_count(int, char** arguments, char** environment) {
  // SIGUSR1 asks for a checkpoint, and would end the program while the libraries are loaded. The
  // mask outlives execve; catch_signals() unblocks it.
  sigset_t asks_for_save;
  sigemptyset(&asks_for_save);
  sigaddset(&asks_for_save, SIGUSR1);
  sigprocmask(SIG_BLOCK, &asks_for_save, nullptr);
  if (is_decided(environment) || !was_started_by_the_kernel()) return;
  static char* variables[kMostVariables + 2];
  int count = 0;
  for (; environment[count]; ++count) {
    if (count == kMostVariables) return;
    variables[count] = environment[count];
  }
  variables[count] = const_cast<char*>(kSpinCount);
  static char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length > 0) execve(path, arguments, variables);
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const before_all)(int, char**, char**) = start_again_with_spin_count;

}  // namespace
