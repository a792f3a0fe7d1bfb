# Included by every project() with the toolchain of zig.cmake. zig links its runtime by itself. What
# CMake saw of that it would link again, and files would name zig's cache.
set(CMAKE_C_IMPLICIT_LINK_LIBRARIES c)
set(CMAKE_CXX_IMPLICIT_LINK_LIBRARIES c)
