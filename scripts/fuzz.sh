#!/bin/sh
# Every parser's fuzz target for a while (default 20 seconds each) on its seed corpus. New inputs stay in build-fuzz.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-20}
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
for corpus in tests/fuzz/corpus/*/; do
  name=$(basename "$corpus")
  mkdir -p "build-fuzz/corpus/$name"
  echo "fuzzing $name for $seconds s"
  "build-fuzz/bin/fuzz_$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
    "build-fuzz/corpus/$name" "$corpus" > "build-fuzz/$name.log" 2>&1 ||
    { tail -n 40 "build-fuzz/$name.log"; echo "fuzzing $name found a problem"; exit 1; }
  grep -a 'Done' "build-fuzz/$name.log" | tail -n 1
done
