#include "demi/train/bf16_agreement.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "demi/core/bf16_products.h"

namespace demi::train {

std::string bf16_way_of(const Setup& setup) {
  const bool has_products =
      setup.options.device.is_cpu() && setup.precision.autocast == c10::kBFloat16;
  return has_products ? std::string(name_of(bf16_products())) : "";
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
  const std::string way = bf16_way_of(setup);
  const auto sums = setup.ranks.totals({way == name_of(Bf16Products::bf16) ? 1.0 : 0.0,
                                        way == name_of(Bf16Products::fp32) ? 1.0 : 0.0});
  const std::string difference = difference_of_ranks(sums[0], sums[1]);
  if (setup.ranks.is_first() && !difference.empty()) {
    TORCH_WARN("[train.Trainer] ", difference);
  }
}

void warn_if_resumed_otherwise(const checkpoint::Metadata& text, const Setup& setup) {
  const auto saved = text.find(kBf16ProductsText);
  const std::string way = bf16_way_of(setup);
  if (saved == text.end() || way.empty() || saved->second == way || !setup.ranks.is_first()) return;
  TORCH_WARN("[train.Trainer.resume] the run that is resumed computed its bf16 products in ",
             saved->second, ", and this processor's are computed in ", way,
             ": its steps will differ in the last bits from those that it would have taken; "
             "DEMI_BF16_PRODUCTS=",
             saved->second, " computes them as before");
}

}  // namespace demi::train
