#pragma once

#include <ATen/ops/sum.h>

#include <string>
#include <string_view>

#include "demi/core/fuzz_target_testing.h"
#include "demi/core/memory_file_testing.h"
#include "demi/core/source_dir_testing.h"
#include "demi/imported/archive.h"
#include "demi/imported/zip_testing.h"

namespace demi::imported {

/// Graphs, names and tensors of an archive.
inline void fuzz_archive(std::string_view bytes) {
  const MemoryFile file(bytes);
  const Archive archive(file.path());
  TensorReader tensors = archive.tensors();
  for (const Program& program : archive.programs())
    for (const auto& [name, stored] : archive.weights(program.name)) tensors.read(stored).sum();
}

/// An archive that Python wrote, with another text in place of one of its records.
inline void fuzz_record(const char* name, std::string_view bytes) {
  static const Contents whole = contents_of(source_dir() / "tests/fixtures/imported/tiny.pt2");
  Contents changed = whole;
  changed.at(name) = std::string(bytes);
  fuzz_archive(zip_of(changed));
}

inline constexpr FuzzTarget kFuzzTargets[] = {
    {"pt2", fuzz_archive},
    {"pt2_graph", [](std::string_view bytes) { fuzz_record("models/model.json", bytes); }},
    {"pt2_weights",
     [](std::string_view bytes) { fuzz_record("data/weights/model_weights_config.json", bytes); }}};

}  // namespace demi::imported
