#include "demi/imported/prepared_graph.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <string_view>
#include <utility>

#include "demi/core/error.h"
#include "demi/imported/nested_run.h"
#include "demi/imported/wrapped_number.h"

namespace demi::imported {
namespace {

using c10::IValue;

/// false for a flag, 0 for a probability.
IValue zero_of(const IValue& value) { return value.isBool() ? IValue(false) : IValue(0.0); }

/// "Float and BFloat16" of tensors of several floating point types, else nothing.
std::string mixed_dtypes(const Values& operands) {
  std::vector<std::string_view> names;
  const auto add = [&](const IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    const at::Tensor& tensor = value.toTensor();
    const char* name = c10::toString(tensor.scalar_type());
    if (tensor.is_floating_point() && !std::ranges::count(names, name)) names.emplace_back(name);
  };
  for (const IValue& operand : operands) {
    add(operand);
    if (operand.isList())
      for (const IValue& element : operand.toListRef()) add(element);
  }
  return names.size() < 2 ? "" : fmt::format("{}", fmt::join(names, " and "));
}

/// A run: its values, and the stack from which operators take their arguments.
class Run {
 public:
  Run(const PreparedGraph& graph, c10::ArrayRef<IValue> inputs, const RunState& state)
      : graph_(graph),
        state_(state),
        slots_(static_cast<std::size_t>(graph.slot_count)),
        fuses_(graph.fusions.size()) {
    slots_[PreparedGraph::kDeviceSlot] = state.device;
    std::copy(inputs.begin(), inputs.end(), slots_.begin() + PreparedGraph::kFirstInput);
  }

  Values all() {
    for (const Instruction& instruction : graph_.instructions) {
      if (is_part_of_fusion(instruction)) continue;
      step(instruction);
      release(instruction);
    }
    Values outputs;
    outputs.reserve(graph_.outputs.size());
    for (const Operand& output : graph_.outputs) outputs.push_back(make(output));
    return outputs;
  }

 private:
  static std::size_t at(std::int32_t slot) { return static_cast<std::size_t>(slot); }

  void release(const Instruction& instruction) {
    for (const std::int32_t slot : instruction.last_uses) slots_[at(slot)] = IValue();
  }

  /// Whether the instruction is computed with others; the last of them computes all. The
  /// normalisation, which is the first, decides.
  bool is_part_of_fusion(const Instruction& instruction) {
    if (instruction.fusion < 0) return false;
    const Fusion& fusion = graph_.fusions[at(instruction.fusion)];
    const auto is = [&](std::int32_t number) {
      return number >= 0 && &instruction == &graph_.instructions[at(number)];
    };
    if (is(fusion.norm)) {
      load(instruction);
      fuses_[at(instruction.fusion)] = is_fused(state_.fusing, stack_);
    }
    if (!fuses_[at(instruction.fusion)]) return false;
    if (is(fusion.last())) run_all_of(fusion);
    return true;
  }

  void run_all_of(const Fusion& fusion) {
    const auto operands_of = [&](std::int32_t number) {
      load(graph_.instructions[at(number)]);
      return std::exchange(stack_, {});
    };
    const torch::jit::Stack pool = fusion.pool < 0 ? torch::jit::Stack() : operands_of(fusion.pool);
    const IValue add = fusion.add < 0 ? IValue() : operands_of(fusion.add)[at(fusion.add_operand)];
    const Instruction& norm = graph_.instructions[at(fusion.norm)];
    load(norm);
    if (!is_sum_fused(stack_, add)) return run_each_of(fusion);
    norm.statistics(stack_, norm.place);
    explained(norm, fusion.place, [&] {
      const at::Tensor result = run_fusion(fusion, stack_, add, pool);
      stack_.assign(1, IValue(result));
    });
    keep(graph_.instructions[at(fusion.last())]);
    for (const std::int32_t member : fusion.members()) release(graph_.instructions[at(member)]);
  }

  void run_each_of(const Fusion& fusion) {
    for (const std::int32_t member : fusion.members()) {
      step(graph_.instructions[at(member)]);
      release(graph_.instructions[at(member)]);
    }
  }

  /// Its operands on the stack.
  void load(const Instruction& instruction) {
    is_frozen_ = state_.frozen && state_.frozen->hold(instruction.module);
    stack_.clear();
    for (const Operand& operand : instruction.operands) stack_.push_back(make(operand));
  }

  IValue make(const Operand& operand) const {
    switch (operand.kind) {
      case Operand::Kind::constant:
        return operand.constant;
      case Operand::Kind::slot:
        return slots_[at(operand.slot)];
      case Operand::Kind::number_or_tensor: {
        const IValue& value = slots_[at(operand.slot)];
        return value.isTensor() || value.isNone() ? value : wrapped_number(value.toScalar());
      }
      case Operand::Kind::in_training:
        return is_off(operand.follows_network) ? zero_of(operand.constant) : operand.constant;
      case Operand::Kind::list:
        break;
    }
    c10::impl::GenericList list(operand.element_type);
    list.reserve(operand.elements.size());
    for (const Operand& element : operand.elements) list.push_back(make(element));
    return list;
  }

  /// Whether the current instruction's behaviour in training is off.
  bool is_off(bool follows_network) const {
    return is_frozen_ || (follows_network && !state_.is_training);
  }

  void step(const Instruction& instruction) {
    load(instruction);
    if (instruction.counts_batches && is_off(instruction.follows_network))
      stack_.resize(1);  // the count as it is
    else
      compute_or_explain(instruction);
    keep(instruction);
  }

