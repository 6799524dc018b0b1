#include "demi/imported/fusion.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "demi/batch_norm/batch_norm.h"
#include "demi/imported/prepared_graph.h"
#include "demi/tensor/dtype.h"

namespace demi::imported {
namespace {

using c10::IValue;

std::string name_of(const Instruction& instruction) {
  return instruction.op ? instruction.op->operator_name().name : "";
}

bool is_constant(const Operand& operand) { return operand.kind == Operand::Kind::constant; }
bool is_value(const Operand& operand) {
  return operand.kind == Operand::Kind::slot || operand.kind == Operand::Kind::number_or_tensor;
}

/// The pair of a constant list of one number or two; nothing: it is something else.
std::optional<std::array<std::int64_t, 2>> pair_of(const IValue& value) {
  if (!value.isIntList()) return std::nullopt;
  const std::vector<std::int64_t> list = value.toIntVector();
  if (list.size() == 1) return std::array{list[0], list[0]};
  if (list.size() == 2) return std::array{list[0], list[1]};
  return std::nullopt;
}

/// The windows of aten::max_pool2d(self, kernel_size, stride, padding, dilation, ceil_mode).
std::optional<MaxPooling> windows_of(const torch::jit::Stack& pool) {
  const auto size = pair_of(pool[1]), padding = pair_of(pool[3]), dilation = pair_of(pool[4]);
  const bool has_stride = pool[2].isIntList() && !pool[2].toIntVector().empty();
  const auto stride = has_stride ? pair_of(pool[2]) : size;
  if (!size || !stride || !padding || dilation != std::array<std::int64_t, 2>{1, 1} ||
      pool[5].toBool())
    return std::nullopt;
  return MaxPooling{*size, *stride, *padding};
}

/// Follows the values of one graph.
class Search {
 public:
  explicit Search(PreparedGraph& graph) : graph_(graph) {
    for (std::size_t i = 0; i < graph.instructions.size(); ++i) {
      for (const Operand& operand : graph.instructions[i].operands) read(operand, number(i));
      for (const std::int32_t slot : graph.instructions[i].results)
        if (slot >= 0) makers_[slot] = number(i);
    }
    for (const Operand& output : graph.outputs) read(output, kOutput);
  }

  void run() {
    for (std::size_t i = 0; i < graph_.instructions.size(); ++i)
      if (name_of(graph_.instructions[i]) == "aten::batch_norm") add(number(i));
  }

 private:
  static constexpr std::int32_t kOutput = -1;
  static std::int32_t number(std::size_t i) { return static_cast<std::int32_t>(i); }
  Instruction& at(std::int32_t i) { return graph_.instructions[static_cast<std::size_t>(i)]; }

  void read(const Operand& operand, std::int32_t by) {
    if (operand.slot >= 0) readers_[operand.slot].push_back(by);
    for (const Operand& element : operand.elements) read(element, by);
  }

  /// The only instruction that reads the result of instruction i; kOutput: there is no such one.
  std::int32_t only_reader(std::int32_t i) {
    const auto& results = at(i).results;
    if (results.size() != 1 || results[0] < 0) return kOutput;
    const auto readers = readers_.find(results[0]);
    return readers != readers_.end() && readers->second.size() == 1 ? readers->second[0] : kOutput;
  }

  /// Whether operand k of `reader` is what instruction i gives.
  bool hands_on(std::int32_t i, std::int32_t reader, std::size_t k) {
    const auto& operands = at(reader).operands;
    return k < operands.size() && is_value(operands[k]) && operands[k].slot == at(i).results[0];
  }

  /// The normalisation waits for the last instruction, and so does the sum: what they read must be
  /// there then, and as it was. That is so of a convolution's result that nothing else reads, if
  /// nothing in between shares an operand with them (a layer that is used twice, a summand that is
  /// read once more: its last reader gives it up) or writes to anything but counts of batches.
  bool may_wait(const Fusion& fusion) {
    const Operand& input = at(fusion.norm).operands[0];
    const auto maker = makers_.find(input.slot);
    if (!is_value(input) || maker == makers_.end() || readers_[input.slot].size() != 1 ||
        !name_of(at(maker->second)).starts_with("aten::conv"))
      return false;
    for (std::int32_t i = fusion.norm + 1; i < fusion.last(); ++i) {
      const Instruction& between = at(i);
      if (between.kind == Instruction::Kind::nested) return false;
      if (i == fusion.add || i == fusion.relu) continue;
      if (shares_operand(between, at(fusion.norm)) ||
          (fusion.add >= 0 && i > fusion.add && shares_operand(between, at(fusion.add))) ||
          writes(between))
        return false;
    }
    return true;
  }

  /// Whether another normalisation, of the sum's other side, has these instructions.
  bool is_taken(const Fusion& fusion) {
    return std::ranges::any_of(fusion.members(), [&](std::int32_t i) { return at(i).fusion >= 0; });
  }

  static void slots_of(const Operand& operand, std::set<std::int32_t>& slots) {
    if (operand.slot >= 0) slots.insert(operand.slot);
    for (const Operand& element : operand.elements) slots_of(element, slots);
  }
  static bool shares_operand(const Instruction& a, const Instruction& b) {
    std::set<std::int32_t> of_a, of_b;
    for (const Operand& operand : a.operands) slots_of(operand, of_a);
    for (const Operand& operand : b.operands) slots_of(operand, of_b);
    return std::ranges::any_of(of_a, [&](std::int32_t slot) { return of_b.contains(slot); });
  }
  static bool writes(const Instruction& instruction) {
    return instruction.op && !instruction.counts_batches && instruction.op->schema().is_mutable();
  }

