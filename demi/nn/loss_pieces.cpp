#include "demi/nn/loss_pieces.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "demi/core/error.h"
#include "demi/nn/is_argmax.h"
#include "demi/nn/loss_by_classes.h"
#include "demi/products/no_autocast.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/native_stream.h"

// With p = softmax(z), target y, class weights w, smoothing e and C classes
// (torch.nn.CrossEntropyLoss):
//   loss = (1 - e) w_y (lse - z_y) + e / C (sum(w) lse - w . z)
//   dloss / dz_c = ((1 - e) w_y + e / C sum(w)) p_c - (1 - e) w_y [c = y] - e / C w_c
namespace demi::nn {
namespace {

// Fewer classes in a product do not pay.
constexpr std::int64_t kLeastBlock = 64;
// Classes of which a core's second-level cache holds weight, gradient and logits.
constexpr std::int64_t kCachedBlock = 256;
// cuBLAS's fast products of 16 bits want rows of a multiple of 16 bytes: with GPT-2's 50,257
// classes they took 5 to 7 times as long as with 50,304 on an H100.
constexpr std::int64_t kAlignment = 64;

class Pieces {
 public:
  Pieces(const HeadAndTargets& of, const at::Tensor& row_scale, WantedGradients wanted, bool right)
      : of_(of), scale_(row_scale), wanted_(wanted), options_(of.input.options().dtype(of.sums)) {
    result_.losses = at::empty({of.input.size(0)}, options_);
    // fp16: gradients of logits up to 1, which the loss scale cannot see to. A row whose own is Inf
    // or NaN spoils no other.
    if (of.products == at::kHalf && wanted.any() && row_scale.numel() > 0) {
      factor_ = row_scale.abs().nan_to_num(0, 0, 0).amax().clamp_min(1e-30).reciprocal();
      scale_ = scale_ * factor_;
    }
    if (of.kernels) weight_ = padded(of.weight.to(of.products));
    if (wanted.input) result_.input = at::empty(of.input.sizes(), options_);
    if (wanted.weight) result_.weight = at::zeros(weight_.sizes(), options_);
    if (wanted.bias) result_.bias = at::zeros({classes_}, options_);
    if (right) result_.right = at::empty({of.input.size(0)}, options_.dtype(at::kBool));
    if (of.class_weight.defined()) all_weights_ = of.class_weight.sum();
    if (of.kernels && of.bias.defined()) bias_ = of.bias.to(of.sums).contiguous();
  }

  LossPieces run() {
    const std::int64_t all = of_.input.size(0);
    const c10::OptionalDeviceGuard guard(
        of_.kernels && !of_.input.is_cpu() ? std::optional(of_.input.device()) : std::nullopt);
    for (std::int64_t first = 0; first < all; first += of_.rows) {
      const std::int64_t rows = std::min(of_.rows, all - first);
      of_.kernels ? piece_in_a_launch(first, rows) : piece(first, rows);
    }
    if (result_.weight.defined()) result_.weight = result_.weight.narrow(0, 0, classes_);
    if (factor_.defined())
      for (at::Tensor* gradient : {&result_.input, &result_.weight, &result_.bias})
        if (gradient->defined()) gradient->div_(factor_);
    return std::move(result_);
  }

 private:
  bool is_as_given() const {
    return of_.weight.scalar_type() == of_.products && of_.products == of_.sums;
  }

  /// Rows of 0 below the weight, up to a multiple of kAlignment.
  static at::Tensor padded(const at::Tensor& weight) {
    const std::int64_t more = (kAlignment - weight.size(0) % kAlignment) % kAlignment;
    if (more == 0 || !tensor::is_16_bit(weight.scalar_type())) return weight;
    return at::cat({weight, at::zeros({more, weight.size(1)}, weight.options())});
  }

