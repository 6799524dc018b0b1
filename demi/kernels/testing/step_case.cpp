#include "demi/kernels/testing/step_case.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "demi/kernels/decide.h"
#include "demi/kernels/recode.h"
#include "demi/kernels/reference/elements.h"
#include "demi/kernels/rule_info.h"

namespace demi::kernels::testing {
namespace {

// SplitMix64 (Steele et al. 2014).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

float value_at(std::uint64_t seed, std::int64_t i, float range, bool awkward) {
  const std::uint64_t bits = mixed(seed * 1000003u + static_cast<std::uint64_t>(i));
  if (awkward) {
    switch (bits % 11) {
      case 0:
        return 0.0f;
      case 1:
        return -0.0f;
      case 2:
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 41) | 1u);  // a denormal
      case 3:
        return 1e30f;  // its square overflows FP32
      case 4:
        return -3.3e38f;
      case 5:
        return 6e-8f;  // a denormal of fp16
      case 6:
        return std::ldexp(1.0f + static_cast<float>((bits >> 20) & 0xFFF) / 4096.0f,
                          static_cast<int>(bits >> 56) - 140);
      default:
        break;
    }
  }
  return (static_cast<float>(bits >> 40) / 8388608.0f - 1.0f) * range;
}

StepCase::StepCase(const CaseOptions& options) : offset_(options.offset), scale_(options.scale) {
  const std::int64_t count = static_cast<std::int64_t>(options.lengths.size());
  steps_.assign(static_cast<std::size_t>(count), 0);
  scalars_.assign(static_cast<std::size_t>(count), 1.0f);
  std::vector<TensorEntry> tensors;
  std::uint64_t seed = options.seed * 100;
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t n = options.lengths[static_cast<std::size_t>(t)];
    TensorEntry tensor;
    tensor.length = n;
    tensor.step = &steps_[static_cast<std::size_t>(t)];
    tensor.scalar = &scalars_[static_cast<std::size_t>(t)];
    tensor.gradient_storage = options.gradient;
    const auto floats = [&](float range, bool awkward, bool positive) {
      auto* array = reinterpret_cast<float*>(allocate(n, 4));
      writable_.push_back(
          {reinterpret_cast<std::byte*>(array), static_cast<std::size_t>(n) * 4, Storage::fp32});
      ++seed;
      for (std::int64_t i = 0; i < n; ++i) {
        const float value = value_at(seed, i, range, awkward);
        array[i] = positive ? std::fabs(value) : value;
      }
      return array;
    };
    tensor.number = static_cast<std::int32_t>(t);
    tensor.parameter = floats(1.0f, options.awkward, false);
    tensor.moment[0] = floats(0.1f, false, begins_with_squares(options.rule));
    tensor.moment[1] = floats(0.01f, false, true);
    if (options.weight) {
      tensor.coded_parameter = coded(tensor.parameter, n, *options.weight);
      tensor.parameter = nullptr;
    }
    for (std::size_t m = 0; options.codecs && m < 2; ++m) {
      tensor.coded_moment[m] = coded(tensor.moment[m], n, (*options.codecs)[m]);
      tensor.moment[m] = nullptr;
    }
    tensor.moment[2] = floats(0.01f, false, true);
    void* gradient = allocate(n, bytes_of(options.gradient));
    ++seed;
    for (std::int64_t i = 0; i < n; ++i) {
      float value = value_at(seed, i, options.gradient_range, options.awkward);
      if (options.gradient == Storage::fp16 && std::fabs(value) > 60000.0f) value = 60000.0f;
      if (options.gradient == Storage::bf16 && std::fabs(value) > 3e38f) value = 3e38f;
      store_element(gradient, options.gradient, i, value);
    }
    tensor.gradient = gradient;
    for (int k = 0; k < 2; ++k) {
      tensor.copy_storage[k] = options.copies[k];
      if (options.copies[k] == Storage::none || options.weight) continue;
      const int bytes = bytes_of(options.copies[k]);
      tensor.copy[k] = allocate(n, bytes);
      writable_.push_back({static_cast<std::byte*>(tensor.copy[k]),
                           static_cast<std::size_t>(n * bytes), options.copies[k]});
    }
    tensors.push_back(tensor);
  }
  plan_ = std::make_unique<StepPlan>(options.rule, std::move(tensors),
                                     std::vector<Group>{options.group});
  plan_->inputs().rounding_seed = options.rounding_seed;
  plan_->inputs().scale = &scale_;
}

// With room for 64 guard bytes, so that a kernel that writes past an end is seen by `written` of no
// case but by ASan.
std::byte* StepCase::allocate(std::int64_t elements, int bytes) {
  const std::size_t offset = static_cast<std::size_t>(offset_) * static_cast<std::size_t>(bytes);
  memory_.push_back(std::make_unique<std::byte[]>(
      static_cast<std::size_t>(elements) * static_cast<std::size_t>(bytes) + offset));
  return memory_.back().get() + offset;
}

