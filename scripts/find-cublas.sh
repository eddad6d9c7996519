#!/bin/sh
# Prints a folder that holds cuBLASLt's include/ and lib/ for this nvcc. Toolkits usually bring it; where one does not,
# the vendor's package from the Python index is unpacked into the folder given, once.
set -eu
into=$1
toolkit=$(nvcc --dryrun -x cu -c /dev/null -o /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
for root in "$toolkit" "$toolkit"/targets/*-linux; do
  if [ -f "$root/include/cublasLt.h" ]; then echo "$root"; exit 0; fi
done
if [ ! -f "$into/include/cublasLt.h" ]; then
  version=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  major=${version% *} minor=${version#* }
  case $major in
    12) package="nvidia-cublas-cu12==12.$minor.*" folder=nvidia/cublas ;;
    *) package="nvidia-cublas==$major.$minor.*" folder=nvidia/cu$major ;;
  esac
  echo "cuBLAS is not in $toolkit; fetching $package" >&2
  rm -rf "$into.tmp"
  python3 -m pip install --quiet --no-deps --target "$into.tmp" "$package" >&2 ||
    { echo "error: install CUDA's cuBLAS development files and try again" >&2; exit 1; }
  rm -rf "$into"
  mv "$into.tmp/$folder" "$into"
  rm -rf "$into.tmp"
fi
echo "$into"
