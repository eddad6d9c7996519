# Every third-party library, once. scripts/packages.txt names the packages. Also installed: who links the static library
# needs the same ones.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
if(SNUG_CUDA)
  set(SNUG_FMT fmt::fmt-header-only)  # Debian has no archive of it
else()
  set(SNUG_FMT fmt::fmt)
endif()
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc data)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)

# The OpenMP build of OpenBLAS shares snug's threads; the pthread build would add its own. Linked statically, so that the
# system's choice of libblas alternative cannot swap it.
find_library(OPENBLAS_LIBRARY libopenblas.a PATH_SUFFIXES openblas-openmp REQUIRED)
find_path(OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES
  openblas-openmp x86_64-linux-gnu/openblas-openmp aarch64-linux-gnu/openblas-openmp REQUIRED)
add_library(snug_openblas INTERFACE IMPORTED)
target_include_directories(snug_openblas SYSTEM INTERFACE ${OPENBLAS_INCLUDE})
target_link_libraries(snug_openblas INTERFACE ${OPENBLAS_LIBRARY} OpenMP::OpenMP_CXX m)

# Without its trainer, which pkg-config would bring too.
find_library(SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
find_path(SENTENCEPIECE_INCLUDE sentencepiece_processor.h REQUIRED)
add_library(snug_sentencepiece INTERFACE IMPORTED)
target_include_directories(snug_sentencepiece SYSTEM INTERFACE ${SENTENCEPIECE_INCLUDE})
target_link_libraries(snug_sentencepiece INTERFACE ${SENTENCEPIECE_LIBRARY})

if(SNUG_DEVELOPER)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()
