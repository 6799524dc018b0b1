#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "demi/core/state_dict.h"
#include "demi/kernels/step_table.h"
#include "demi/step/matrix_options.h"

namespace demi::optim {

using torch::optim::OptimizerOptions;

/// The options of one group by their names, in place.
using OptionList = std::vector<std::pair<
    const char*, std::variant<double*, bool*, int64_t*, AdjustLr*, std::tuple<double, double>*,
                              std::tuple<double, double, double>*>>>;

/// The definition of an optimizer: the rule of its update, and the options of its groups.
struct Rule {
  kernels::UpdateRule id;
  std::string name;      // "AdamW"
  std::string accepted;  // types of options
  std::function<std::unique_ptr<OptimizerOptions>()> fresh;
  std::function<bool(const OptimizerOptions&)> is_own;
  /// Null: not of LibTorch's options of the same name.
  std::function<std::unique_ptr<OptimizerOptions>(const OptimizerOptions&)> from_libtorch;
  std::function<OptionList(OptimizerOptions& own)> list;
  std::function<kernels::Group(const OptimizerOptions& own)> numbers;
  /// The tensors, by name, of a state of LibTorch's optimizer of the same name; false for any
  /// other. None: those that LibTorch's SGD, Adam and AdamW have are known.
  std::function<bool(const torch::optim::OptimizerParamState& given,
                     std::map<std::string, at::Tensor>& to)>
      state_of_libtorch = nullptr;
  /// How a group's matrices become orthogonal, for a rule of matrices. Throws UsageError for an
  /// option out of its range.
  std::function<MatrixOptions(const OptimizerOptions& own)> matrices = nullptr;
};

/// `list`: OptionList(Options&); `numbers`: kernels::Group(const Options&), which leaves options
/// that the rule does not have at their defaults.
template <class Options, class List, class Numbers>
Rule make_rule(kernels::UpdateRule id, const std::string& name, List list, Numbers numbers) {
  constexpr bool kIsLibTorchs = requires { typename Options::Torch; };
  const std::string type = name + "Options";
  return {
      .id = id,
      .name = name,
      .accepted = "demi::optim::" + type + (kIsLibTorchs ? ", torch::optim::" + type : ""),
      .fresh = [] { return std::make_unique<Options>(); },
      .is_own = [](const OptimizerOptions& given) { return dynamic_cast<const Options*>(&given); },
      .from_libtorch = [](const OptimizerOptions& given) -> std::unique_ptr<OptimizerOptions> {
        if constexpr (kIsLibTorchs)
          if (const auto* torchs = dynamic_cast<const typename Options::Torch*>(&given))
            return std::make_unique<Options>(*torchs);
        return nullptr;
      },
      .list = [list](OptimizerOptions& own) { return list(static_cast<Options&>(own)); },
      .numbers =
          [numbers](const OptimizerOptions& own) {
            return numbers(static_cast<const Options&>(own));
          }};
}

/// Every rule, in the order of demi/kernels/rules/list.h.
std::span<const Rule* const> all_rules();

/// The rule of these options: the one that demi's name, and for LibTorch's the one of the same
/// name. Throws UsageError for options of another type.
const Rule& rule_of(const OptimizerOptions& options);

/// The rules of an optimizer's parameters or groups, in their order.
using Rules = std::vector<const Rule*>;
/// The name of the rule if all have the same, else the name of each: "SGD, AdamW".
std::string name_of(const Rules& of_groups);

/// Options of the rule's own type. Throws UsageError for those of another optimizer.
std::unique_ptr<OptimizerOptions> own_options(const Rule& rule, const OptimizerOptions& given);
/// Such options for a group that was given these. As in LibTorch 2.15, an option that has the value
/// of fresh options was not set, and is that of `defaults`, which are of the rule's type.
std::unique_ptr<OptimizerOptions> merged_options(const Rule& rule, const OptimizerOptions& given,
                                                 const OptimizerOptions& defaults);
/// Assigns the options in place, since users hold references. `options`: of the rule's type.
void assign_options(const Rule& rule, torch::optim::OptimizerParamGroup& group,
                    const OptimizerOptions& options);

/// Throws UsageError, which names optimizer and option, if the value is below 0, Inf or NaN. For
/// options that only one rule has.
void require_not_negative(const std::string& optimizer, const char* option, double value);

/// How the matrices of a group become orthogonal, if the rule is one of matrices.
MatrixOptions matrices_of(const Rule& rule, const OptimizerOptions& options);
/// Throws UsageError for a parameter that a group with these options cannot have: one that is no
/// matrix, or has other rows than the group's split_rows.
void check_matrices(const Rule& rule, const OptimizerOptions& options, const at::Tensor& parameter);

/// The group's numbers for the kernels. Throws UsageError that names the optimizer and the option
/// that is out of its range.
kernels::Group numbers_of(const Rule& rule, const OptimizerOptions& options);

/// The options as plain numbers: a pair as "betas.0" and "betas.1", a flag as 0 or 1, a choice as
/// its number.
StateDict to_numbers(const Rule& rule, const OptimizerOptions& options);
/// A copy with these numbers in place of its own. Throws UsageError for a name that the rule does
/// not have, and for a flag that is neither 0 nor 1.
std::unique_ptr<OptimizerOptions> with_numbers(const Rule& rule, const OptimizerOptions& options,
                                               StateDict numbers);

}  // namespace demi::optim
