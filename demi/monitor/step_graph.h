#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/core/export.h"
#include "demi/monitor/cure.h"
#include "demi/monitor/format_loss.h"
#include "demi/monitor/origin.h"

namespace demi::monitor {

/// The ops of a training step in the order of forward, and the tensors between them: what a region
/// would cast, and what its format does to each tensor. Ops are the same in all steps that have the
/// same op, of the same layer, as often.
struct StepGraph {
  /// When the result of an op that casts nothing is in 16 bits. `any` and those below it are where
  /// a region gave something else than follows from the inputs: a cast by hand, or a dtype that is
  /// taken from another tensor (`mask.to(h.dtype())`), which an FP32 run cannot show.
  enum class Follows : std::uint8_t {
    all,     // if all inputs are
    first,   // if the first one is
    any,     // if one of them is
    always,  // at least while nothing keeps the op in FP32
    never,
  };
  struct Op {
    std::string layer;  // whose weights it reads, else the last one before; "": none
    std::string name;   // as a policy file has it: "linear", "mul.Tensor"
    std::string outer;  // of the op that called it and is in no list; else its own
    OpCategory category = OpCategory::unchanged;
    bool reads_weights = false;  // of that layer
    bool has_rule = true;        // a policy may name it: it writes to none of its arguments
    Follows follows = Follows::all;
    std::vector<int> inputs;   // values
    std::vector<int> outputs;  // values
  };
  struct Value {
    int producer = -1;  // op; -1: from outside, and FP32
    std::string name;   // of one from outside: "batch input", "parameter fc.weight"
    bool is_parameter = false;
    std::int64_t size = 0;         // of a parameter: its elements
    FormatLoss forward, gradient;  // gradient: times the loss scale
  };

  std::vector<Op> ops;
  std::vector<Value> values;
};

/// The layers and ops that compute in FP32, beside those whose categories ask for it.
struct KeptInFp32 {
  std::set<std::string> layers, ops;
};

/// The category of an op in a region.
OpCategory category_of(const StepGraph::Op& op, const KeptInFp32& kept);

/// Whether the op's output is in 16 bits, if these values are.
bool gives_16_bits(const StepGraph::Op& op, const KeptInFp32& kept,
                   const std::vector<bool>& is_16_bit);

/// Whether a value is in 16 bits, by value.
DEMI_API std::vector<bool> values_in_16_bits(const StepGraph& graph, const KeptInFp32& kept);

/// A tensor of an op that is in 16 bits.
struct PlacedTensor {
  int op = 0, value = 0;
  TensorPlace place = TensorPlace::output;
  bool operator==(const PlacedTensor&) const = default;
};

/// Whether it is a gradient, which counts times the loss scale.
bool is_gradient(TensorPlace place);

/// Tensors that are in 16 bits, in the order of training: forward, then from the loss backward.
std::vector<PlacedTensor> tensors_in_16_bits(const StepGraph& graph, const KeptInFp32& kept);

const FormatLoss& loss_of(const StepGraph& graph, const PlacedTensor& tensor);

/// The least share of the L2 norm whose flush to zero is a reason to compute in FP32.
inline constexpr double kHarmfulLoss = 0.1;

/// The cures without which a tensor overflows, or loses that share of its norm; none of them can be
/// left out. Those in `kept` are not repeated. Tensors without a cure, such as the output of an op
/// on the batch that writes to it, are left out.
DEMI_API std::vector<Cure> find_cures(const StepGraph& graph, const KeptInFp32& kept);

/// The cure that makes the op compute in FP32, in addition to those in `kept`: its layer, else its
/// name. None if it does already, or cannot.
DEMI_API std::optional<Cure> cure_of_op(const StepGraph& graph, const KeptInFp32& kept, int op);

/// `kept` with the cures added.
KeptInFp32 with(KeptInFp32 kept, const std::vector<Cure>& cures);

/// Searches the parts that have to compute in FP32 so that a batch becomes finite: from the op at
/// its origin backwards through forward, the nearest first, then what ran before it.
class CureSearch {
 public:
  CureSearch(const StepGraph& graph, KeptInFp32 kept) : graph_(graph), kept_(std::move(kept)) {}

  /// The next cures, for the origin that the batch has with those before. Empty: there are none.
  std::vector<Cure> next(const Origin& origin);

 private:
  std::vector<int> ops_of(const Origin& origin) const;
  void add(int op);

  const StepGraph& graph_;
  KeptInFp32 kept_;
  std::set<int> seen_;
  std::vector<int> open_;  // ops to be cured, or looked behind
};

/// The cures without those that can be left out while the others are enough.
std::vector<Cure> without_needless(std::vector<Cure> cures,
                                   const std::function<bool(const std::vector<Cure>&)>& is_enough);

}  // namespace demi::monitor
