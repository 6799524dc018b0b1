#include "demi/core/crc32.h"

#include "demi/core/crc_tables.h"

namespace demi {

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before) {
  using Tables = CrcTables<0xEDB88320>;  // 0x04C11DB7, bit by bit from the other end
  return ~Tables::remainder(~before, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace demi
