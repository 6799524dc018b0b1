#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

// A call of every op of the lists: FP32 arguments, without those that have a default in the schema.
namespace demi {

using Arguments = std::vector<c10::IValue>;
using Example = std::function<Arguments()>;

// Makes the arguments again, from the seed, at every call.
#define CALL(...) [] { return Arguments{__VA_ARGS__}; }

inline at::Tensor r(at::IntArrayRef sizes) { return torch::randn(sizes); }
inline at::Tensor positive(at::IntArrayRef sizes) { return torch::rand(sizes) * 0.8 + 0.1; }
inline at::Tensor signs(at::IntArrayRef sizes) {
  return torch::randint(0, 2, sizes).to(torch::kFloat) * 2 - 1;
}
inline at::Tensor classes(at::IntArrayRef sizes, int count) {
  return torch::randint(0, count, sizes, torch::kLong);
}
inline at::Tensor log_probabilities(at::IntArrayRef sizes) {
  return torch::log_softmax(r(sizes), 1);
}
inline at::Tensor symmetric(int n) { return torch::eye(n) * 4 + torch::full({n, n}, 0.25); }
inline std::vector<std::int64_t> ints(std::initializer_list<std::int64_t> values) { return values; }

inline std::map<std::string, Example> loss_examples() {
  const Example two = CALL(r({3, 4}), r({3, 4}));
  const Example with_signs = CALL(r({3, 4}), signs({3, 4}));
  return {
      {"binary_cross_entropy", CALL(positive({3, 4}), positive({3, 4}))},
      {"binary_cross_entropy_with_logits", CALL(r({3, 4}), positive({3, 4}))},
      {"cosine_embedding_loss", CALL(r({3, 4}), r({3, 4}), signs({3}))},
      {"cross_entropy_loss", CALL(r({3, 5}), classes({3}, 5))},
      {"ctc_loss.IntList", CALL(torch::log_softmax(r({6, 2, 4}), 2), classes({2, 3}, 3) + 1,
                                ints({6, 6}), ints({3, 3}))},
      {"ctc_loss.Tensor",
       CALL(torch::log_softmax(r({6, 2, 4}), 2), classes({2, 3}, 3) + 1,
            torch::full({2}, 6, torch::kLong), torch::full({2}, 3, torch::kLong))},
      {"hinge_embedding_loss", with_signs},
      {"huber_loss", two},
      {"kl_div", CALL(log_probabilities({3, 4}), positive({3, 4}))},
      {"l1_loss", two},
      {"margin_ranking_loss", CALL(r({4}), r({4}), signs({4}))},
      {"mse_loss", two},
      {"multi_margin_loss", CALL(r({3, 5}), classes({3}, 5))},
      {"multilabel_margin_loss", CALL(r({3, 4}), classes({3, 4}, 4))},
      {"multilabel_margin_loss_forward", CALL(r({3, 4}), classes({3, 4}, 4), 1)},
      {"nll_loss", CALL(log_probabilities({3, 5}), classes({3}, 5))},
      {"nll_loss2d", CALL(log_probabilities({1, 5, 3, 3}), classes({1, 3, 3}, 5))},
      {"poisson_nll_loss", CALL(r({3, 4}), positive({3, 4}), true, false, 1e-8, 1)},
      {"smooth_l1_loss", two},
      {"soft_margin_loss", with_signs},
      {"triplet_margin_loss", CALL(r({3, 4}), r({3, 4}), r({3, 4}))},
  };
}

inline std::map<std::string, Example> matrix_examples() {
  const Example conv1 = CALL(r({1, 2, 8}), r({3, 2, 3}), r({3}));
  const Example conv2 = CALL(r({1, 2, 5, 5}), r({3, 2, 3, 3}), r({3}));
  const Example conv3 = CALL(r({1, 2, 4, 4, 4}), r({3, 2, 2, 2, 2}), r({3}));
  return {
      {"_addmm_activation", CALL(r({4}), r({2, 3}), r({3, 4}))},
      {"_convolution.deprecated",
       CALL(r({1, 2, 5, 5}), r({3, 2, 3, 3}), r({3}), ints({1, 1}), ints({0, 0}), ints({1, 1}),
            false, ints({0, 0}), 1, false, false, true)},
      {"_native_multi_head_attention", CALL(r({1, 3, 4}), r({1, 3, 4}), r({1, 3, 4}), 4, 2,
                                            r({12, 4}), r({12}), r({4, 4}), r({4}))},
      {"addbmm", CALL(r({2, 4}), r({3, 2, 5}), r({3, 5, 4}))},
      {"addmm", CALL(r({2, 4}), r({2, 3}), r({3, 4}))},
      {"baddbmm", CALL(r({3, 2, 4}), r({3, 2, 5}), r({3, 5, 4}))},
      {"bmm", CALL(r({3, 2, 5}), r({3, 5, 4}))},
      {"conv1d", conv1},
      {"conv1d.padding", conv1},
      {"conv2d", conv2},
      {"conv2d.padding", conv2},
      {"conv3d", conv3},
      {"conv3d.padding", conv3},
      {"conv_tbc", CALL(r({5, 2, 3}), r({3, 3, 4}), r({4}))},
      {"conv_transpose1d", CALL(r({1, 2, 5}), r({2, 3, 3}), r({3}))},
      {"conv_transpose2d.input", CALL(r({1, 2, 5, 5}), r({2, 3, 3, 3}), r({3}))},
      {"conv_transpose3d.input", CALL(r({1, 2, 4, 4, 4}), r({2, 3, 2, 2, 2}), r({3}))},
      {"linalg_vecdot", CALL(r({2, 3}), r({2, 3}))},
      {"linear", CALL(r({2, 3, 4}), r({5, 4}), r({5}))},
      {"matmul", CALL(r({2, 3, 4}), r({4, 5}))},
      {"mm", CALL(r({2, 3}), r({3, 4}))},
      {"prelu", CALL(r({2, 3}), r({3}))},
      {"scaled_dot_product_attention", CALL(r({1, 2, 4, 8}), r({1, 2, 4, 8}), r({1, 2, 4, 8}))},
  };
}

inline std::map<std::string, Example> linalg_examples() {
  const Example spd = CALL(symmetric(3));
  const Example tall = CALL(r({4, 3}));
  const Example signal = CALL(r({4, 6}));
  std::map<std::string, Example> table{
      {"_lu_with_info", spd},
      {"cdist", CALL(r({3, 4}), r({2, 4}))},
      {"cholesky", spd},
      {"cholesky_inverse", CALL(torch::eye(3) * 2)},
      {"cholesky_solve", CALL(r({3, 2}), torch::eye(3) * 2)},
      {"geqrf", tall},
      {"inverse", spd},
      {"linalg_cholesky", spd},
      {"linalg_cholesky_ex", spd},
      {"linalg_cond", spd},
      {"linalg_cond.p_str", CALL(symmetric(3), "fro")},
      {"linalg_eig", spd},
      {"linalg_eigh", spd},
      {"linalg_eigvals", spd},
      {"linalg_eigvalsh", spd},
      {"linalg_householder_product", CALL(r({4, 3}), r({3}))},
      {"linalg_inv", spd},
      {"linalg_inv_ex", spd},
      {"linalg_lstsq", CALL(r({4, 3}), r({4, 2}))},
      {"linalg_matrix_rank", CALL(r({4, 3}), 0.1)},
      {"linalg_matrix_rank.atol_rtol_float", tall},
      {"linalg_matrix_rank.atol_rtol_tensor", tall},
      {"linalg_matrix_rank.tol_tensor", CALL(r({4, 3}), torch::full({}, 0.1))},
      {"linalg_matrix_sqrth", spd},
      {"linalg_qr", tall},
      {"linalg_solve", CALL(symmetric(3), r({3, 2}))},
      {"linalg_svd", tall},
      {"linalg_svdvals", tall},
      {"linalg_tensorinv", CALL(symmetric(4), 1)},
      {"linalg_tensorsolve", CALL(symmetric(4), r({4}))},
      {"lu_solve", CALL(r({3, 2}), symmetric(3), torch::tensor({1, 2, 3}, torch::kInt))},
      {"orgqr", CALL(r({4, 3}), r({3}))},
      {"ormqr", CALL(r({4, 3}), r({3}), r({4, 2}))},
      {"pinverse", tall},
      {"qr", tall},
      {"stft",
       CALL(r({64}), 16, c10::IValue(), c10::IValue(), r({16}), false, c10::IValue(), true)},
      {"stft.center", CALL(r({64}), 16, c10::IValue(), c10::IValue(), r({16}), true, "reflect",
                           false, c10::IValue(), true)},
      {"svd", tall},
      {"trace", spd},
      {"triangular_solve", CALL(r({3, 2}), symmetric(3))},
  };
  for (const char* name :
       {"fft_fft", "fft_fft2", "fft_fftn", "fft_hfft", "fft_ifft", "fft_ifft2", "fft_ifftn",
        "fft_ihfft", "fft_irfft", "fft_irfft2", "fft_irfftn", "fft_rfft", "fft_rfft2", "fft_rfftn"})
    table[name] = signal;
  return table;
}

inline std::map<std::string, Example> other_examples() {
  const auto pool = ints({2, 2, 2});
  const Example volume = [pool] { return Arguments{r({1, 2, 4, 4, 4}), pool}; };
  const Example plane = CALL(r({1, 2, 4, 4}), torch::rand({1, 3, 3, 2}) * 2 - 1, 0, 0, false);
  const auto indices = torch::tensor({0, 3, 9, 14}, torch::kLong);
  return {
      {"_grid_sampler_2d_cpu_fallback", plane},
      {"adaptive_avg_pool3d", volume},
      {"adaptive_max_pool3d", volume},
      {"avg_pool3d", volume},
      {"cat", CALL(std::vector<at::Tensor>{r({2, 3}), r({2, 3})})},
      {"fake_quantize_per_tensor_affine", CALL(r({3, 4}), 0.1, 0, 0, 255)},
      {"fractional_max_pool2d",
       CALL(r({1, 2, 6, 6}), ints({2, 2}), ints({3, 3}), torch::rand({1, 2, 2}))},
      {"fractional_max_pool3d",
       CALL(r({1, 2, 6, 6, 6}), ints({2, 2, 2}), ints({3, 3, 3}), torch::rand({1, 2, 3}))},
      {"grid_sampler", plane},
      {"grid_sampler_2d", plane},
      {"grid_sampler_3d",
       CALL(r({1, 2, 4, 4, 4}), torch::rand({1, 3, 3, 3, 3}) * 2 - 1, 0, 0, false)},
      {"index_copy", CALL(r({4, 3}), 0, torch::tensor({2, 0}, torch::kLong), r({2, 3}))},
      {"max_pool3d", volume},
      {"max_unpool2d",
       [indices] {
         return Arguments{r({1, 1, 2, 2}), indices.view({1, 1, 2, 2}), ints({4, 4})};
       }},
      {"max_unpool3d", CALL(r({1, 1, 2, 2, 2}), torch::arange(8).view({1, 1, 2, 2, 2}) * 7,
                            ints({4, 4, 4}), ints({2, 2, 2}), ints({0, 0, 0}))},
      {"nanquantile", CALL(r({3, 5}), torch::tensor({0.25f, 0.5f}))},
      {"nanquantile.scalar", CALL(r({3, 5}), 0.5)},
      {"polar", CALL(positive({3}), r({3}))},
      {"prod", CALL(r({3, 4}))},
      {"prod.dim_int", CALL(r({3, 4}), 1)},
      {"quantile", CALL(r({3, 5}), torch::tensor({0.25f, 0.5f}))},
      {"quantile.scalar", CALL(r({3, 5}), 0.5)},
      {"reflection_pad1d", CALL(r({1, 2, 5}), ints({1, 1}))},
      {"reflection_pad2d", CALL(r({1, 2, 5, 5}), ints({1, 1, 1, 1}))},
      {"replication_pad1d", CALL(r({1, 2, 5}), ints({1, 1}))},
      {"replication_pad2d", CALL(r({1, 2, 5, 5}), ints({1, 1, 1, 1}))},
      {"replication_pad3d", CALL(r({1, 2, 4, 4, 4}), ints({1, 1, 1, 1, 1, 1}))},
      {"stack", CALL(std::vector<at::Tensor>{r({2, 3}), r({2, 3})})},
      {"view_as_complex", CALL(r({3, 2}))},
  };
}

// Ops of the named policy fp32_reductions, and other ops that CUDA lists and the CPU runs when a
// policy names them.
inline std::map<std::string, Example> reduction_examples() {
  const Example one = CALL(positive({3, 4}));
  std::map<std::string, Example> table{
      {"cosine_similarity", CALL(r({3, 4}), r({3, 4}))},
      {"cumprod", CALL(r({3, 4}), 1)},
      {"cumsum", CALL(r({3, 4}), 1)},
      {"dist", CALL(r({3, 4}), r({3, 4}))},
      {"frobenius_norm.dim", CALL(r({3, 4}), ints({1}))},
      {"group_norm", CALL(r({2, 4, 3}), 2, r({4}), r({4}))},
      {"layer_norm", CALL(r({3, 4}), ints({4}), r({4}), r({4}))},
      {"linalg_matrix_norm", CALL(r({3, 4}), 1)},
      {"linalg_matrix_norm.str_ord", CALL(r({3, 4}))},
      {"linalg_vector_norm", one},
      {"log_softmax.int", CALL(r({3, 4}), 1)},
      {"logsumexp", CALL(r({3, 4}), ints({1}))},
      {"native_layer_norm", CALL(r({3, 4}), ints({4}), r({4}), r({4}), 1e-5)},
      {"norm.Scalar", one},
      {"norm.ScalarOpt_dim", CALL(r({3, 4}), 2, ints({1}))},
      {"nuclear_norm", one},
      {"nuclear_norm.dim", CALL(r({3, 4}), ints({0, 1}))},
      {"pdist", one},
      {"pow.Scalar", CALL(2.0, r({3, 4}))},
      {"pow.Tensor_Scalar", CALL(positive({3, 4}), 1.5)},
      {"pow.Tensor_Tensor", CALL(positive({3, 4}), r({3, 4}))},
      {"renorm", CALL(r({3, 4}), 2, 0, 1.0)},
      {"rms_norm", CALL(r({3, 4}), ints({4}), r({4}))},
      {"softmax.int", CALL(r({3, 4}), 1)},
      {"sum", one},
      {"sum.dim_IntList", CALL(r({3, 4}), ints({1}))},
  };
  for (const char* name : {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2",
                           "log1p", "reciprocal", "rsqrt", "sinh", "tan", "softplus"})
    table[name] = one;
  for (const char* name : {"upsample_nearest1d", "_upsample_nearest_exact1d"})
    table[name] = CALL(r({1, 2, 4}), ints({8}));
  for (const char* name : {"upsample_nearest2d", "_upsample_nearest_exact2d"})
    table[name] = CALL(r({1, 2, 4, 4}), ints({8, 8}));
  for (const char* name : {"upsample_nearest3d", "_upsample_nearest_exact3d"})
    table[name] = CALL(r({1, 2, 4, 4, 4}), ints({8, 8, 8}));
  table["upsample_linear1d"] = CALL(r({1, 2, 4}), ints({8}), false);
  table["upsample_trilinear3d"] = CALL(r({1, 2, 3, 3, 3}), ints({6, 6, 6}), false);
  for (const char* name : {"upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d",
                           "_upsample_bicubic2d_aa"})
    table[name] = CALL(r({1, 2, 4, 4}), ints({8, 8}), false);
  return table;
}

inline const std::map<std::string, Example>& op_examples() {
  static const auto table = [] {
    auto all = loss_examples();
    for (auto&& part :
         {matrix_examples(), linalg_examples(), other_examples(), reduction_examples()})
      all.insert(part.begin(), part.end());
    return all;
  }();
  return table;
}

#undef CALL

/// Ops of the lists without an example, with the reason.
inline const std::map<std::string, std::string>& ops_without_example() {
  static const std::map<std::string, std::string> table{
      {"mkldnn_rnn_layer", "its packed weights come from LSTM only: Recurrent.* test it"},
      {"index_copy.dimname",
       "named tensors have no gradient here; the overload without names is tested"},
      {"prod.dim_Dimname",
       "named tensors have no gradient here; the overload without names is tested"},
  };
  return table;
}

}  // namespace demi
