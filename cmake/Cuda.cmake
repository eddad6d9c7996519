# The CUDA toolkit (12.4 or newer) and cuBLASLt, which stays a shared library: it is larger than everything else together
# and comes with CUDA. Everything else goes into the program, or beside it where Debian has no archive, so that the build
# also runs on a machine with nothing but the driver and CUDA's libraries.

# Kernels for Hopper use instructions that only the architecture-specific target has; no other card is of 9.0.
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90$" "90a")
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)

if(NOT CMAKE_CUDA_ARCHITECTURES)
  message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is empty; make cuda sets it")
endif()
foreach(architecture ${CMAKE_CUDA_ARCHITECTURES})
  if(architecture MATCHES "^[0-9]+" AND CMAKE_MATCH_0 LESS 75)
    message(FATAL_ERROR "snug needs compute capability 7.5 or newer, not ${architecture}")
  endif()
endforeach()

# SNUG_CUBLAS: a folder with include/ and lib/ where the toolkit comes without cuBLAS (scripts/find-cublas.sh).
find_path(CUBLASLT_INCLUDE cublasLt.h HINTS ${SNUG_CUBLAS}/include ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_library(CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.${CUDAToolkit_VERSION_MAJOR}
  HINTS ${SNUG_CUBLAS}/lib ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
add_library(snug_cublaslt INTERFACE IMPORTED)
target_include_directories(snug_cublaslt SYSTEM INTERFACE ${CUBLASLT_INCLUDE})
target_link_libraries(snug_cublaslt INTERFACE ${CUBLASLT_LIBRARY})

set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
add_link_options(-static-libstdc++ -static-libgcc)
# Looked up beside the program first, then where CUDA usually is.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib" "$ORIGIN/../cublas/lib" /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib)
