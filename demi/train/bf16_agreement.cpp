#include "demi/train/bf16_agreement.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <set>

#include "demi/core/bf16_products.h"
#include "demi/core/crc32c.h"
#include "demi/optim/muon.h"
#include "demi/step/matrices.h"
#include "demi/tensor/dtype.h"

namespace demi::train {
namespace {

void warn_if_matrices_differ(const Setup& setup) {
  const std::string products = matrix_products_of(setup);
  const std::uint64_t number = crc32c(products), of_first = setup.ranks.of_first(number);
  const double others = setup.ranks.totals({number == of_first ? 0.0 : 1.0}).front();
  if (others == 0 || !setup.ranks.is_first()) return;
  TORCH_WARN("[train.Trainer] Muon's products run in ", products,
             " on rank 0 and in another dtype ", "on ", others, " of ",
             setup.ranks.group()->world_size(), " ranks: ",
             setup.shards.empty()
                 ? "the weights of the ranks drift apart, unless they share the optimizer's state "
                   "(shard_optimizer)"
                 : "the results depend on which rank computes which matrix",
             "; MuonOptions::products, or DEMI_BF16_PRODUCTS=fp32, alike on all ranks gives them "
             "one dtype");
}

/// The text of the checkpoint, if it has another than this run's; else "".
std::string other_text(const checkpoint::Metadata& text, const char* key, const std::string& own) {
  const auto saved = text.find(key);
  return saved == text.end() || own.empty() || saved->second == own ? "" : saved->second;
}

}  // namespace

std::string bf16_way_of(const Setup& setup) {
  const bool has_products =
      setup.options.device.is_cpu() && setup.precision.autocast == c10::kBFloat16;
  return has_products ? std::string(name_of(bf16_products())) : "";
}

std::string matrix_products_of(const Setup& setup) {
  std::set<std::string> dtypes;
  for (const auto& optimizer : setup.options.optimizers)
    for (const auto& group : optimizer->param_groups()) {
      const auto* muon = dynamic_cast<const optim::MuonOptions*>(&group.options());
      if (!muon) continue;
      for (const at::Tensor& parameter : group.params())
        dtypes.insert(
            tensor::name_of(optim::product_dtype(parameter, {.products = muon->products()})));
    }
  return fmt::format("{}", fmt::join(dtypes, ", "));
}

std::string difference_of_ranks(double in_bf16, double through_fp32) {
  if (in_bf16 == 0 || through_fp32 == 0) return "";
  return fmt::format(
      "bf16 products run as bf16 on {} of {} ranks and through FP32 on the others: the last bits "
      "of the results depend on which rank runs where; set DEMI_BF16_PRODUCTS to bf16 or fp32 on "
      "all ranks",
      in_bf16, in_bf16 + through_fp32);
}

void warn_if_ranks_differ(const Setup& setup) {
  if (!setup.ranks.are_several()) return;
  warn_if_matrices_differ(setup);
  const std::string way = bf16_way_of(setup);
  const auto sums = setup.ranks.totals({way == name_of(Bf16Products::bf16) ? 1.0 : 0.0,
                                        way == name_of(Bf16Products::fp32) ? 1.0 : 0.0});
  const std::string difference = difference_of_ranks(sums[0], sums[1]);
  if (setup.ranks.is_first() && !difference.empty()) {
    TORCH_WARN("[train.Trainer] ", difference);
  }
}

void warn_if_resumed_otherwise(const checkpoint::Metadata& text, const Setup& setup) {
  if (!setup.ranks.is_first()) return;
  const std::string way = bf16_way_of(setup), products = matrix_products_of(setup);
  if (const std::string saved = other_text(text, kBf16ProductsText, way); !saved.empty()) {
    TORCH_WARN("[train.Trainer.resume] the run that is resumed computed its bf16 products in ",
               saved, ", and this processor's are computed in ", way,
               ": its steps will differ in the last bits from those that it would have taken; "
               "DEMI_BF16_PRODUCTS=",
               saved, " computes them as before");
  }
  if (const std::string saved = other_text(text, kMatrixProductsText, products); !saved.empty()) {
    TORCH_WARN("[train.Trainer.resume] the run that is resumed computed Muon's products in ", saved,
               ", and this one computes them in ", products,
               ": its steps will differ from those that it would have taken, by the roundings of "
               "bf16; MuonOptions::products chooses the dtype");
  }
}

}  // namespace demi::train
