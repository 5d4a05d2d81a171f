// Rows of the router: n = number of experts.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// scores = sigmoid(logits) + offset.
OLMO_VEC_FUNCTION(void, sigmoid_scores, (const float* logits, float offset, float* scores, int64_t n))

// What top-k compares: scores + bias (null: none), NaN and -inf below every number.
OLMO_VEC_FUNCTION(void, selection_values, (const float* scores, const float* bias, float* values, int64_t n))

// Indices of the k largest values, descending, ties to the lower index. `values` come from selection_values and are
// used up.
OLMO_VEC_FUNCTION(void, take_top_k, (float* values, int64_t n, int64_t k, int32_t* indices))

// sum of counts * scores; *total = sum of scores.
OLMO_VEC_FUNCTION(float, count_dot, (const int32_t* counts, const float* scores, int64_t n, float* total))

// y = scale * (counts - centre).
OLMO_VEC_FUNCTION(void, centred_counts, (const int32_t* counts, float scale, float centre, float* y, int64_t n))

// In place: y, gradient of s / sum(s), becomes that of s.
OLMO_VEC_FUNCTION(void, normalised_backward_row, (const float* s, float* y, int64_t n))

// In place: y, gradient of the softmax s, becomes that of its inputs, plus along * s.
OLMO_VEC_FUNCTION(void, softmax_backward_row, (const float* s, float along, float* y, int64_t n))

// In place: y, gradient of s = sigmoid(x) + offset, becomes that of x.
OLMO_VEC_FUNCTION(void, sigmoid_backward_row, (const float* s, float offset, float* y, int64_t n))

// y += scale * e^(x - shift).
OLMO_VEC_FUNCTION(void, add_scaled_exp, (float scale, const float* x, float shift, float* y, int64_t n))

}  // namespace olmo::cpu
