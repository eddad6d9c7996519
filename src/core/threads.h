// How many threads kernels use. One number for OpenMP and for the matrix library, which shares OpenMP's threads.
#pragma once

namespace snug {

int num_threads();
void set_num_threads(int threads);  // 0: as many as this process may run on

}  // namespace snug
