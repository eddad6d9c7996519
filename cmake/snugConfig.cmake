# find_package(snug) gives the target snug::snug.
set(SNUG_DEVELOPER OFF)
include(${CMAKE_CURRENT_LIST_DIR}/Dependencies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/snugTargets.cmake)
