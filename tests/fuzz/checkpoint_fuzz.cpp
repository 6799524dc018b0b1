// For libFuzzer (scripts/fuzz.sh): reads any bytes as the files of a checkpoint.
#include <cstddef>
#include <cstdint>

#include "demi/checkpoint/fuzz_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t bytes) {
  demi::checkpoint::read_input({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
