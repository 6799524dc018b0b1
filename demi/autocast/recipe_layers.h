#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "demi/quantization/recipe.h"

namespace demi {

/// A module that holds weights which a recipe is for.
struct RecipeLayer {
  std::string name;  // in the module that was asked
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> others;  // the module's other parameters, such as a bias
  bool is_linear;                  // else a convolution
};

/// The layers of a module, itself included, that a recipe is for, in the module's order: linear
/// layers, convolutions if it takes them, and of other modules (those of networks from Python, for
/// example) the parameters of two dimensions, and of more if it takes convolutions. Not embeddings
/// and recurrent layers.
std::vector<RecipeLayer> layers_of_recipe(const quantization::Recipe& recipe,
                                          const torch::nn::Module& module);

}  // namespace demi
