#!/bin/sh
# Everything that must hold in a release build: unit tests, then the program from outside.
set -eu
cd "$(dirname "$0")/.."
cmake --preset "${PRESET:-release}" >/dev/null
cmake --build --preset "${PRESET:-release}"
# Two at a time: threads that spin at barriers would take the processors from each other.
OMP_WAIT_POLICY=passive ctest --preset "${PRESET:-release}" -j2
# Whole steps once more as on a machine with more processors: workspaces grow with them.
OMP_WAIT_POLICY=passive OMP_NUM_THREADS=5 ctest --preset "${PRESET:-release}" -j2 -R 'Plans/|Generation|KeptLayers|Recomputing'
python3 -m unittest discover -s tests/e2e -p '*_test.py' -v
