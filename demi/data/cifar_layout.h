#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace demi::data {

enum class Cifar { ten, hundred };

/// What the binary version of a CIFAR set looks like. A record is label_bytes (the class is the
/// last of them; CIFAR-100 has the coarse one before it) and 3 x 32 x 32 pixels, red, green, blue
/// planes.
struct CifarLayout {
  std::string name;  // as `demi data get` knows it
  int64_t label_bytes;
  std::vector<std::string> train_files, test_files;
  std::vector<std::string> archives;  // names under which the whole set lies in one
  std::vector<std::string> pickles;   // files, folders and archives of the Python version
  std::vector<std::string> classes;
};

const CifarLayout& cifar_layout(Cifar kind);

}  // namespace demi::data
