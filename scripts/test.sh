#!/bin/sh
# Everything that must hold in a release build: unit tests, then the program from outside.
set -eu
cd "$(dirname "$0")/.."
cmake --preset "${PRESET:-release}" >/dev/null
cmake --build --preset "${PRESET:-release}"
ctest --preset "${PRESET:-release}" -j2
python3 -m unittest discover -s tests/e2e -p '*_test.py' -v
