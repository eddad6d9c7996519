#!/bin/sh
# Runs clang-format with these flags over every C++ and CUDA file of the repository, new ones too: -i rewrites them, --dry-run -Werror
# says what it would change.
set -eu
cd "$(dirname "$0")/.."
git ls-files -z --cached --others --exclude-standard '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format-14 "$@"
