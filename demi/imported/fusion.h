#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "demi/imported/fusing.h"

namespace demi::imported {

struct Instruction;
class PreparedGraph;

/// A batch normalisation, and the instructions that follow it: a sum and ReLU, or ReLU and max
/// pooling, or nothing. Nothing else reads what they hand on. It runs at the place of the last.
struct Fusion {
  std::int32_t norm = -1, add = -1, relu = -1, pool = -1;  // numbers of instructions; -1: none
  std::int32_t add_operand = -1;                           // which of the sum's is the other one
  std::string place = {};  // "aten::batch_norm in bn1 (...), with ..."

  std::int32_t last() const;
  std::vector<std::int32_t> members() const;
};

/// Finds them, and says in each instruction to which it belongs.
void find_fusions(PreparedGraph& graph);

/// Adds the places of all fusions of a graph and of the graphs within it.
void add_fusions(const PreparedGraph& graph, std::vector<std::string>& places);

/// Whether these operands of the normalisation are for it.
bool is_fused(Fusing fusing, const torch::jit::Stack& norm);

/// Whether what is added is for it, too: None, or a tensor of the input's dtype and sizes. Of
/// another one a sum in place keeps the normalisation's dtype and sizes, or is refused.
bool is_sum_fused(const torch::jit::Stack& norm, const c10::IValue& add);

/// Runs it: the operands of the normalisation, what is added (or None), and the pooling's.
at::Tensor run_fusion(const Fusion& fusion, const torch::jit::Stack& norm, const c10::IValue& add,
                      const torch::jit::Stack& pool);

}  // namespace demi::imported
