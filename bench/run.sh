#!/bin/sh
# Prints the benchmark table. Where $PYTHON (default python3) has torch and transformers, their step runs in turn with ours.
#   make bench                       PYTHON=/path/to/venv/bin/python make bench
set -eu
cd "$(dirname "$0")/.."
export THREADS="${THREADS:-$(nproc)}"
python=${PYTHON:-python3}
lines=build/bench.jsonl
: > "$lines"
peer=no
if "$python" -c 'import torch, transformers' 2>/dev/null; then peer=yes; else echo "no torch and transformers in $python: snug alone"; fi
for round in 1 2 3; do
  for case in 8x128 sst2 gpt2:1x512; do
    build/bin/step_bench "$case" | tee -a "$lines"
    [ "$peer" = no ] || "$python" bench/peer_step.py "$case" 2>/dev/null | tee -a "$lines"
  done
done
python3 bench/table.py "$lines"
