#!/bin/sh
# Everything that must hold in a release build: unit tests, then the program from outside.
set -eu
cd "$(dirname "$0")/.."
cmake --preset ci >/dev/null
cmake --build --preset ci
ctest --preset ci -j2
python3 -m unittest discover -s tests/e2e -p '*_test.py' -v
