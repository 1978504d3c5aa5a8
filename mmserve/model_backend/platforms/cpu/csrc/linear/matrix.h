// A linear layer's weights and bias, as Python describes them.
#pragma once

#include <cstdint>

namespace linear {

struct Matrix {
    const void* panels;
    const float* bias;  // or null
    int64_t weights;    // their storage format, as in mm_linear
    int64_t in, out;
};

}  // namespace linear
