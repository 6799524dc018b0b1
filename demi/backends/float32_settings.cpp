#include "demi/backends/float32_settings.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstddef>

namespace demi {
namespace {

using Precisions = at::Float32Precision;

struct Key {
  at::Float32Backend backend;
  at::Float32Op op;
};
constexpr std::array<Key, 6> kKeys{{{at::Float32Backend::CUDA, at::Float32Op::MATMUL},
                                    {at::Float32Backend::CUDA, at::Float32Op::CONV},
                                    {at::Float32Backend::CUDA, at::Float32Op::RNN},
                                    {at::Float32Backend::MKLDNN, at::Float32Op::MATMUL},
                                    {at::Float32Backend::MKLDNN, at::Float32Op::CONV},
                                    {at::Float32Backend::MKLDNN, at::Float32Op::RNN}}};

Precisions get(const Key& key) { return at::globalContext().float32Precision(key.backend, key.op); }

void set(const Key& key, Precisions precision) {
  at::globalContext().setFloat32Precision(key.backend, key.op, precision);
}

// NONE inherits the parent's setting. An inherited value and an equal explicit one look alike, so
// NONE is restored if it gives the value.
void give_back(const Key& key, Precisions before) {
  set(key, Precisions::NONE);
  if (get(key) != before) set(key, before);
}

const char* name_of(at::Float32MatmulPrecision precision) {
  switch (precision) {
    case at::Float32MatmulPrecision::HIGHEST:
      return "highest";
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
  }
  return "highest";
}

// LibTorch's older getters throw where newer functions set something else; so they are asked when
// nothing can be in their way.
at::Float32MatmulPrecision older_matmul() {
  set(kKeys[0], Precisions::IEEE);
  set(kKeys[3], Precisions::IEEE);
  return at::globalContext().float32MatmulPrecision();
}

bool older_convolution() {
  set(kKeys[1], Precisions::TF32);
  set(kKeys[2], Precisions::TF32);
  try {
    return at::globalContext().allowTF32CuDNN();
  } catch (const c10::Error&) {  // it is not what was just set
    return false;
  }
}

}  // namespace

Float32Settings Float32Settings::now() {
  Float32Settings settings;
  for (const Key& key : kKeys) settings.newer_.push_back(get(key));
  settings.matmul_ = older_matmul();
  settings.convolution_ = older_convolution();
  settings.put_back();
  return settings;
}

void Float32Settings::put_back() const {
  at::globalContext().setFloat32MatmulPrecision(name_of(matmul_));
  at::globalContext().setAllowTF32CuDNN(convolution_);
  for (std::size_t i = 0; i < kKeys.size(); ++i) give_back(kKeys[i], newer_[i]);
}

}  // namespace demi