  template <class Work>
  void each_block(std::int64_t rows, Work work) {
    const std::int64_t width = std::max<std::int64_t>(weight_.size(1), 1), all = weight_.size(0);
    // oneDNN holds as much again as a product reads and gives, on processors with AMX.
    const std::int64_t some = std::min(rows * all / (4 * width), all / 16);
    const std::int64_t block = is_as_given() || of_.kernels ? all : std::max(kLeastBlock, some);
    for (std::int64_t first = 0; first < all; first += block)
      work(first, std::min(block, all - first));
  }

  // A product of so few rows reads the weight once and computes little with it: each thread takes
  // blocks of it that its cache holds.
  bool runs_on_threads() const { return is_as_given() && of_.weight.is_cpu(); }

  template <class Work>
  void on_threads(Work work) {
    const std::int64_t blocks = (classes_ + kCachedBlock - 1) / kCachedBlock;
    at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const std::int64_t first = begin * kCachedBlock,
                         last = std::min(end * kCachedBlock, classes_);
      work(first, last);
    });
  }

  template <class Work>
  void each_cached_block(std::int64_t first, std::int64_t last, Work work) {
    for (; first < last; first += kCachedBlock) work(first, std::min(kCachedBlock, last - first));
  }

  at::Tensor weight_of(std::int64_t first, std::int64_t count) const {
    return weight_.narrow(0, first, count).to(of_.products);
  }

  at::Tensor logits(const at::Tensor& input) {
    at::Tensor z = at::empty({input.size(0), classes_}, options_);
    if (runs_on_threads())
      on_threads([&](std::int64_t first, std::int64_t last) {
        each_cached_block(first, last, [&](std::int64_t start, std::int64_t count) {
          at::Tensor part = z.narrow(1, start, count);
          at::mm_out(part, input, of_.weight.narrow(0, start, count).t());
        });
      });
    else
      each_block(input.size(0), [&](std::int64_t first, std::int64_t count) {
        at::Tensor part = z.narrow(1, first, count);
        if (of_.products == of_.sums)
          at::mm_out(part, input, weight_of(first, count).t());
        else
          part.copy_(at::mm(input, weight_of(first, count).t()));
      });
    if (of_.bias.defined()) z.add_(of_.bias.to(of_.sums));
    return z;
  }

  // Makes c tanh(z / c) of z. Its derivative, where it is wanted.
  at::Tensor cap(at::Tensor& z) const {
    if (of_.softcap == 0) return {};
    z.div_(of_.softcap).tanh_();
    at::Tensor slope;
    if (wanted_.any()) slope = z.square().neg_().add_(1);
    z.mul_(of_.softcap);
    return slope;
  }

  // Leaves exp(z - max) in z. (rows)
  at::Tensor losses(at::Tensor& z, const at::Tensor& target, const at::Tensor& weight,
                    const at::Tensor& largest, at::Tensor& sum_exp) {
    const double e = of_.smoothing;
    const at::Tensor at_target = z.gather(1, target.unsqueeze(1)).squeeze(1);
    at::Tensor smooth;
    if (e > 0) smooth = of_.class_weight.defined() ? z.mv(of_.class_weight) : z.sum(1);
    z.sub_(largest.unsqueeze(1)).exp_();
    sum_exp = z.sum(1);
    const at::Tensor lse = largest + sum_exp.log();
    at::Tensor loss = (1 - e) * weight * (lse - at_target);
    if (e > 0) loss += e / double(classes_) * (sum_of_weights() * lse - smooth);
    return loss;
  }

  at::Tensor sum_of_weights() const {
    return all_weights_.defined() ? all_weights_ : at::full({}, double(classes_), options_);
  }

