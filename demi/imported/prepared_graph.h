#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/imported/fill_values.h"
#include "demi/imported/frozen_parts.h"
#include "demi/imported/fusion.h"
#include "demi/imported/statistics_check.h"
#include "demi/imported/symbolic.h"

namespace demi::imported {

using Values = std::vector<c10::IValue>;

/// The settings of a run, beside its inputs.
struct RunState {
  c10::Device device = c10::kCPU;
  bool is_training = true;
  std::shared_ptr<const FrozenParts> frozen = {};  // null: none
  Fusing fusing = Fusing::low_precision;
};

/// The source of an instruction's argument.
struct Operand {
  enum class Kind {
    constant,
    slot,              // a value of the run
    number_or_tensor,  // the same, a number as the tensor of one element that Python makes of it
    list,              // of operands, of which some are values
    in_training,       // the constant; in eval 0 of its kind: a flag, dropout's probability
  };

  Kind kind = Kind::constant;
  std::int32_t slot = -1;
  c10::IValue constant = {};
  /// in_training alone: whether the network's mode decides, too, or a frozen part's alone.
  bool follows_network = false;
  std::vector<Operand> elements = {};
  c10::TypePtr element_type = {};
};

class PreparedGraph;

/// A graph within a graph, and how it runs.
struct Nested {
  enum class Kind { gradients, autocast, checkpoint };

  Kind kind = Kind::checkpoint;
  std::shared_ptr<const PreparedGraph> graph;
  bool enabled = true;                   // gradients, the region
  std::optional<c10::ScalarType> dtype;  // of the region
  bool preserve_random_state = true;     // of a checkpoint
  std::vector<bool> is_state;            // which inputs are parameters, buffers or constants
};

struct Instruction {
  enum class Kind { op, symbolic, size, element_count, assertion, range, nested };

  Kind kind = Kind::op;
  std::optional<c10::OperatorHandle> op = {};
  SymbolicFunction function = nullptr;
  std::shared_ptr<const Nested> nested = {};
  std::vector<Operand> operands = {};
  /// The slots of the results, or of the elements if the op returns one list; -1: none.
  std::vector<std::int32_t> results = {};
  bool returns_list = false;
  /// Counts batches: passed over in a frozen part, and if it follows the network's mode, in eval.
  bool counts_batches = false, follows_network = false;
  std::string module = {};  // Python's name, if it has a mode
  StatisticsCheck statistics = {};
  FillValues fills = {};
  /// Slots that nothing reads after this.
  std::vector<std::int32_t> last_uses = {};
  /// The fusion that it belongs to, by its number; -1: none.
  std::int32_t fusion = -1;
  /// "aten::conv2d in block.conv (net.py:15 in forward)", for messages.
  std::string place = {};
};

/// A graph whose operators were looked up and whose arguments were put in order, once. Immutable:
/// several threads may run it at once.
class PreparedGraph {
 public:
  static constexpr std::int32_t kDeviceSlot = 0, kFirstInput = 1;

  /// Returns the graph's outputs. Throws UsageError, which names the operation's module and Python
  /// line, where LibTorch refuses one.
  Values run(c10::ArrayRef<c10::IValue> inputs, const RunState& state) const;

  std::int32_t input_count = 0, slot_count = kFirstInput;
  std::vector<Instruction> instructions;
  std::vector<Operand> outputs;
  std::vector<Fusion> fusions;
};

}  // namespace demi::imported
