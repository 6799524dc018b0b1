#include "demi/nn/loss_by_classes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "demi/nn/is_argmax.h"
#include "demi/tensor/dtype.h"

// The loss and its gradient are those of loss_pieces.cpp. The sum of exponentials over blocks keeps
// the largest logit so far (Milakov and Gimelshein, Online normalizer calculation for softmax,
// 2018, algorithm 3).
namespace demi::nn {
namespace {

// Rows and classes from which on it is faster to work by classes.
constexpr std::int64_t kFewRows = 64, kFewClasses = 4096;
// Classes of a block, the most and the least: with 512 rows the most give logits of 3 MiB in FP32.
constexpr std::int64_t kLargestBlock = 1536, kLeastClasses = 64;
// A block's share of all logits, which oneDNN's own memory and 16-bit copies come to. With a soft
// cap its slope is there, too.
constexpr std::int64_t kShare = 32, kShareWithCap = 64;

std::int64_t classes_of_block(const HeadAndTargets& of, std::int64_t rows) {
  const std::int64_t all = of.input.size(0) * of.weight.size(0),
                     some = all / (of.softcap > 0 ? kShareWithCap : kShare) / rows;
  return std::max(kLeastClasses, std::min(some, kLargestBlock) / kLeastClasses * kLeastClasses);
}

/// Sums of some rows over the classes so far: (rows, 1); best and right: (rows).
struct RowSums {
  at::Tensor largest, sum_exp;  // sum_exp of exp(logit - largest)
  at::Tensor at_target;
  at::Tensor weighted;     // sum of class weight times logit, where labels are smoothed
  at::Tensor best, right;  // the largest logit, and whether it is the target's (rows); or undefined

  at::Tensor log_sum_exp() const { return largest + sum_exp.log(); }
};

class ByClasses {
 public:
  ByClasses(const HeadAndTargets& of, const at::Tensor& row_scale, WantedGradients wanted,
            bool right)
      : of_(of), scale_(row_scale), wanted_(wanted), options_(of.input.options().dtype(of.sums)) {
    result_.losses = at::empty({of.input.size(0)}, options_);
    if (wanted.input) result_.input = at::zeros(of.input.sizes(), options_);
    if (wanted.weight) result_.weight = at::empty(of.weight.sizes(), options_);
    if (wanted.bias) result_.bias = at::zeros({classes_}, options_);
    if (right) result_.right = at::empty({of.input.size(0)}, options_.dtype(at::kBool));
    sum_of_weights_ = of.class_weight.defined() ? of.class_weight.sum()
                                                : at::full({}, double(classes_), options_);
  }

  LossPieces run() {
    const std::int64_t all = of_.input.size(0);
    for (std::int64_t first = 0; first < all; first += of_.rows)
      some_rows(first, std::min(of_.rows, all - first));
    return std::move(result_);
  }

 private:
  struct Rows {
    std::int64_t first, count;
    at::Tensor input;           // (rows, D) in the products' dtype
    at::Tensor target, counts;  // (rows)
    at::Tensor weight;          // (rows, 1): target_weights
  };

  struct Block {
    std::int64_t first, count;
    at::Tensor weight;  // (classes, D) in the products' dtype
  };

  template <class Work>
  void each_block(const Rows& rows, Work work) const {
    const std::int64_t step = classes_of_block(of_, rows.count);
    for (std::int64_t first = 0; first < classes_; first += step) {
      const std::int64_t count = std::min(step, classes_ - first);
      work(Block{first, count, of_.weight.narrow(0, first, count).to(of_.products)});
    }
  }

  void some_rows(std::int64_t first, std::int64_t count) {
    Rows rows{.first = first,
              .count = count,
              .input = of_.input.narrow(0, first, count).to(of_.products),
              .target = of_.target.narrow(0, first, count),
              .counts = of_.counts.narrow(0, first, count)};
    rows.weight = rows.counts.to(of_.sums);
    if (of_.class_weight.defined()) rows.weight.mul_(of_.class_weight.index_select(0, rows.target));
    rows.weight = rows.weight.unsqueeze(1);
    const RowSums sums = sums_of(rows);
    const at::Tensor lse = sums.log_sum_exp();
    result_.losses.narrow(0, first, count).copy_(losses(rows, sums, lse));
    if (sums.right.defined())
      result_.right.narrow(0, first, count).copy_(sums.right.logical_and(rows.counts));
    if (wanted_.any()) gradients(rows, lse);
  }

  /// (rows, classes of the block), and in `slope` the derivative of the soft cap, if there is one.
  at::Tensor logits(const Rows& rows, const Block& block, at::Tensor* slope) const {
    at::Tensor z = at::mm(rows.input, block.weight.t()).to(of_.sums);
    if (of_.bias.defined()) z.add_(of_.bias.narrow(0, block.first, block.count));
    if (of_.softcap == 0) return z;
    z.div_(of_.softcap).tanh_();
    if (slope) *slope = z.square().neg_().add_(1);
    return z.mul_(of_.softcap);
  }

  /// (rows, 1): the target's column in the block, 0 outside of it; and whether it is inside.
  static std::pair<at::Tensor, at::Tensor> column_of(const at::Tensor& target, const Block& block) {
    const at::Tensor column = target.unsqueeze(1) - block.first;
    const at::Tensor inside = column.ge(0).logical_and_(column.lt(block.count));
    return {column.masked_fill(inside.logical_not(), 0), inside};
  }