  // Makes of exp(z - max) the gradient of z.
  void to_gradient(at::Tensor& z, const at::Tensor& target, const at::Tensor& weight,
                   const at::Tensor& scale, const at::Tensor& sum_exp) const {
    const double e = of_.smoothing, share = e / double(classes_);
    at::Tensor of_softmax = (1 - e) * weight;
    if (e > 0) of_softmax = of_softmax + share * sum_of_weights();
    z.mul_((of_softmax * scale / sum_exp).unsqueeze(1));
    z.scatter_add_(1, target.unsqueeze(1), ((e - 1) * weight * scale).unsqueeze(1));
    if (e > 0 && of_.class_weight.defined())
      z.addr_(scale, of_.class_weight, 1, -share);
    else if (e > 0)
      z.sub_((share * scale).unsqueeze(1));
  }

  void gradients(const at::Tensor& z, const at::Tensor& input, std::int64_t first_row) {
    const std::int64_t rows = input.size(0);
    at::Tensor of_input;
    if (wanted_.input) of_input = result_.input.narrow(0, first_row, rows);
    if (wanted_.bias)
      result_.bias.add_(z.narrow(1, 0, classes_).sum(0, /*keepdim=*/false, of_.sums));
    if (!wanted_.input && !wanted_.weight) return;
    if (runs_on_threads()) return gradients_on_threads(z, input, of_input);
    if (wanted_.input && !sums_blocks()) of_input.zero_();
    each_block(rows, [&](std::int64_t first, std::int64_t count) {
      const at::Tensor part = z.narrow(1, first, count).to(of_.products);
      if (wanted_.input && sums_blocks())
        add_block(of_input, first == 0, part, weight_of(first, count));
      else if (wanted_.input)
        add(of_input, part, weight_of(first, count));
      if (wanted_.weight) add(result_.weight.narrow(0, first, count), part.t(), input);
    });
  }

  // Each thread sums the gradient of the input over its classes.
  void gradients_on_threads(const at::Tensor& z, const at::Tensor& input, at::Tensor& of_input) {
    std::vector<at::Tensor> sums(static_cast<std::size_t>(at::get_num_threads()));
    on_threads([&](std::int64_t first, std::int64_t last) {
      at::Tensor& sum = sums[std::size_t(at::get_thread_num())];
      if (wanted_.input) sum = at::empty(input.sizes(), options_);
      each_cached_block(first, last, [&](std::int64_t start, std::int64_t count) {
        const at::Tensor part = z.narrow(1, start, count);
        if (wanted_.input) add_block(sum, start == first, part, of_.weight.narrow(0, start, count));
        if (wanted_.weight) result_.weight.narrow(0, start, count).addmm_(part.t(), input);
      });
    });
    if (wanted_.input) of_input.zero_();
    for (const at::Tensor& sum : sums)
      if (sum.defined()) of_input.add_(sum);
  }

  bool sums_blocks() const { return of_.products == of_.sums && of_.weight.is_cpu(); }

  /// Each block of classes has a sum of its own. A product that begins with the sum so far would
  /// add up all classes one after the other: of a million 7e-4 of the gradient is wrong then.
  static void add_block(at::Tensor& sum, bool is_first, const at::Tensor& a, const at::Tensor& b) {
    if (is_first)
      at::mm_out(sum, a, b);
    else
      sum.add_(at::mm(a, b));
  }

  void add(at::Tensor to, const at::Tensor& a, const at::Tensor& b) const {
    if (of_.products == of_.sums)
      to.addmm_(a, b);
    else if (a.is_cuda())
      at::addmm_out(to, to, a, b, of_.sums);
    else
      to.add_(at::mm(a, b));
  }

