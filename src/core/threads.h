// How many threads kernels use. One number for OpenMP and for the matrix library, which shares
// OpenMP's threads.
#pragma once

namespace snug {

int num_threads();
void set_num_threads(int threads);  // 0: as many as this process may run on

// Lets threads sleep where they wait for each other, unless the environment says how they wait.
// They would spin, which beside other programs takes the processors from the very threads they wait
// for: a training beside a compiler was ten times slower. OpenMP's library decides this when it is
// loaded, so the program starts once more; call it first in main().
void sleep_at_barriers(char** argv);

}  // namespace snug
