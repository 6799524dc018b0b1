#include "lab/models/torchvision_names.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "demi/core/error.h"

namespace demi::models {
namespace {

/// A name, part by part: "stages.3.body.0.weight".
struct Parts {
  std::string_view left;

  std::string_view next() {
    const std::size_t dot = left.find('.');
    const std::string_view part = left.substr(0, dot);
    left.remove_prefix(dot == std::string_view::npos ? left.size() : dot + 1);
    return part;
  }
  int64_t number() {
    const std::string_view part = next();
    int64_t value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() ? value : -1;
  }
};

/// "layer2.1" for the block of that number, counted through all stages.
std::optional<std::string> block_name(int64_t block, const ResNetOptions& options) {
  for (std::size_t stage = 0; block >= 0 && stage < options.depths.size(); ++stage) {
    if (block < options.depths[stage]) return fmt::format("layer{}.{}", stage + 1, block);
    block -= options.depths[stage];
  }
  return std::nullopt;
}

/// A body is convolution, normalisation, ReLU, convolution, normalisation ...
std::optional<std::string> layer_name(int64_t index, int64_t convolutions) {
  if (index < 0 || index / 3 >= convolutions || index % 3 == 2) return std::nullopt;
  return fmt::format("{}{}", index % 3 == 0 ? "conv" : "bn", index / 3 + 1);
}

std::optional<std::string> part_of_block(Parts& parts, const ResNetOptions& options) {
  const std::string_view branch = parts.next();
  const int64_t index = parts.number();
  if (branch == "body") return layer_name(index, options.block == ResNetBlock::basic ? 2 : 3);
  if (branch == "shortcut" && (index == 0 || index == 1))
    return fmt::format("downsample.{}", index);
  return std::nullopt;
}

std::optional<std::string> module_name(Parts& parts, const ResNetOptions& options) {
  const std::string_view first = parts.next();
  if (first == "classifier") return "fc";
  if (first == "stem") return layer_name(parts.number(), 1);
  if (first != "stages") return std::nullopt;
  const auto block = block_name(parts.number(), options);
  const auto part = part_of_block(parts, options);
  if (!block || !part) return std::nullopt;
  return *block + "." + *part;
}

}  // namespace

std::string torchvision_name(std::string_view name, const ResNetOptions& options) {
  Parts parts{name};
  const auto module = module_name(parts, options);
  if (!module || parts.left.empty())
    throw UsageError({.where = "models.torchvision_name",
                      .what = "ResNet with these options has no tensor of that name",
                      .seen = name,
                      .accepted = "a name of ResNet's named_parameters() or named_buffers()"});
  return *module + "." + std::string(parts.left);
}

}  // namespace demi::models