  /// Does what piece() does; the logits and their gradient have the products' dtype.
  void piece_in_a_launch(std::int64_t first, std::int64_t rows) {
    const at::Tensor
        input = of_.input.narrow(0, first, rows).to(of_.products),
        target = of_.target.narrow(0, first, rows), counts = of_.counts.narrow(0, first, rows),
        scale = (wanted_.any() ? scale_.narrow(0, first, rows) : counts).to(of_.sums).contiguous();
    at::Tensor weight = counts.to(of_.sums), losses = result_.losses.narrow(0, first, rows), right;
    if (of_.class_weight.defined()) weight.mul_(of_.class_weight.index_select(0, target));
    if (result_.right.defined()) right = result_.right.narrow(0, first, rows);
    at::Tensor z = at::mm(input, weight_.t());
    const auto numbers = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
    };
    const char* complaint = of_.kernels->cross_entropy(
        {.logits = z.mutable_data_ptr(),
         .storage = storage_of(z.scalar_type()),
         .bias = numbers(bias_),
         .target = target.const_data_ptr<std::int64_t>(),
         .row_weight = numbers(weight),
         .row_scale = numbers(scale),
         .class_weight = numbers(of_.class_weight),
         .sum_of_class_weights = numbers(all_weights_),
         .losses = losses.mutable_data_ptr<float>(),
         .right = right.defined() ? right.mutable_data_ptr<bool>() : nullptr,
         .rows = rows,
         .classes = classes_,
         .columns = z.size(1),
         .smoothing = static_cast<float>(of_.smoothing),
         .softcap = static_cast<float>(of_.softcap),
         .wants_gradient = wanted_.any()},
        tensor::native_stream(z.device()));
    if (complaint)
      throw DeviceError({.where = "nn.linear_cross_entropy",
                         .what = "the device refused the launch of cross entropy",
                         .seen = complaint});
    losses.masked_fill_(counts.logical_not(), 0);
    if (right.defined()) right.logical_and_(counts);
    if (wanted_.any()) gradients(z, input, first);
  }

  static kernels::Storage storage_of(c10::ScalarType dtype) {
    return dtype == at::kFloat  ? kernels::Storage::fp32
           : dtype == at::kHalf ? kernels::Storage::fp16
                                : kernels::Storage::bf16;
  }

  void piece(std::int64_t first, std::int64_t rows) {
    const at::Tensor input = of_.input.narrow(0, first, rows).to(of_.products),
                     target = of_.target.narrow(0, first, rows),
                     counts = of_.counts.narrow(0, first, rows);
    at::Tensor weight = counts.to(of_.sums);
    if (of_.class_weight.defined()) weight.mul_(of_.class_weight.index_select(0, target));
    at::Tensor z = logits(input), sum_exp;
    const at::Tensor slope = cap(z);
    const at::Tensor largest = z.amax(1);
    if (result_.right.defined())
      result_.right.narrow(0, first, rows)
          .copy_(is_argmax(z, target, largest).logical_and_(counts));
    result_.losses.narrow(0, first, rows)
        .copy_(losses(z, target, weight, largest, sum_exp).masked_fill_(counts.logical_not(), 0));
    if (!wanted_.any()) return;
    to_gradient(z, target, weight, scale_.narrow(0, first, rows), sum_exp);
    if (slope.defined()) z.mul_(slope);
    gradients(z, input, first);
  }

  const HeadAndTargets& of_;
  at::Tensor scale_;  // (rows), times factor_
  const WantedGradients wanted_;
  const at::TensorOptions options_;
  const std::int64_t classes_ = of_.weight.size(0);
  at::Tensor weight_ = of_.weight;  // (classes or more, D); in the products' dtype with kernels
  at::Tensor all_weights_;
  at::Tensor bias_;    // FP32, where there are kernels
  at::Tensor factor_;  // (), of the gradients until they are all added up
  LossPieces result_;
};

}  // namespace

at::Tensor target_weights(const HeadAndTargets& of) {
  at::Tensor weights = of.counts.to(of.sums);
  if (of.class_weight.defined()) weights.mul_(of.class_weight.index_select(0, of.target));
  return weights;
}

LossPieces loss_pieces(const HeadAndTargets& of, const at::Tensor& row_scale,
                       WantedGradients wanted, bool right) {
  const products::NoAutocast no_autocast;
  const at::NoGradGuard no_grad;
  if (is_faster_by_classes(of)) return loss_by_classes(of, row_scale, wanted, right);
  return Pieces(of, row_scale, wanted, right).run();
}

}  // namespace demi::nn
