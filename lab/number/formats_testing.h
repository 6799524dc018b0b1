#pragma once

#include "demi/core/dtype.h"

namespace demi::number {

inline const Format& kFp64 = format_of(Dtype::fp64);
inline const Format& kFp32 = format_of(Dtype::fp32);
inline const Format& kTf32 = format_of(Dtype::tf32);
inline const Format& kFp16 = format_of(Dtype::fp16);
inline const Format& kBf16 = format_of(Dtype::bf16);
inline const Format& kE4m3 = format_of(Dtype::fp8_e4m3);
inline const Format& kE5m2 = format_of(Dtype::fp8_e5m2);
inline const Format& kE2m1 = format_of(Dtype::fp4_e2m1);

}  // namespace demi::number
