// A linear layer's weights and bias, as Python describes them.
#pragma once

#include <cstdint>

#include "linear/ways.h"

namespace linear {

struct Matrix {
    const void* panels;
    const float* bias;  // or null
    int64_t weights;    // their storage format, as in mm_linear
    int64_t in, out;

    // Whether products take so long that waiting for other threads after each takes little beside it.
    bool multiplies_floats() const { return weights == kFloat32 || weights == kBfloat16; }
};

}  // namespace linear
