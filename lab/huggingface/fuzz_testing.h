#pragma once

#include <string_view>

#include "demi/core/folder_testing.h"
#include "demi/core/fuzz_target_testing.h"
#include "demi/core/memory_file_testing.h"
#include "lab/huggingface/config.h"
#include "lab/huggingface/folder.h"

namespace demi::huggingface {

/// A model's folder, of whose two files one is another. The shard holds one tensor, "a".
inline void fuzz_folder(const char* name, std::string_view bytes) {
  using namespace std::string_view_literals;
  static const TestFolder folder;
  folder.write("config.json", R"({"model_type": "gpt2"})");
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})");
  folder.write("model-00001-of-00001.safetensors",
               "\x36\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
               "\0\0\0\0"sv);
  folder.write(name, bytes);
  folder_of(folder.path());
  contents(folder.path());
  read_tensors(folder.path());
}

inline constexpr FuzzTarget kFuzzTargets[] = {{"hf_config",
                                               [](std::string_view bytes) {
                                                 read_config(MemoryFile(bytes).path());
                                                 fuzz_folder("config.json", bytes);
                                               }},
                                              {"hf_index", [](std::string_view bytes) {
                                                 fuzz_folder("model.safetensors.index.json", bytes);
                                               }}};

}  // namespace demi::huggingface