  void compute_or_explain(const Instruction& instruction) {
    instruction.statistics(stack_, instruction.place);
    instruction.fills(stack_);
    explained(instruction, instruction.place, [&] { compute(instruction); });
  }

  /// What `act` throws names the place, and is of the instruction's operands.
  template <class Act>
  void explained(const Instruction& instruction, const std::string& place, Act act) {
    try {
      act();
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const Error&) {  // of a graph within the graph: it names the place
      throw;
    } catch (const c10::Error& error) {
      refuse_run(instruction, place, error.what_without_backtrace());
    } catch (const std::exception& error) {  // of LibTorch's conversions, and of oneDNN
      refuse_run(instruction, place, error.what());
    }
  }

  [[noreturn]] void refuse_run(const Instruction& instruction, const std::string& place,
                               const std::string& seen) const {
    Values operands;  // the stack may be half used up
    for (const Operand& operand : instruction.operands) operands.push_back(make(operand));
    const std::string dtypes = mixed_dtypes(operands);
    refuse({.where = "imported.forward",
            .what = place + " failed",
            .seen = seen,
            .accepted = "inputs like those that the network was exported with",
            .advice = seen.find("view size is not compatible") != std::string::npos
                          ? "the line wants contiguous memory: give contiguous inputs, and leave "
                            "the model in it, or write reshape in Python"
                      : dtypes.empty()
                          ? "look at the shapes and dtypes of the inputs, and at that line"
                          : fmt::format("it was given {}, so a dtype that stands in the code was "
                                        "fixed at the export: run the network in FP32 in a region "
                                        "(demi::Autocast) in place of to(dtype), or export it in "
                                        "that dtype",
                                        dtypes)});
  }

  void compute(const Instruction& instruction) {
    switch (instruction.kind) {
      case Instruction::Kind::op:
        return instruction.op->callBoxed(stack_);
      case Instruction::Kind::symbolic:
        return compute_number(instruction);
      case Instruction::Kind::size: {
        const std::int64_t size = stack_[0].toTensor().size(stack_[1].toInt());
        return stack_.assign(1, IValue(size));
      }
      case Instruction::Kind::element_count: {
        const std::int64_t count = stack_[0].toTensor().numel();
        return stack_.assign(1, IValue(count));
      }
      case Instruction::Kind::assertion:
        return check_condition(instruction);
      case Instruction::Kind::range:
        return check_range(instruction);
      case Instruction::Kind::nested:
        stack_ = run_nested(*instruction.nested, std::move(stack_), state_);
        return;
    }
  }

  void compute_number(const Instruction& instruction) {
    std::optional<IValue> result = instruction.function(stack_);
    if (!result)
      refuse({.where = "imported.forward",
              .what = instruction.place + " has no result for these numbers",
              .seen = fmt::format("{} of them", stack_.size()),
              .accepted = "numbers for which Python has a result of 64 bits",
              .advice = "give inputs of other sizes"});
    stack_.clear();
    stack_.push_back(std::move(*result));
  }

  void check_condition(const Instruction& instruction) {
    const bool holds = stack_[0].isBool() ? stack_[0].toBool() : stack_[0].toScalar().toBool();
    if (!holds)
      refuse({.where = "imported.forward",
              .what = instruction.place + ": a condition of the exported network does not hold",
              .seen = stack_.size() > 1 && stack_[1].isString() ? stack_[1].toStringRef() : "",
              .accepted = "inputs of the sizes that it was exported for",
              .advice = "export it with dynamic_shapes for the sizes that change"});
    stack_.clear();
  }

  void check_range(const Instruction& instruction) {
    const std::int64_t size = stack_[0].toInt();
    const bool has_least = stack_.size() > 1 && stack_[1].isInt(),
               has_most = stack_.size() > 2 && stack_[2].isInt();
    if ((has_least && size < stack_[1].toInt()) || (has_most && size > stack_[2].toInt()))
      refuse({.where = "imported.forward",
              .what = instruction.place + ": a size is not in its range",
              .seen = fmt::to_string(size),
              .accepted = fmt::format(
                  "{} to {}", has_least ? stack_[1].toInt() : 0,
                  has_most ? stack_[2].toInt() : std::numeric_limits<std::int64_t>::max()),
              .advice = "give an input of another size"});
    stack_.clear();
  }

  void keep(const Instruction& instruction) {
    if (instruction.returns_list) {
      const c10::List<IValue> list = stack_.at(0).toList();
      Values elements(list.begin(), list.end());
      stack_ = std::move(elements);
    }
    if (stack_.size() != instruction.results.size())
      refuse({.where = "imported.forward",
              .what = instruction.place + " returned another number of results",
              .seen = fmt::to_string(stack_.size()),
              .accepted = fmt::to_string(instruction.results.size()),
              .advice = "give an input of the sizes that the network was exported with"});
    for (std::size_t i = 0; i < stack_.size(); ++i)
      if (instruction.results[i] >= 0) slots_[at(instruction.results[i])] = std::move(stack_[i]);
  }

  const PreparedGraph& graph_;
  const RunState state_;
  Values slots_;
  torch::jit::Stack stack_;
  std::vector<bool> fuses_;  // of each fusion: whether this run computes it as one
  bool is_frozen_ = false;   // the current instruction's part
};

}  // namespace

Values PreparedGraph::run(c10::ArrayRef<IValue> inputs, const RunState& state) const {
  require(inputs.size() == static_cast<std::size_t>(input_count),
          {.where = "imported.forward",
           .what = "a graph has another number of inputs",
           .seen = fmt::to_string(inputs.size()),
           .accepted = fmt::to_string(input_count)});
  return Run(*this, inputs, state).all();
}

}  // namespace demi::imported
