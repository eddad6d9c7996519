#!/bin/sh
# The unit tests under AddressSanitizer and UndefinedBehaviorSanitizer.
set -eu
cd "$(dirname "$0")/.."
cmake --preset asan >/dev/null
cmake --build --preset asan
# Two at a time: threads that spin at barriers would take the processors from each other.
OMP_WAIT_POLICY=passive ctest --preset asan -j2
