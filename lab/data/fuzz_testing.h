#pragma once

#include <string_view>

#include "demi/core/fuzz_target_testing.h"
#include "demi/core/memory_file_testing.h"
#include "lab/data/csv.h"
#include "lab/data/picture.h"

namespace demi::data {

inline constexpr FuzzTarget kFuzzTargets[] = {
    {"csv",
     [](std::string_view bytes) {
       const MemoryFile file(bytes);
       read_csv(file.path(), bytes.size() % 2 == 0 ? ',' : '\t');
     }},
    {"labelled_csv", [](std::string_view bytes) { read_labelled_texts(MemoryFile(bytes).path()); }},
#ifdef DEMI_HAVE_PNG
    {"png", [](std::string_view bytes) { read_picture(MemoryFile(bytes).path()); }},
#endif
#ifdef DEMI_HAVE_JPEG
    {"jpeg", [](std::string_view bytes) { read_picture(MemoryFile(bytes).path()); }},
#endif
};

}  // namespace demi::data
