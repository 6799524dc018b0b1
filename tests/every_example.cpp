// every_example ARGUMENTS...: calls each example that is in this program with them, in a fork,
// where a start would load LibTorch again, and prints "NAME ended with CODE" on stdout.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "example_mains.h"  // kExamples
#include "tests/end_before_libraries.h"

int main(int argc, char** argv) {
  for (const auto& [name, call] : kExamples) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      end_before_libraries();
      argv[0] = const_cast<char*>(name);
      std::exit(call(argc, argv));
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("%s ended with %d\n", name, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
}
