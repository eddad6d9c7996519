#!/bin/sh
# The main job in about two minutes on the CPU: a small model learns the section of a Debian package from its
# description, on 20,000 rows from this machine's own package index; then the first steps again in as little memory as
# possible, side by side.
set -eu
cd "$(dirname "$0")/.."
out=build/demo
rm -rf "$out"
mkdir -p "$out"
run() { printf '\n$ snug %s\n' "$*"; build/bin/snug "$@"; }

if ! apt-cache dumpavail | grep -q '^Section:'; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
fi
apt-cache dumpavail | python3 scripts/demo_data.py "$out"

run init --train "$out/train.csv" --vocab-size 8000 --hidden-size 128 --num-hidden-layers 3 --num-attention-heads 4 \
  --max-position-embeddings 64 --output-dir "$out/model"
set -- --device cpu --model "$out/model" --train "$out/train.csv" --batch-size 32 --learning-rate 5e-4 --warmup-ratio 0.1
run plan "$@" --validation "$out/validation.csv" --memory 256MiB
run train "$@" --validation "$out/validation.csv" --num-train-epochs 2 --memory 256MiB --output-dir "$out/trained"
run eval --device cpu --model "$out/trained" --data "$out/validation.csv"
run predict --device cpu --model "$out/trained" --text "Ruby library to read and write spreadsheets"

printf '\nThe first 60 steps again, once with room to spare and once in the least memory that works:\n'
least=$(build/bin/snug plan "$@" --max-steps 60 --json | sed -n 's/.*"minimum_budget_bytes": \([0-9]*\).*/\1/p')
run train "$@" --max-steps 60 --save-strategy no --memory 256MiB --output-dir "$out/roomy" >/dev/null
run train "$@" --max-steps 60 --save-strategy no --memory "$least" --output-dir "$out/snug" >/dev/null
printf '\n'
python3 scripts/demo_compare.py "$out/roomy" "$out/snug"
printf '\nThe trained model is in %s; transformers loads it too.\n' "$out/trained"
