// Loads the library named on the command line, as a plugin host or an interpreter does.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc == 2 && dlopen(argv[1], RTLD_NOW)) return 0;
  return fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: dlopen LIBRARY"), 1;
}