Coded StepCase::coded(const float* array, std::int64_t length, Codec codec) {
  Coded made{.codec = codec};
  const auto writable = [&](std::int64_t elements, int bytes) {
    std::byte* memory = allocate(elements, bytes);
    writable_.push_back({memory, static_cast<std::size_t>(elements * bytes), Storage::none});
    return memory;
  };
  made.values = writable(length, bytes_of(codec));
  if (has_scales(codec)) made.scales = writable(scales_of(codec, length), 2);
  encode_array(made, array, length);
  return made;
}

CodedWeight StepCase::coded(const float* weights, std::int64_t length, WeightCodec codec) {
  const auto made = [&](int bytes) {
    std::byte* memory = allocate(length, bytes);
    writable_.push_back({memory, static_cast<std::size_t>(length * bytes), Storage::none});
    return memory;
  };
  CodedWeight weight{.parameter = reinterpret_cast<std::uint16_t*>(made(2)), .codec = codec};
  if (rest_bytes_of(codec) > 0) weight.rest = made(rest_bytes_of(codec));
  encode_array(weight, weights, length);
  return weight;
}

void StepCase::set_gradient(std::size_t t, std::int64_t i, float value) {
  const TensorEntry& tensor = plan_->tensors()[t];
  store_element(const_cast<void*>(tensor.gradient), tensor.gradient_storage, i, value);
}

StepTable StepCase::table() {
  StepTable table = plan_->table();
  if (!info_of(table.range.rule).applied_by) return table;
  directions_.resize(static_cast<std::size_t>(table.block_count * kBlock));
  table.direction = directions_.data();
  table.direction_storage = Storage::bf16;
  return table;
}

void StepCase::step(const CpuKernels& kernels, std::int64_t cut) {
  StepTable table = this->table();
  const std::int64_t piece = cut > 0 ? cut : table.block_count;
  const auto pass = [&](auto kernel) {
    // Last piece first: the order of pieces must not matter either.
    for (std::int64_t end = table.block_count; end > 0; end -= piece) {
      kernel(table, end > piece ? end - piece : 0, end);
    }
  };
  pass(kernels.measure);
  reduce(table);
  decide(table);
  pass(kernels.update);
  if (info_of(table.range.rule).has_trust) {
    decide_trust(table);
    pass(kernels.apply_trust);
  }
  const auto applied_by = info_of(table.range.rule).applied_by;
  if (!applied_by) return;  // else with the direction as it is
  table.range.rule = *applied_by;
  pass(kernels.update);
}

std::vector<unsigned char> StepCase::written() const {
  std::vector<unsigned char> bytes;
  for (const Writable& one : writable_) {
    const auto* from = reinterpret_cast<const unsigned char*>(one.start);
    bytes.insert(bytes.end(), from, from + one.bytes);
  }
  const auto* steps = reinterpret_cast<const unsigned char*>(steps_.data());
  bytes.insert(bytes.end(), steps, steps + steps_.size() * sizeof(std::int64_t));
  const auto* scalars = reinterpret_cast<const unsigned char*>(scalars_.data());
  bytes.insert(bytes.end(), scalars, scalars + scalars_.size() * sizeof(float));
  return bytes;
}

std::vector<unsigned char> StepCase::written_with_one_nan() const {
  std::vector<unsigned char> bytes = written();
  unsigned char* at = bytes.data();
  for (const Writable& one : writable_) {
    const auto step = static_cast<std::size_t>(bytes_of(one.storage));
    for (std::size_t i = 0; one.storage != Storage::none && i < one.bytes; i += step)
      if (std::isnan(load_element(at + i, one.storage, 0)))
        store_element(at + i, one.storage, 0, std::numeric_limits<float>::quiet_NaN());
    at += one.bytes;
  }
  return bytes;
}

bool begins_with_squares(UpdateRule rule) {
  const auto states = info_of(rule).states;
  return !states.empty() && states.front().is_square;
}

std::vector<UpdateRule> all_rules() {
  return {
#define DEMI_RULE_ENTRY(name, Name) UpdateRule::name,
#include "demi/kernels/rules/entries.h"
      UpdateRule::ema};
}

std::vector<const CpuKernels*> simd_paths() {
  std::vector<const CpuKernels*> paths;
  for (const Path path : {Path::avx2, Path::avx512}) {
    if (const CpuKernels* kernels = cpu_kernels(path)) paths.push_back(kernels);
  }
  return paths;
}

}  // namespace demi::kernels::testing
