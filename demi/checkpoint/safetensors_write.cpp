#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/safetensors_layout.h"
#include "demi/core/atomic_file.h"

namespace demi::checkpoint {

void save_safetensors(const std::filesystem::path& file, const NamedTensors& tensors,
                      const Metadata& metadata) {
  const SafetensorsLayout layout(tensors, metadata, "checkpoint.save_safetensors");
  AtomicFile out(file);
  layout.write(out.descriptor());
  out.commit();
}

}  // namespace demi::checkpoint
