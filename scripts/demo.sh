#!/bin/sh
# The main job in two minutes on the CPU: a small model is made from example reviews, planned, trained inside 160 MiB,
# evaluated and asked for its opinion.
set -eu
cd "$(dirname "$0")/.."
out=build/demo
rm -rf "$out"
run() { printf '\n$ snug %s\n' "$*"; build/bin/snug "$@"; }

run init --train examples/reviews.csv --vocab-size 1000 --hidden-size 128 --num-hidden-layers 3 --num-attention-heads 4 \
  --max-position-embeddings 64 --output-dir "$out/model"
run plan --model "$out/model" --train examples/reviews.csv --validation examples/reviews-validation.csv \
  --batch-size 32 --memory 160MiB
run train --model "$out/model" --train examples/reviews.csv --validation examples/reviews-validation.csv \
  --batch-size 32 --learning-rate 3e-4 --num-train-epochs 4 --memory 160MiB --output-dir "$out/trained"
run eval --model "$out/trained" --data examples/reviews-validation.csv
run predict --model "$out/trained" --text "The lamp: it rattles all day, but by now it works perfectly."
printf '\nThe trained model is in %s; transformers loads it too.\n' "$out/trained"
