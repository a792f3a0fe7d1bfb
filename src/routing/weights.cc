#include "routing/weights.h"

#include <cstring>

#include "base/status.h"
#include "kernels/route.h"

namespace routecap {
namespace {

// The nearest half-precision number, ties to even. NaN stays NaN, and too large a number becomes an
// infinity.
uint16_t half_of(float value) {
    const auto bits = kernels::bits_as<uint32_t>(value);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
    if (magnitude < 0x38800000) {  // subnormal: units of 2^-24, which the addition rounds to
        const float units = kernels::bits_as<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (kernels::bits_as<uint32_t>(units) - 0x3f000000));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13);
}
uint16_t bfloat_of(float value) {
    const auto bits = kernels::bits_as<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint32_t bits_of(float value, int32_t dtype) {
    return dtype == ROUTECAP_DTYPE_F32    ? kernels::bits_as<uint32_t>(value)
           : dtype == ROUTECAP_DTYPE_BF16 ? bfloat_of(value)
                                          : half_of(value);
}

}  // namespace

int32_t check_weights_dtype(const Shape &shape, int32_t dtype) {
    if (shape.weight_bytes == 0)
        return report(ROUTECAP_ERR_DTYPE, "the routing has no weights: see config.weights_dtype");
    if (dtype == shape.weights_dtype || dtype == ROUTECAP_DTYPE_F32) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_DTYPE,
                  "weights of dtype %d are written as they are or as F32, not as %d",
                  shape.weights_dtype, dtype);
}

WeightWriter::WeightWriter(const Shape &shape, int32_t dtype, float missing)
    : shape_(shape),
      element_(weight_element_bytes(dtype)),
      widens_(dtype != shape.weights_dtype),
      missing_(bits_of(missing, dtype)) {}

bool WeightWriter::cell(void *dst, int64_t at, const uint8_t *row, uint32_t layer) const {
    uint8_t *to = static_cast<uint8_t *>(dst) + at * element_;
    const bool there = row != nullptr && shape_.weighted(row, layer);
    if (there && !widens_) {
        std::memcpy(to, shape_.weights(row, layer), shape_.weights_cell_bytes());
        return true;
    }
    for (uint32_t c = 0; c < shape_.k; c++) {
        const uint32_t bits = there ? kernels::bits_as<uint32_t>(kernels::element(
                                          shape_.weights(row, layer), shape_.weights_dtype, c))
                                    : missing_;
        std::memcpy(to + c * element_, &bits, element_);
    }
    return there;
}

}  // namespace routecap