  RowSums sums_of(const Rows& rows) const {
    const auto filled = [&](double with) { return at::full({rows.count, 1}, with, options_); };
    // The lowest number, not -Inf: of a block in which all logits are -Inf, exp(-Inf - largest) is
    // 0.
    RowSums sums{.largest = filled(std::numeric_limits<float>::lowest()),
                 .sum_exp = filled(0),
                 .at_target = filled(0),
                 .weighted = filled(0)};
    if (result_.right.defined()) {
      sums.best = at::full({rows.count}, -std::numeric_limits<double>::infinity(), options_);
      sums.right = at::zeros({rows.count}, options_.dtype(at::kBool));
    }
    each_block(rows, [&](const Block& block) { add_block(rows, block, sums); });
    return sums;
  }

  void add_block(const Rows& rows, const Block& block, RowSums& sums) const {
    at::Tensor z = logits(rows, block, nullptr);
    const auto [column, inside] = column_of(rows.target, block);
    sums.at_target = at::where(inside, z.gather(1, column), sums.at_target);
    if (of_.smoothing > 0) {
      const at::Tensor sum =
          of_.class_weight.defined()
              ? z.mv(of_.class_weight.narrow(0, block.first, block.count)).unsqueeze(1)
              : z.sum(1, true);
      sums.weighted.add_(sum);
    }
    const at::Tensor most = z.amax(1, true);
    if (sums.right.defined())
      add_right(z, column.squeeze(1), inside.squeeze(1), most.squeeze(1), sums);
    const at::Tensor largest = at::maximum(sums.largest, most);
    sums.sum_exp.mul_(sums.largest.sub_(largest).exp_()).add_(z.sub_(largest).exp_().sum(1, true));
    sums.largest = largest;
  }

  /// The first of equal logits counts as the largest, and NaN is larger than all, as in argmax.
  static void add_right(const at::Tensor& z, const at::Tensor& column, const at::Tensor& inside,
                        const at::Tensor& most, RowSums& sums) {
    const at::Tensor better =
        most.gt(sums.best).logical_or_(most.isnan().logical_and_(sums.best.isnan().logical_not()));
    const at::Tensor here = is_argmax(z, column, most).logical_and_(inside);
    sums.right = at::where(better, here, sums.right);
    sums.best = at::where(better, most, sums.best);
  }

  at::Tensor losses(const Rows& rows, const RowSums& sums, const at::Tensor& lse) const {
    const double e = of_.smoothing;
    at::Tensor loss = (1 - e) * rows.weight * (lse - sums.at_target);
    if (e > 0) loss += e / double(classes_) * (sum_of_weights_ * lse - sums.weighted);
    return loss.squeeze(1).masked_fill_(rows.counts.logical_not(), 0);
  }

  void gradients(const Rows& rows, const at::Tensor& lse) {
    const double e = of_.smoothing, share = e / double(classes_);
    const at::Tensor scale = scale_.narrow(0, rows.first, rows.count).unsqueeze(1);
    at::Tensor of_softmax = (1 - e) * rows.weight;
    if (e > 0) of_softmax = of_softmax + share * sum_of_weights_;
    of_softmax = of_softmax * scale;
    const at::Tensor of_target = (e - 1) * rows.weight * scale;
    each_block(rows, [&](const Block& block) {
      at::Tensor slope, z = logits(rows, block, &slope);
      z.sub_(lse).exp_().mul_(of_softmax);
      const auto [column, inside] = column_of(rows.target, block);
      z.scatter_add_(1, column, of_target.masked_fill(inside.logical_not(), 0));
      if (e > 0 && of_.class_weight.defined())
        z.addr_(scale.squeeze(1), of_.class_weight.narrow(0, block.first, block.count), 1, -share);
      else if (e > 0)
        z.sub_(share * scale);
      if (slope.defined()) z.mul_(slope);
      add_gradients(rows, block, z);
    });
  }

  void add_gradients(const Rows& rows, const Block& block, const at::Tensor& z) {
    if (wanted_.bias) result_.bias.narrow(0, block.first, block.count).add_(z.sum(0));
    if (!wanted_.input && !wanted_.weight) return;
    const at::Tensor of_logits = z.to(of_.products);
    if (wanted_.input)
      result_.input.narrow(0, rows.first, rows.count).add_(at::mm(of_logits, block.weight));
    if (!wanted_.weight) return;
    at::Tensor to = result_.weight.narrow(0, block.first, block.count);
    const at::Tensor more = at::mm(of_logits.t(), rows.input);
    rows.first == 0 ? to.copy_(more) : to.add_(more);
  }

  const HeadAndTargets& of_;
  const at::Tensor& scale_;
  const WantedGradients wanted_;
  const at::TensorOptions options_;
  const std::int64_t classes_ = of_.weight.size(0);
  at::Tensor sum_of_weights_;  // ()
  LossPieces result_;
};

}  // namespace

bool is_faster_by_classes(const HeadAndTargets& of) {
  return of.input.is_cpu() && !of.kernels && tensor::is_16_bit(of.products) &&
         of.input.size(0) >= kFewRows && of.weight.size(0) >= kFewClasses;
}

LossPieces loss_by_classes(const HeadAndTargets& of, const at::Tensor& row_scale,
                           WantedGradients wanted, bool right) {
  return ByClasses(of, row_scale, wanted, right).run();
}

}  // namespace demi::nn
