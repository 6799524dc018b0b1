#pragma once

// What modules_in_libtorch_test.cpp tries: each class that demi offers as a module of LibTorch.
#include <torch/torch.h>

#include "demi/core/source_dir_testing.h"
#include "demi/imported/imported_model.h"
#include "demi/nn/batch_norm.h"
#include "demi/nn/transformer_block.h"
#include "lab/models/fashion_cnn.h"
#include "lab/models/gpt.h"
#include "lab/models/lstm_classifier.h"
#include "lab/models/mlp.h"
#include "lab/models/resnet.h"
#include "lab/models/simple_cnn.h"
#include "lab/models/vgg.h"

namespace demi::every_module {

using at::Tensor;

inline Tensor pictures(int channels, int size) { return torch::randn({4, channels, size, size}); }

// Of each a new module, a batch of 4 for it, and the name by which it is printed.

struct OfNorm {
  using Holder = nn::Norm;
  static Holder make() { return Holder(nn::NormOptions{.width = 8}); }
  static Tensor input() { return torch::randn({4, 8}); }
  static constexpr const char* kName = "demi::nn::Norm(8, layer_norm";
};
struct OfBatchNorm2d {
  using Holder = nn::BatchNorm2d;
  static Holder make() { return Holder(nn::BatchNorm2dOptions(3).relu(true).pool(2)); }
  static Tensor input() { return pictures(3, 5); }
  static constexpr const char* kName = "demi::nn::BatchNorm2d(3";
};
struct OfFeedForward {
  using Holder = nn::FeedForward;
  static Holder make() {
    return Holder(nn::FeedForwardOptions{.width = 8, .activation = nn::Activation::swiglu});
  }
  static Tensor input() { return torch::randn({4, 3, 8}); }
  static constexpr const char* kName = "demi::nn::FeedForward(8";
};
struct OfSelfAttention {
  using Holder = nn::SelfAttention;
  static Holder make() {
    return Holder(
        nn::SelfAttentionOptions{.width = 16, .heads = 4, .key_heads = 2, .qk_norm = true});
  }
  static Tensor input() { return torch::randn({4, 5, 16}); }
  static constexpr const char* kName = "demi::nn::SelfAttention(16";
};
struct OfTransformerBlock {
  using Holder = nn::TransformerBlock;
  static Holder make() {
    return Holder(nn::TransformerBlockOptions{.width = 16, .heads = 2, .residual_dropout = 0.25});
  }
  static Tensor input() { return torch::randn({4, 5, 16}); }
  static constexpr const char* kName = "demi::nn::TransformerBlock(";
};

inline Tensor tokens() { return torch::randint(11, {4, 6}, torch::kLong); }

struct OfMLP {
  using Holder = models::MLP;
  static Holder make() { return Holder(models::MLPOptions{.in = 6, .out = 3}); }
  static Tensor input() { return torch::randn({4, 6}); }
  static constexpr const char* kName = "demi::models::MLP";
};
struct OfSimpleCNN {
  using Holder = models::SimpleCNN;
  static Holder make() { return Holder(models::SimpleCNNOptions{.size = 8}); }
  static Tensor input() { return pictures(3, 8); }
  static constexpr const char* kName = "demi::models::SimpleCNN";
};
struct OfFashionCNN {
  using Holder = models::FashionCNN;
  static Holder make() { return {}; }
  static Tensor input() { return pictures(1, 8); }
  static constexpr const char* kName = "demi::models::FashionCNN";
};
struct OfResNet {
  using Holder = models::ResNet;
  static Holder make() {
    return Holder(models::ResNetOptions{.depths = {2, 1, 1, 1}, .recompute = Keep::nothing});
  }
  static Tensor input() { return pictures(3, 16); }
  static constexpr const char* kName = "demi::models::ResNet";
};
struct OfVGG19 {
  using Holder = models::VGG19;
  static Holder make() { return {}; }
  static Tensor input() { return pictures(3, 32); }
  static constexpr const char* kName = "demi::models::VGG19";
};
struct OfLSTMClassifier {
  using Holder = models::LSTMClassifier;
  static Holder make() {
    return Holder(models::LSTMClassifierOptions{.vocabulary = 11,
                                                .embedding = 4,
                                                .hidden = 5,
                                                .pool = models::Pool::mean,
                                                .bidirectional = true});
  }
  static Tensor input() { return tokens(); }
  static constexpr const char* kName = "demi::models::LSTMClassifier";
};
template <models::GPTForm form, bool tied>
struct OfGPT {
  using Holder = models::GPT;
  static Holder make() {
    return Holder(models::GPTOptions{.vocabulary = 11,
                                     .context = 8,
                                     .width = 16,
                                     .layers = 2,
                                     .heads = 2,
                                     .form = form,
                                     .dropout = 0.25,
                                     .tied_head = tied,
                                     .recompute = Keep::nothing});
  }
  static Tensor input() { return tokens(); }
  static constexpr const char* kName = "demi::models::GPT";
};

/// A file of tests/fixtures/imported/make.py, with a tied weight, a frozen bias and batch norm.
template <const char* file, const char* output>
struct OfImportedModel {
  using Holder = ImportedModel;
  static Holder make() {
    Holder model(source_dir() / "tests/fixtures/imported" / file);
    model->select_output(output);
    return model;
  }
  static Tensor input() { return pictures(3, 5); }
  static constexpr const char* kName = "ImportedModel";
};
inline constexpr char kGraph[] = "small.pt2", kScript[] = "script.pt";
inline constexpr char kLogits[] = "logits", kRest[] = "rest";

}  // namespace demi::every_module
