#!/bin/sh
# The GPU's unit tests, in a share of their cases, and the program from outside, on the emulated GPU of
# tests/emulated_gpu: nvcc's headers are needed, a GPU is not.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/cuda/bin
export PATH
command -v nvcc >/dev/null || { echo "error: nvcc is not here; install the CUDA toolkit 12.4 or newer" >&2; exit 1; }
mkdir -p build-cuda
cublas=$(scripts/find-cublas.sh "$PWD/build-cuda/cublas")
cmake --preset emulated-gpu -DSNUG_CUBLAS="$cublas" >/dev/null
cmake --build --preset emulated-gpu
export SNUG_EVERY=${SNUG_EVERY:-7} OMP_NUM_THREADS=1
ctest --preset emulated-gpu -j2
# Older cards have other kernels, and the oldest another half type. Without what takes longest there.
for capability in 80 75; do
  SNUG_EMULATED_GPU=capability=$capability ctest --preset emulated-gpu -j2 \
    -R 'Attention|Golden|Linear|Products|TenLossesAgree|TwoRuns|VocabularyLoss|WritesWhat' \
    -E 'SpeedIsPrinted|LastTiles|RatesOfDropout|ManySequences|LongRuns|Distilled'
done
unset SNUG_EVERY OMP_NUM_THREADS
export SNUG="$PWD/build-emulated-gpu/bin/snug"
SNUG_EMULATED_GPU="" python3 tests/e2e/emulated_gpu_test.py -v
# Random techniques and budgets, beside which there is room on the card.
SNUG_EMULATED_GPU=memory=140GiB SNUG_DEVICE=cuda python3 tests/e2e/combinations_test.py -v BudgetFuzz
