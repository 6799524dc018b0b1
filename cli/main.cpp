#include "cli/program.h"

int main(int argc, char** argv) { return demi::cli::run_program(argc, argv); }
