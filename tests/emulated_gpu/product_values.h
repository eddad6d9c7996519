// Rows and columns of the matrices that the emulated cuBLASLt multiplies: between their type in
// memory and fp32.
#pragma once

#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace emulated {

size_t value_bytes(cudaDataType_t type);

// Of fp32, bf16, fp16 or int8; `begin` counts elements.
void read_values(cudaDataType_t type, const void* from, int64_t begin, std::span<float> values);

// To fp32, bf16 or fp16, to the nearest, ties to even.
void write_values(cudaDataType_t type, std::span<const float> values, void* to, int64_t begin);

// To the nearest with 10 bits of mantissa, ties to even.
void round_to_tf32(std::span<float> values);

}  // namespace emulated