  /// Takes the sum that follows `last`, if it is one of two tensors, and returns the instruction
  /// after which to go on.
  std::int32_t with_sum(Fusion& fusion, std::int32_t last) {
    const std::int32_t next = only_reader(last);
    if (next == kOutput) return last;
    const std::string name = name_of(at(next));
    const bool in_place = name == "aten::add_";
    if ((name != "aten::add" && !in_place) ||
        at(next).op->operator_name().overload_name != "Tensor")
      return last;
    const auto& operands = at(next).operands;
    const bool is_plain = is_constant(operands[2]) && operands[2].constant.isScalar() &&
                          operands[2].constant.toScalar().toDouble() == 1;
    const bool is_first = hands_on(last, next, 0);
    const std::int32_t other = is_first ? 1 : 0;
    if (!is_plain || (in_place && !is_first) || (!is_first && !hands_on(last, next, 1)) ||
        !is_value(operands[static_cast<std::size_t>(other)]))
      return last;
    fusion.add = next;
    fusion.add_operand = other;
    return next;
  }

  void add(std::int32_t norm) {
    Fusion fusion{.norm = norm};
    std::int32_t last = with_sum(fusion, norm);
    const auto follows = [&](std::initializer_list<std::string_view> names) {
      const std::int32_t next = only_reader(last);
      return next != kOutput && hands_on(last, next, 0) &&
                     std::ranges::find(names, name_of(at(next))) != names.end()
                 ? next
                 : kOutput;
    };
    fusion.relu = follows({"aten::relu", "aten::relu_"});
    // Without ReLU the normalisation runs alone: a sum or a pooling there is the rarer case.
    if (fusion.relu == kOutput) fusion.add = -1;
    last = fusion.relu;
    if (fusion.relu != kOutput && fusion.add < 0)
      if (const std::int32_t pool = follows({"aten::max_pool2d"}); pool != kOutput)
        if (const auto& operands = at(pool).operands;
            std::all_of(operands.begin() + 1, operands.end(), is_constant) &&
            windows_of(constants_of(operands)))
          fusion.pool = pool;
    if (fusion.last() != norm && (is_taken(fusion) || !may_wait(fusion)))
      fusion = Fusion{.norm = norm};
    fusion.place = at(norm).place;
    for (const std::int32_t member : fusion.members()) {
      if (member != norm) fusion.place += ", with " + at(member).place;
      at(member).fusion = static_cast<std::int32_t>(graph_.fusions.size());
    }
    graph_.fusions.push_back(std::move(fusion));
  }

  static torch::jit::Stack constants_of(const std::vector<Operand>& operands) {
    torch::jit::Stack all;
    for (const Operand& operand : operands) all.push_back(operand.constant);
    return all;
  }

  PreparedGraph& graph_;
  std::map<std::int32_t, std::vector<std::int32_t>> readers_;  // of a slot
  std::map<std::int32_t, std::int32_t> makers_;
};

at::Tensor tensor_or_none(const IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

}  // namespace

std::int32_t Fusion::last() const { return pool >= 0 ? pool : relu >= 0 ? relu : norm; }

std::vector<std::int32_t> Fusion::members() const {
  std::vector<std::int32_t> all;
  for (const std::int32_t one : {norm, add, relu, pool})
    if (one >= 0) all.push_back(one);
  return all;
}

void find_fusions(PreparedGraph& graph) { Search(graph).run(); }

void add_fusions(const PreparedGraph& graph, std::vector<std::string>& places) {
  for (const Fusion& fusion : graph.fusions) places.push_back(fusion.place);
  for (const Instruction& instruction : graph.instructions)
    if (instruction.nested) add_fusions(*instruction.nested->graph, places);
}

bool is_fused(Fusing fusing, const torch::jit::Stack& norm) {
  if (fusing == Fusing::never || !norm[0].isTensor()) return false;
  const at::Tensor& input = norm[0].toTensor();
  return input.device().is_cpu() && input.dim() == 4 &&
         (fusing == Fusing::always ? input.is_floating_point()
                                   : tensor::is_16_bit(input.scalar_type()));
}

bool is_sum_fused(const torch::jit::Stack& norm, const IValue& add) {
  if (add.isNone()) return true;
  const at::Tensor& input = norm[0].toTensor();
  return add.isTensor() && add.toTensor().scalar_type() == input.scalar_type() &&
         add.toTensor().sizes() == input.sizes();
}

at::Tensor run_fusion(const Fusion& fusion, const torch::jit::Stack& norm, const IValue& add,
                      const torch::jit::Stack& pool) {
  BatchNormRelu options{.training = norm[5].toBool(),
                        .momentum = norm[6].toDouble(),
                        .eps = norm[7].toDouble(),
                        .relu = fusion.relu >= 0,
                        .add = tensor_or_none(add)};
  if (fusion.pool >= 0) options.pool = *windows_of(pool);
  return batch_norm_relu(norm[0].toTensor(), tensor_or_none(norm[1]), tensor_or_none(norm[2]),
                         tensor_or_none(norm[3]), tensor_or_none(norm[4]), options);
}

}  // namespace demi::imported
