#pragma once

#include <cstdint>

namespace demi::kernels {

/// gelu: x times the normal distribution's share below x (Hendrycks and Gimpel, 2016).
/// gelu_tanh: their approximation by tanh, which GPT-2 has. silu: x sigmoid(x).
enum class Activation : std::uint8_t { gelu, gelu_tanh, silu };

}  // namespace demi::kernels
