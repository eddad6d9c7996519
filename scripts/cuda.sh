#!/bin/sh
# Builds for NVIDIA GPUs into build-cuda/. ARCHS names compute capabilities ("80;90"); without it, the GPU that is here,
# or a spread from 7.5 to 9.0 where there is none.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/cuda/bin
export PATH
command -v nvcc >/dev/null || { echo "error: nvcc is not here; install the CUDA toolkit 12.4 or newer" >&2; exit 1; }
if [ -z "${ARCHS:-}" ]; then
  ARCHS=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | paste -sd ';') || true
  [ -n "$ARCHS" ] || ARCHS="75;80;90"
fi
mkdir -p build-cuda
cublas=$(scripts/find-cublas.sh "$PWD/build-cuda/cublas")
cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES="$ARCHS" -DSNUG_CUBLAS="$cublas" >/dev/null
cmake --build --preset cuda --target snug_program cuda_test gpu_bench
# What has no archive to link statically goes beside the program, if it is not there yet.
mkdir -p build-cuda/lib
ldd build-cuda/bin/snug | awk '/libsimdjson|libhwy|libgomp|libsentencepiece/ && $3 !~ "/build-cuda/bin/" {print $3}' |
  xargs -r -I{} cp -L {} build-cuda/lib/
echo "built build-cuda/bin/snug for compute capability $ARCHS"
